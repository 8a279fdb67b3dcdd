"""The algorithms in PyTorch.

`ppo.py` and `dqn.py` (maths in `loss`, order in `update`, time in `train`); `comm.py` what crosses ranks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
