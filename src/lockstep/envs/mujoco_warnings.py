"""Warnings of MuJoCo about the models of Gymnasium's own tasks."""

import importlib
from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import EnvSpec


def of_gymnasium(registered: EnvSpec) -> bool:
    """Whether an id is one of Gymnasium's own MuJoCo tasks."""
    return str(registered.entry_point).startswith("gymnasium.envs.mujoco.")


def without_warnings(create: Callable[[], Any]) -> Any:
    """The result of `create`, without what MuJoCo says about the model that it compiles meanwhile.

    MuJoCo warns on standard error and in the file MUJOCO_LOG.TXT of the working directory, here once per environment
    and about models that a user cannot change. Warnings of the simulation, later, stay as they are.
    """
    mujoco: Any = importlib.import_module("mujoco")  # here, since other tasks do without it
    of_user = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_drop)
    try:
        return create()
    finally:
        mujoco.set_mju_user_warning(of_user)


def _drop(message: str) -> None:
    """A handler of warnings that ignores them."""
