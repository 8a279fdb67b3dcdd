"""The base of the algorithms on logged data: what they broadcast, and their state for checkpoints."""

from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.optimizer import OfflineOptimizer
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.policy import ScoringPolicy

SomePolicy = TypeVar("SomePolicy", ScoringPolicy, ActorPolicy)


class LoggedLearner(Generic[SomePolicy]):
    """An algorithm on logged data. Its `update` takes one gradient step.

    Args:
        run: the config.
        policy: the parameters of rank 0 are broadcast.
        comm: the ranks.
    """

    optimizer: OfflineOptimizer
    metrics: Metrics

    def __init__(self, run: OfflineRun, policy: SomePolicy, comm: Comm) -> None:
        self.policy = policy
        self.comm = comm
        self._seed = run.seed
        bfloat16 = run.precision == "bfloat16"
        self._autocast = torch.autocast(comm.device.type, torch.bfloat16) if bfloat16 else nullcontext()
        comm.broadcast_(policy)

    def shared_tensors(self) -> dict[str, Tensor]:
        """The state that is equal on all ranks, without a copy: writing to these tensors restores a run."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        return named | self.optimizer.state() | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict[str, Any]:
        """The state of local shard `k`: none."""
        return {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k`: nothing to do."""
