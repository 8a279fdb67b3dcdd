"""The algorithms in PyTorch.

`ppo.py` and `dqn.py` (maths in `loss`, order in `update`, time in `train`); `comm.py` what crosses ranks.
"""
