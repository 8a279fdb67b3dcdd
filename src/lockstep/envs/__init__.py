"""Vectorized environments with numpy arrays.

`vector.py` is the protocol, `make.py` makes one by task name. `gymnasium.py` and `adapters.py` take Gymnasium's,
`pettingzoo.py` those of several agents, `workers.py` runs one process per environment, `atari*.py` are Atari games,
`cartpole.py`, `hidden_cartpole.py` and `toy_tasks.py` built-in tasks. `limits.py` clips numbers, `stacking.py` joins
observations of several steps. `dlpack.py` is the protocol of environments on another framework's arrays. `spec.py`
describes an environment, `state.py` is the protocol for saving one, `wrapper_state.py` saves Gymnasium's.
`package_folders.py` finds the packages of suites, `errors.py` describes errors of environments.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
