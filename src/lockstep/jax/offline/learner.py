"""The base of the algorithms on logged data: broadcast, one gradient step, and state for checkpoints."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.data.rows import Rows
from lockstep.jax.comm import Comm
from lockstep.jax.offline.batch import Part
from lockstep.jax.offline.non_finite import OfflineLossReader
from lockstep.jax.offline.optimizer import OfflineOptimizer, State
from lockstep.jax.scoring.actor_policy import ActorPolicy
from lockstep.jax.scoring.scoring_policy import ScoringPolicy
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.non_finite import locate_non_finite_offline

SomePolicy = TypeVar("SomePolicy", ScoringPolicy, ActorPolicy)


class OfflineLearner(Generic[SomePolicy]):
    """An algorithm on logged data. Its `update` takes one gradient step.

    Args:
        run: the config.
        policy: the parameters of rank 0 are broadcast.
        comm: the ranks.
    """

    FOLLOWS = ALL_SETTINGS

    optimizer: OfflineOptimizer
    metrics: MetricMeans

    def __init__(self, run: OfflineRun, policy: SomePolicy, comm: Comm) -> None:
        self.policy = policy
        self.comm = comm
        self._seed = run.seed
        self._precision = run.precision
        self._stops = run.non_finite == "stop"
        policy.params = comm.read(comm.broadcast(policy.params))

    @property
    def state(self) -> State:
        """The pytree that updates change, replicated on all devices."""
        return self.optimizer.state

    def part_of(self, rows: Rows, k: int, step: int) -> Part:
        """The part of local shard `k` in the minibatch of a step, before which `step` rows were learned from."""
        raise NotImplementedError

    def learn(
        self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take one gradient step, and add the metrics of the optimizer; *collective*, one message.

        Args:
            parts: rows of each local shard.
            caller_sums: [K, I] numbers of the caller.
            progress: of the run, before this step.

        Returns:
            The sums over all shards, and those of `caller_sums`, as `OfflineOptimizer.learn`.

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        batches = [self.part_of(rows, k, progress.env_steps) for k, rows in enumerate(parts)]
        sums, caller_sums, skipped = self.optimizer.learn(batches, caller_sums, progress)
        if skipped and self._stops:
            pairs = list(zip(parts, batches, strict=True))
            raise locate_non_finite_offline(self.comm, pairs, progress, OfflineLossReader(self.optimizer))
        self.policy.params = self.optimizer.params()
        self.optimizer.add_metrics(self.metrics, sums)
        return sums, caller_sums

    def warmup(self, rows: Rows, num_extra: int) -> None:
        """Compile what an update calls, without changing the state; *collective*, one message."""
        self.optimizer.warmup([self.part_of(rows, 0, 0)] * len(self.comm.world.shards), num_extra)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints."""
        return self.optimizer.named() | {"metrics": self.metrics.table.copy()}

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it."""
        self.optimizer.load(arrays)
        self.policy.params = self.optimizer.params()
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)

    def shard_state(self, k: int) -> dict[str, Any]:
        """The state of local shard `k`: none."""
        return {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k`: nothing to do."""
