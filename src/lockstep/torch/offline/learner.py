"""The base of the algorithms on logged data: broadcast, parts of minibatches, warmup, and state for checkpoints."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.data.rows import Rows
from lockstep.run import OfflineRun
from lockstep.torch.batch import RowBatch
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.noise import Noise
from lockstep.torch.offline.optimizer import OfflineOptimizer
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.policy import ScoringPolicy

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
    metrics: Metrics

    def __init__(self, run: OfflineRun, policy: SomePolicy, comm: Comm) -> None:
        self.policy = policy
        self.comm = comm
        self._seed = run.seed
        bfloat16 = run.precision == "bfloat16"
        self._autocast = torch.autocast(comm.device.type, torch.bfloat16) if bfloat16 else nullcontext()
        comm.broadcast_(policy)

    def part_of(self, rows: Rows, k: int, step: int) -> Sequence[RowBatch]:
        """The arguments of the loss for local shard `k` in a step, before which `step` rows were learned from."""
        raise NotImplementedError

    def with_noise(
        self, rows: Rows, k: int, step: int, num_normal: int, num_uniform: int = 0
    ) -> tuple[LoggedBatch, Noise]:
        """The rows of local shard `k`, and random numbers for `num_normal` and `num_uniform` actions of each."""
        batch, shard = LoggedBatch.of(rows, self.comm.device), self.comm.world.shards[k]
        shape = (len(rows), num_normal, batch.action.shape[1])
        return batch, Noise.draw(self._seed, shard, step, shape, self.comm.device, num_uniform=num_uniform)

    def warmup_step(self, rows: Rows) -> Callable[[], object]:
        """Return a function that takes a gradient step, without messages or effects."""
        return self.optimizer.warmup_step(self.part_of(rows, 0, 0))

    def shared_tensors(self) -> dict[str, Tensor]:
        """The state that is equal on all ranks, without a copy: writing to these tensors restores a run."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        return named | self.optimizer.state() | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict[str, Any]:
        """The state of local shard `k`: none."""
        return {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k`: nothing to do."""
