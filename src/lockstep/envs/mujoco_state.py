"""Save and restore Gymnasium's MuJoCo tasks in the middle of an episode."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_TASKS = "gymnasium.envs.mujoco."
_COMPUTED = ("xpos", "xipos", "site_xpos", "geom_xpos", "subtree_com")
"""Positions that MuJoCo computes at the beginning of a step. Some tasks read them before the next step, for velocities
by differences; computing them anew would give those of the end of the step."""
_GOALS = ("goal", "goal_pos", "cylinder_pos")
"""Positions that Reacher and Pusher draw when an episode begins."""


def is_mujoco_task(task: object) -> bool:
    """Whether `task` is one of Gymnasium's own MuJoCo tasks; subclasses elsewhere may have more state."""
    return type(task).__module__.startswith(_TASKS) and hasattr(task, "model") and _kind() is not None


def save(task: Any) -> dict[str, Any]:
    """The state from which MuJoCo computes the next step, and the computed positions that the task reads before it."""
    mujoco = sys.modules["mujoco"]
    physics = np.empty(mujoco.mj_stateSize(task.model, _kind()))
    mujoco.mj_getState(task.model, task.data, physics, _kind())
    computed = {name: np.array(getattr(task.data, name)) for name in _COMPUTED}
    goals = {name: np.array(getattr(task, name)) for name in _GOALS if hasattr(task, name)}
    return {"physics": physics, "computed": computed, "goals": goals}


def restore(task: Any, state: Mapping[str, Any]) -> None:
    """Load the result of `save` into a task with the same model."""
    mujoco = sys.modules["mujoco"]
    mujoco.mj_setState(task.model, task.data, state["physics"], _kind())
    for name, value in state["computed"].items():
        getattr(task.data, name)[:] = value
    for name, value in state["goals"].items():
        setattr(task, name, value.copy())


def _kind() -> Any:
    """MuJoCo's name for all that determines the next step; None if the installed version cannot save it."""
    state = getattr(sys.modules.get("mujoco"), "mjtState", None)
    return getattr(state, "mjSTATE_INTEGRATION", None)
