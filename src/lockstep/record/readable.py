"""Whether this user may read a directory of runs."""

import os
from pathlib import Path

from lockstep.errors import ConfigError


def check_readable(path: Path) -> None:
    """Raise `ConfigError` if a path is closed to this user; one that does not exist is fine."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        if path.is_dir():
            os.stat(os.path.join(path, "."))  # whether files in it can be reached, as opening it does not tell
    except PermissionError:
        raise ConfigError(
            f"{path} cannot be read (permission denied); ask its owner, or give another directory"
        ) from None
    except OSError:  # does not exist
        return
