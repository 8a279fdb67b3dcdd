"""What a policy learns from.

`rollout.py` steps environments and collects what happens. `replay.py` keeps transitions, of which `frames.py` has the
images, `memory.py` the space and `sum_tree.py` the priorities. `sequences.py` cuts rollouts for recurrent policies.
`normalize.py` scales observations and rewards. `acting.py` and `numpy_actor.py` compute actions on the host;
`sampling.py`, `exploration.py` and `offline_noise.py` draw their randomness. `episodes.py` counts returns,
`evaluate.py` plays a fixed quota of episodes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
