"""Lockstep on JAX: the same words as `lockstep.torch`, and none of its code."""
