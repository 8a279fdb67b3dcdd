"""Launchers: start the ranks on one or many nodes, supervise and restart them.

`local.py` starts ranks on this machine, `nodes.py` and `rendezvous/` connect the launchers of several nodes,
`supervise.py` watches the processes and ends all at the first failure. `train.py` is `lockstep.train(run)`.
"""

import sys

from lockstep.errors import ConfigError

if sys.platform != "linux":
    raise ConfigError(
        f"lockstep starts ranks on Linux only, and this is {sys.platform!r}; use a Linux machine, a container or WSL 2"
    )
