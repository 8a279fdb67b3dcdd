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
    """Whether the gradient steps of a run's network may be one loop.

    On CPUs XLA's convolutions are 20 times slower within one. What is in a network of the user's own is not known.
    """
    return platform != "cpu" or (spec.image is None and run.network.module is None)


def repeat(
    scan: bool, step: Callable[[State, Array], tuple[State, Array]], state: State, rows: Array
) -> tuple[State, Array]:
    """`step` with one of `rows` after the other: compiled once, or else as often as it is done.

    Returns:
        The last state, and what the steps gave besides, stacked.
    """
    if scan:
        return jax.lax.scan(step, state, rows)
    outputs: list[Array] = []
    for row in rows:
        state, one = step(state, row)
        outputs.append(one)
    return state, jnp.stack(outputs)
