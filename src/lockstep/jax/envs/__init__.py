"""Environments written in JAX, which run on the learner's device."""
