"""Vectorized environments, numpy at the border.

`vector.py` is the protocol, `make.py` the way from a task's name to one. `gymnasium.py` and `adapters.py` take
Gymnasium's, `workers.py` runs one process per environment, `atari*.py` are games, `cartpole.py` and `toys.py`
built-in tasks. `spec.py` says what an environment looks like, `state.py` which can be saved.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
