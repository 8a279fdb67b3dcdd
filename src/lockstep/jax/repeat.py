"""Loops within compiled code."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.run import Run

State = TypeVar("State")


def may_scan(run: Run, spec: EnvSpec, platform: str) -> bool:
    """Whether the gradient steps of a run's network may be one `lax.scan`.

    On CPUs XLA's convolutions are 20 times slower inside a loop. A user-defined network may contain some.
    """
    return platform != "cpu" or (spec.image is None and run.network.module is None)


def repeat(
    scan: bool, step: Callable[[State, Array], tuple[State, Array]], state: State, rows: Array
) -> tuple[State, Array]:
    """Apply `step` to each of `rows` in turn: as a `lax.scan`, or unrolled.

    Returns:
        The last state, and the stacked outputs of the steps.
    """
    if scan:
        return jax.lax.scan(step, state, rows)
    outputs: list[Array] = []
    for row in rows:
        state, one = step(state, row)
        outputs.append(one)
    return state, jnp.stack(outputs)
