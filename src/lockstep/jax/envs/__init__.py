"""Environments written in JAX, which run on the learner's device.

Begin with `interface.py`, the protocol, and `make.py`, which makes one by task name; `gymnasium_cartpole.py` is an
example.
"""
