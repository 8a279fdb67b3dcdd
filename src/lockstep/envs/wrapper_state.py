"""Save and restore Gymnasium environments layer by layer: wrappers from the outside in, then the task.

A layer is saved by the attributes listed here, or by its own `state` and `restore` methods, which cover that layer
only; MuJoCo's tasks by the state of their physics. Only exact classes are listed, because a subclass may have more
state. Rendering state is not saved.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from lockstep.envs import mujoco_state
from lockstep.envs.groups import ObservationGroups
from lockstep.envs.state import has_state_methods

ATTRIBUTES: Mapping[type, tuple[str, ...]] = {
    AcrobotEnv: ("state",),
    CartPoleEnv: ("state",),
    CartPoleVectorEnv: ("state", "steps", "prev_done"),
    Continuous_MountainCarEnv: ("state",),
    MountainCarEnv: ("state",),
    PendulumEnv: ("state",),
    wrappers.TimeLimit: ("_elapsed_steps",),
    # Stateless, except that they require a reset before the first step.
    wrappers.OrderEnforcing: (),
    wrappers.ClipAction: (),
    wrappers.ClipReward: (),
    wrappers.DtypeObservation: (),
    wrappers.FlattenObservation: (),
    wrappers.RescaleAction: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
    ObservationGroups: (),
}
"""The attributes that determine the next step, besides the random generator, by class.

`CartPoleEnv.steps_beyond_terminated` is not needed: it is None except after an end, and ended episodes are reset first.
"""


def savable(env: Any) -> bool:
    """Whether every layer of a Gymnasium environment or vector environment can be saved; never raises."""
    return all(
        type(layer) in ATTRIBUTES or has_state_methods(layer) or mujoco_state.is_mujoco_task(layer)
        for layer in _layers(env)
    )


def save(env: Any) -> dict[str, Any]:
    """The complete state of a `savable` environment."""
    layers = _layers(env)
    return {
        "layers": [{"class": _name(layer), "state": _save(layer)} for layer in layers],
        "generator": _generator(layers[-1]),
    }


def restore(env: Any, state: Mapping[str, Any]) -> None:
    """Load a state into `env`, which must be made and wrapped like the one that was saved."""
    layers, saved = _layers(env), state["layers"]
    names, saved_names = [_name(layer) for layer in layers], [entry["class"] for entry in saved]
    if names != saved_names:
        raise ValueError(f"the state was saved from {' of '.join(saved_names)}, this is {' of '.join(names)}")
    if state["generator"] is not None:
        layers[-1].np_random.bit_generator.state = state["generator"]
    for layer, entry in zip(layers, saved, strict=True):
        _restore(layer, entry["state"])


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        layers.append(layers[-1].env)
    return layers


def _attributes(layer: object) -> tuple[str, ...] | None:
    return ATTRIBUTES.get(type(layer))


def _name(layer: Any) -> str:
    return type(layer).__name__


def _generator(task: Any) -> dict[str, Any] | None:
    """State of the task's generator; reads `_np_random`, because the property `np_random` would create one."""
    generator = getattr(task, "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def _save(layer: Any) -> dict[str, Any]:
    if mujoco_state.is_mujoco_task(layer):
        return mujoco_state.save(layer)
    attributes = _attributes(layer)
    if attributes is None:
        if not has_state_methods(layer):
            raise TypeError(f"{_name(layer)} cannot be saved: it has no methods state and restore")
        return layer.state()
    values = {name: getattr(layer, name) for name in attributes}
    # Arrays are saved with their dtype: some tasks have float64 after a reset and float32 after a step.
    return {name: value if isinstance(value, int | None) else np.array(value) for name, value in values.items()}


def _restore(layer: Any, state: dict[str, Any]) -> None:
    if mujoco_state.is_mujoco_task(layer):
        mujoco_state.restore(layer, state)
        return
    attributes = _attributes(layer)
    if attributes is None:
        layer.restore(state)
        return
    for name in attributes:
        # Tasks change arrays in place, so they get a copy.
        setattr(layer, name, copy(state[name]))
