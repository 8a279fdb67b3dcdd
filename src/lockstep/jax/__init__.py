"""The algorithms in JAX.

`ppo.py` and `dqn.py`, `on_device.py` for environments written in JAX (`envs/`); `comm.py` what crosses ranks.
"""
