"""Ranks as Ray actors: `lockstep train --on ray`, `lockstep sweep --on ray`, and `launch` for a function of one's own.

`arguments.py` has the flags and what they describe, `cluster.py` connects to Ray, `placement.py` places one actor per
rank in a placement group, `actor.py` is that actor, which runs the rank as a child process, and `attempt.py` waits for
all ranks. `train.py` starts a training, `call.py` calls a function, `trial.py` runs the runs of a sweep.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
