"""Optional packages."""

import importlib
from typing import Any

from lockstep.errors import ConfigError


def import_optional(package: str, extra: str) -> Any:
    """Import a package of an extra of lockstep-rl. Raises `ConfigError` with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"this needs the package {package} ({error}); pip install 'lockstep-rl[{extra}]'") from error
