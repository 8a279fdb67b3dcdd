"""Environments written in JAX: they live on the device, beside the learner."""
