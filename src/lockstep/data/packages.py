"""Optional packages."""

import importlib
from typing import Any

from lockstep.errors import ConfigError


def import_optional(package: str, extra: str, what: str = "this") -> Any:
    """Import a package of an extra of lockstep-rl, which `what` needs.

    Raises:
        ConfigError: it cannot be imported; with the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package {package} ({error}); pip install 'lockstep-rl[{extra}]'"
        ) from error
