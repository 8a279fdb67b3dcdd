"""The state of Gymnasium's environments, layer by layer: wrappers from the outside in, then the task.

A layer is saved by the attributes listed here, or by the methods `state` and `restore` of its own class, which speak
for that layer only. Only exact classes are listed: a subclass may keep more. What is only drawn is left out.
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

from lockstep.envs.state import has_both

ATTRIBUTES: Mapping[type, tuple[str, ...]] = {
    AcrobotEnv: ("state",),
    CartPoleEnv: ("state",),
    CartPoleVectorEnv: ("state", "steps", "prev_done"),
    Continuous_MountainCarEnv: ("state",),
    MountainCarEnv: ("state",),
    PendulumEnv: ("state",),
    wrappers.TimeLimit: ("_elapsed_steps",),
    # These keep nothing between steps, but that a reset came first.
    wrappers.OrderEnforcing: (),
    wrappers.ClipAction: (),
    wrappers.ClipReward: (),
    wrappers.DtypeObservation: (),
    wrappers.FlattenObservation: (),
    wrappers.RescaleAction: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
}
"""What decides the next step, besides the generator, by class.

An episode that ended is over before anybody asks: `CartPoleEnv.steps_beyond_terminated` is always None then.
"""


def savable(env: Any) -> bool:
    """Whether every layer of `env`, a Gymnasium environment or vector environment, can be saved; never raises."""
    return all(type(layer) in ATTRIBUTES or has_both(layer) for layer in _layers(env))


def save(env: Any) -> dict[str, Any]:
    """Everything that decides what `env`, which is `savable`, does next."""
    layers = _layers(env)
    return {
        "layers": [{"class": _name(layer), "state": _save(layer)} for layer in layers],
        "generator": _generator(layers[-1]),
    }


def restore(env: Any, state: Mapping[str, Any]) -> None:
    """Let `env`, made and wrapped like the one that was saved, go on from there."""
    layers, saved = _layers(env), state["layers"]
    here, there = [_name(layer) for layer in layers], [one["class"] for one in saved]
    if here != there:
        raise ValueError(f"the state was saved from {' of '.join(there)}, this is {' of '.join(here)}")
    if state["generator"] is not None:
        layers[-1].np_random.bit_generator.state = state["generator"]
    for layer, one in zip(layers, saved, strict=True):
        _restore(layer, one["state"])


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
    """State of the generator that Gymnasium gives to every task; `np_random` would make one where none is in use."""
    generator = getattr(task, "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def _save(layer: Any) -> dict[str, Any]:
    attributes = _attributes(layer)
    if attributes is None:
        if not has_both(layer):
            raise TypeError(f"{_name(layer)} cannot be saved: it has no methods state and restore")
        return layer.state()
    values = {name: getattr(layer, name) for name in attributes}
    # An array keeps its precision: in some tasks a state is float64 after a reset and float32 after a step.
    return {name: value if isinstance(value, int | None) else np.array(value) for name, value in values.items()}


def _restore(layer: Any, state: dict[str, Any]) -> None:
    attributes = _attributes(layer)
    if attributes is None:
        layer.restore(state)
        return
    for name in attributes:
        # Tasks change arrays in place; the saved one stays the caller's.
        setattr(layer, name, copy(state[name]))
