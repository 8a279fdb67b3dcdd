"""Packages that only some commands need."""

import importlib
from typing import Any

from lockstep.errors import ConfigError


def needed(package: str, extra: str) -> Any:
    """The imported package. Raises `ConfigError`, which says how to get it, where it is missing.

    Args:
        package: its name when imported.
        extra: of ours that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"this needs the package {package} ({error}); pip install 'lockstep-rl[{extra}]'") from error
