"""Start ranks: one log per rank, the first failure ends all, nothing is left behind."""

import sys

from lockstep.errors import ConfigError

if sys.platform != "linux":
    raise ConfigError(
        f"lockstep starts ranks on Linux only, and this is {sys.platform!r}; use a Linux machine, a container or WSL 2"
    )
