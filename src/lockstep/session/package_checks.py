"""Checks that the packages which a run or a command needs are installed."""

from importlib.util import find_spec
from typing import Literal

from lockstep.errors import ConfigError
from lockstep.record.trackers.open import check_trackers
from lockstep.run import AnyRun


def check_packages(run: AnyRun) -> None:
    """Raise `ConfigError` if the run's framework or a tracker is not installed."""
    check_trackers(run.trackers)
    check_package(run.ml_framework)


def check_package(name: Literal["torch", "jax"], *, what: str = "", either: bool = True) -> None:
    """Raise `ConfigError` if this framework is not installed.

    Args:
        name: the framework.
        what: needs it; default: the setting.
        either: whether the command takes the other one as well.
    """
    other = "torch" if name == "jax" else "jax"
    if not _installed(name):
        what = what or f"ml_framework={name}"
        instead = f", or use --ml-framework {other}" if either and _installed(other) else ""
        raise ConfigError(f"{what} needs the package {name}: pip install 'lockstep-rl[{name}]'{instead}")


def _installed(name: str) -> bool:
    """Whether the package is installed; a folder of that name in the working directory does not count."""
    found = find_spec(name)
    return found is not None and found.origin is not None
