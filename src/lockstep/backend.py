"""What a framework does in its own way around a training loop: `lockstep.surroundings` asks for no more than this."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from lockstep.collectives import Comm
from lockstep.evaluation import Player
from lockstep.normalize import RunningMoments
from lockstep.preflight import Preflight
from lockstep.record.timers import Timers
from lockstep.run import AnyRun
from lockstep.run_state import Learner
from lockstep.world import World

SomeComm = TypeVar("SomeComm", bound=Comm)
SomePolicy = TypeVar("SomePolicy", contravariant=True)
SomeLearner = TypeVar("SomeLearner", contravariant=True)


class Backend(Protocol[SomeComm, SomePolicy, SomeLearner]):
    """What a framework does in its own way around a loop. Keeps nothing."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> SomeComm:
        """Fix what changes bits, before the first number is computed, and make the collectives; not yet entered."""
        ...

    def preflight(self, comm: SomeComm, run: AnyRun) -> Preflight:
        """Compare all ranks before the first step; *collective*."""
        ...

    def devices(self, comm: SomeComm) -> list[str]:
        """Where each rank of this process computes, in words; each has a block of the process' shards."""
        ...

    def share_cores(self, run: AnyRun, world: World, policy: SomePolicy) -> None:
        """Give this process its part of the host's cores, as far as the policy is worth it."""
        ...

    def start_from(
        self, path: Path, comm: SomeComm, policy: SomePolicy, observations: RunningMoments | None, learner: SomeLearner
    ) -> None:
        """Begin with the parameters and the normalizer of a policy file, equal on all ranks; *collective*."""
        ...

    def player(self, policy: SomePolicy, comm: SomeComm, observations: RunningMoments | None) -> Player:
        """What an evaluation plays: always the newest parameters."""
        ...

    def restorable(self, learner: SomeLearner, comm: SomeComm) -> Learner:
        """What a checkpoint takes of a learner."""
        ...

    def parameters(self, policy: SomePolicy) -> Mapping[str, np.ndarray]:
        """What was trained, float32, by name."""
        ...

    def save(self, path: Path, policy: SomePolicy, observations: RunningMoments | None, run: AnyRun) -> None:
        """Write a policy file, whole or not at all. Raises `RunError` where that cannot be."""
        ...

    def leave(self, error: BaseException, run_dir: Path, comm: SomeComm, tensors: Mapping[str, Any]) -> None:
        """Leave for inspection what a failed run's error speaks of. Never raises: the error itself is to be told."""
        ...
