"""How many gradient steps are due after each rollout, from numbers that are equal on all ranks."""

import math

import numpy as np

from lockstep.algorithms.replay import ReplayConfig
from lockstep.run import AnyRun, Run
from lockstep.world import World, stream

_TAKEN, _BEGIN, _PENDING = range(3)
"""Indices of `GradientSchedule.counters`. `_BEGIN` is -1 until the next rollout sets it: the buffers are new."""


class GradientSchedule:
    """The gradient steps that are due, and the rows that a shard draws for each.

    Args:
        run: the config, of an algorithm with a replay buffer.
        world: the ranks.

    Attributes:
        rows: transitions that each shard draws for a gradient step (N).
        counters: equal on all ranks: gradient steps taken, environment step from which learning may begin, fraction of
            a gradient step that is pending.
    """

    def __init__(self, run: Run, world: World) -> None:
        config = run.algorithm
        assert isinstance(config, ReplayConfig)
        self.config = config
        self._seed = run.seed
        self.rows = config.minibatch_rows(world.shard_size(run.num_envs, "num_envs"), world.num_shards)
        self.counters = np.array([0.0, config.learning_starts, 0.0])

    @property
    def gradient_steps(self) -> int:
        """The number of gradient steps taken since the start of the run."""
        return int(self.counters[_TAKEN])

    @gradient_steps.setter
    def gradient_steps(self, count: int) -> None:
        self.counters[_TAKEN] = count

    def take_due(self, env_steps: int, new_steps: int, *, ready: bool) -> int:
        """Gradient steps to take after a rollout.

        Args:
            env_steps: of all ranks, before this rollout.
            new_steps: of all ranks, in this rollout.
            ready: whether every shard has transitions to draw.
        """
        if not ready or env_steps + new_steps < self._begin(env_steps):
            return 0
        pending = float(self.counters[_PENDING]) + new_steps * self.config.updates_per_step
        due = int(pending + 1e-6)  # tolerates rounding: 192 steps at 10 / 192 each are 10
        self.counters[_PENDING] = pending - due
        return due

    def random_until(self, env_steps: int) -> int:
        """The environment step before which actions are random; 0 once a gradient step has been taken.

        A run that has learned fills new buffers with its policy, one that has not yet with random actions.

        Args:
            env_steps: of all ranks, before the next rollout.
        """
        return 0 if self.gradient_steps else self._begin(env_steps)

    def _begin(self, env_steps: int) -> int:
        """The environment step from which learning may begin."""
        if self.counters[_BEGIN] < 0:
            self.counters[_BEGIN] = env_steps + self.config.learning_starts
        return int(self.counters[_BEGIN])

    def fill_again(self) -> None:
        """Begin to learn only after `learning_starts` more steps: the buffers are new, and empty."""
        self.counters[_BEGIN] = -1
        self.counters[_PENDING] = 0

    def target_critics(self, num_critics: int, count: int) -> np.ndarray:
        """`count` different critics of `num_critics`, in order, for this gradient step: equal on all ranks."""
        generator = stream(self._seed, "target critics", self.gradient_steps)
        return np.sort(generator.choice(num_critics, count, replace=False))


def updates_before_learning(run: AnyRun, done_steps: int = 0) -> int:
    """Updates of a start that only fill replay buffers; 0 for a run without them.

    Args:
        run: the config.
        done_steps: environment steps before a resumed start.
    """
    config = run.algorithm
    if not isinstance(run, Run) or not isinstance(config, ReplayConfig):
        return 0
    left = config.learning_starts - (done_steps if config.checkpoint_replay else 0)
    return max(math.ceil(left / (run.num_envs * config.num_steps)) - 1, 0)
