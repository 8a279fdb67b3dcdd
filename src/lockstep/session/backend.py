"""The framework-specific part of a session."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.distributed.timers import Timers
from lockstep.errors import RunError
from lockstep.experience.normalize import RunningMoments
from lockstep.preflight.compare import Flags, Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.record.evaluations import EvaluationResult
from lockstep.run import AnyRun, Run
from lockstep.session.evaluation import Player
from lockstep.session.profile import Tracer
from lockstep.session.run_state import Learner
from lockstep.world import World

SomeComm = TypeVar("SomeComm", bound=Comm)
SomePolicy = TypeVar("SomePolicy", contravariant=True)
SomeLearner = TypeVar("SomeLearner", contravariant=True)


class Backend(Protocol[SomeComm, SomePolicy, SomeLearner]):
    """The framework-specific part of a session."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> SomeComm:
        """Set deterministic modes before any computation, and make the collectives; not yet entered."""
        ...

    def preflight(self, comm: SomeComm, run: AnyRun, flags: Flags) -> Preflight:
        """Compare all ranks before the first step, with the `flags` that change it; *collective*."""
        ...

    def forecast(
        self, run: Run, comm: SomeComm, learner: SomeLearner, layout: Layout, message_s: float
    ) -> Forecast | str:
        """Predict the speed of this world and of one host, or return why not; not collective."""
        ...

    def tracer(self, comm: SomeComm) -> Tracer:
        """The framework's profiler. Raises `ConfigError` if it has none."""
        ...

    def devices(self, comm: SomeComm) -> list[str]:
        """Description of the device of each rank of this process; each rank has a block of the shards."""
        ...

    def peak_memory(self, comm: SomeComm) -> list[int | None]:
        """The most memory of its device that each rank of this process has used so far, in bytes; None on CPUs."""
        ...

    def share_cores(self, run: AnyRun, world: World, policy: SomePolicy) -> None:
        """Set the number of threads of this process."""
        ...

    def start_from(
        self,
        path: Path,
        comm: SomeComm,
        policy: SomePolicy,
        observation_moments: RunningMoments | None,
        critic_moments: Mapping[str, RunningMoments],
        run: AnyRun,
        learner: SomeLearner,
    ) -> list[str]:
        """Load the parameters and normalizers of a policy file, equal on all ranks, and return notes; *collective*."""
        ...

    def player(self, policy: SomePolicy, comm: SomeComm, observation_moments: RunningMoments | None) -> Player:
        """The policy for evaluations, always with the newest parameters."""
        ...

    def restorable(self, learner: SomeLearner, comm: SomeComm) -> Learner:
        """The learner's state for checkpoints."""
        ...

    def parameters(self, policy: SomePolicy) -> Mapping[str, np.ndarray]:
        """Trained parameters by name, float32."""
        ...

    def save(
        self,
        path: Path,
        policy: SomePolicy,
        observation_moments: RunningMoments | None,
        critic_moments: Mapping[str, RunningMoments],
        run: AnyRun,
        evaluation: EvaluationResult | None,
    ) -> None:
        """Write a policy file atomically, with the evaluation of the best one. Raises `RunError` if it cannot be."""
        ...

    def dump_error(self, error: BaseException, run_dir: Path, comm: SomeComm, tensors: Mapping[str, Any]) -> None:
        """Save the tensors or batches of a failed run's error. Never raises, so that `error` itself is reported."""
        ...

    def compiler_failure(self, error: BaseException) -> RunError | None:
        """What to report in place of an error of the framework's compiler; None for other errors. Never raises."""
        ...
