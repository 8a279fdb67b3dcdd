"""The algorithms in JAX.

`ppo.py` and `dqn.py` are the algorithms, `ppo_on_device.py` and
`actor_critic_on_device.py` train in environments that are written in JAX (`envs/`).
`tensor_rollout.py` collects from environments on torch tensors, which `transfer.py` imports through DLPack.
`comm.py` has all communication between ranks, `collectives/` its transports. `offline/` learns from logged data,
`scoring/` has its networks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
