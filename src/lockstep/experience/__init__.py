"""What a policy learns from.

`rollout.py` steps environments, `replay.py` keeps transitions, `normalize.py` scales observations and rewards.
`sampling.py` and `exploration.py` draw actions, `episodes.py` counts returns, `evaluate.py` plays a fixed quota of
episodes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
