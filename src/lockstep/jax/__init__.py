"""The algorithms in JAX.

`ppo.py` and `dqn.py`, `on_device.py` for environments written in JAX (`envs/`); `comm.py` what crosses ranks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
