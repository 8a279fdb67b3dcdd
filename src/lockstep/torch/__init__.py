"""The algorithms in PyTorch.

`ppo.py` and `dqn.py` are the algorithms: `loss`, `update` (one gradient step) and `train` (the loop). `comm.py` has all
communication between ranks, `collectives/` its transports. `offline/` learns from logged data, `scoring/` has its
networks, `deploy/` exports policies.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
