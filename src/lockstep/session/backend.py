"""What a framework does in its own way around a training loop, as `lockstep.session.session` asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.distributed.timers import Timers
from lockstep.experience.normalize import RunningMoments
from lockstep.preflight.compare import Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.run import AnyRun, Run
from lockstep.session.evaluation import Player
from lockstep.session.run_state import Learner
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

    def forecast(
        self, run: Run, comm: SomeComm, learner: SomeLearner, layout: Layout, message_s: float
    ) -> Forecast | str:
        """What this world and one of its hosts alone will do, or why that is not predicted; not collective."""
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
