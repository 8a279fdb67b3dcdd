"""Gradient steps in loops of compiled code: when they may be, and how many of a replay learner's are one call."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.replay import ReplayConfig
from lockstep.envs.spec import EnvSpec
from lockstep.run import Run

Carried = TypeVar("Carried")
Part = TypeVar("Part")

MAX_STEPS = 64
"""Gradient steps of one call. More would save little, and the watch for stalls sees a rank only between calls."""
MAX_BYTES = 8 << 20
"""Bytes of the minibatches of one call on a device. For large minibatches (images) the cost of a call is small beside
the computation, and between short calls the host draws the next ones while a GPU computes."""


def may_scan(run: Run, spec: EnvSpec, platform: str) -> bool:
    """Whether the gradient steps of a run's network may be one `lax.scan`.

    On CPUs XLA's convolutions are 20 times slower inside a loop. A user-defined network may contain some.
    """
    has_convolutions = spec.has_images or spec.critic_image_parts or run.network.module is not None
    return platform != "cpu" or not has_convolutions


def scan_or_unroll(
    scan: bool, step: Callable[[Carried, Array], tuple[Carried, Array]], state: Carried, rows: Array
) -> tuple[Carried, Array]:
    """Apply `step` to each of `rows` in turn: as a `lax.scan`, or unrolled; the outputs are stacked."""
    if scan:
        return jax.lax.scan(step, state, rows)
    outputs: list[Array] = []
    for row in rows:
        state, one = step(state, row)
        outputs.append(one)
    return state, jnp.stack(outputs)


def scan_while(
    proceeds: Callable[[Carried], Array], step: Callable[[Carried, Array], Carried], state: Carried, rows: Array
) -> Carried:
    """Apply `step` to each of `rows` in turn while `proceeds` of the state; later rows cost no time.

    If `step` has collectives, `proceeds` must be the same on all devices.
    """

    def one(carry: tuple[Array, Carried]) -> tuple[Array, Carried]:
        i, state = carry
        return i + 1, step(state, rows[i])

    start = jnp.zeros((), jnp.int32), state
    return jax.lax.while_loop(lambda carry: (carry[0] < len(rows)) & proceeds(carry[1]), one, start)[1]


class StepCalls:
    """Divides the gradient steps that are due after a rollout among compiled calls, of one step or of `size` steps.

    Calls of only two lengths keep programs few: how many steps are due may differ by one between updates. With
    `prioritized` all calls are of one step, since its draw depends on the priorities that the step before has set.

    Args:
        run: the config, of an algorithm with a replay buffer.
        spec: of its environments.
        platform: of the devices.
        minibatch: what a device is sent for a gradient step, as a pytree of arrays.
        group: the length and the first step of a longer call are multiples of this.

    Attributes:
        size: steps of the longer calls; 1: there are none.
    """

    def __init__(self, run: Run, spec: EnvSpec, platform: str, minibatch: Any, group: int = 1) -> None:
        config = run.algorithm
        assert isinstance(config, ReplayConfig)
        due = config.gradient_steps(run.num_envs) + 1e-6  # as `GradientSchedule.take_due` rounds
        self._group = group
        self._due = {int(due)} if due - int(due) < 2e-6 else {int(due), int(due) + 1}
        self.size = 1
        if not config.prioritized and may_scan(run, spec, platform):
            num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(minibatch))
            self.size = self._longer(min(MAX_STEPS, MAX_BYTES // max(num_bytes, 1)))

    def _longer(self, longest: int) -> int:
        """The length of the longer calls: those of an update are equal, and few steps are left for calls of one."""
        due, group = min(self._due), self._group
        if any(steps % group for steps in self._due):
            due -= group - 1  # steps before the first that is a multiple
        calls = -(-due // max(longest, 1))
        return max(due // max(calls, 1) // group * group, 1) if longest >= group else 1

    def lengths(self, due: int, taken: int) -> list[int]:
        """The length of each call for `due` gradient steps, after the run took `taken`."""
        if self.size == 1:
            return [1] * due
        first = min(-taken % self._group, due)
        calls, last = divmod(due - first, self.size)
        return [1] * first + [self.size] * calls + [1] * last

    def occurring(self) -> set[int]:
        """The lengths of calls that a run can have, for `warmup`."""
        starts = range(self._group) if any(due % self._group for due in self._due) else [0]
        return {length for due in self._due for taken in starts for length in self.lengths(due, taken)}


def stacked(steps: Sequence[Sequence[Part]]) -> list[Part]:
    """Each local shard's parts of several minibatches as one pytree, with a leading axis of steps."""
    return [jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for parts in zip(*steps, strict=True)]


def steps_first(own: Any) -> Any:
    """Leaves [L, M, ...] of L slots and M steps as [M, L, ...], for a `lax.scan` over the steps."""
    return jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), own)
