"""Lockstep on PyTorch."""
