"""Which extra of Lockstep installs the packages that tasks need."""

from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {"mujoco": "mujoco", "Box2D": "box2d", "pygame": "classic", "pettingzoo": "pettingzoo"}
"""The extra by the module that it installs."""


def install_line(module: str) -> str:
    """The command that installs a module of `EXTRAS`."""
    return f"pip install 'lockstep-rl[{EXTRAS[module]}]'"


def missing_module(message: str) -> str | None:
    """The module of `EXTRAS` that an error message of Gymnasium names; None if it names none."""
    return next((module for module in EXTRAS if module.lower() in message.lower()), None)
