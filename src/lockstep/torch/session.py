"""What surrounds an algorithm's loop in PyTorch: `lockstep.session.session`, with what torch does in its own way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from lockstep.distributed.timers import Timers
from lockstep.experience.normalize import RunningMoments
from lockstep.preflight.compare import Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.run import AnyRun, Run, SomeRun
from lockstep.session.debug_dump import save_debug_dump
from lockstep.session.evaluation import Player
from lockstep.session.session import BaseSession
from lockstep.torch.comm import Comm
from lockstep.torch.export import save_policy, start_from
from lockstep.torch.forecast import Learner as Forecastable
from lockstep.torch.forecast import forecast
from lockstep.torch.hardware import describe, pin, share_cores
from lockstep.torch.networks import AnyPolicy, actor_of, multiplications
from lockstep.torch.preflight import preflight
from lockstep.torch.state import Learner, LearnerState
from lockstep.world import World


class Torch:
    """The `Backend` of torch: a rank is a process with one device."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> Comm:
        """Fix what changes bits, and make the collectives; not yet entered."""
        pin(run, world)
        return Comm(
            world, device=run.device, backend=run.backend, timers=timers,
            timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s,
        )  # fmt: skip

    def preflight(self, comm: Comm, run: AnyRun) -> Preflight:
        """Compare all ranks before the first step; *collective*."""
        return preflight(comm, run)

    def forecast(self, run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
        """What this world and one of its hosts alone will do, or why that is not predicted; not collective."""
        return forecast(run, comm, cast(Forecastable, learner), layout, message_s)  # in environments: PPO or DQN

    def devices(self, comm: Comm) -> list[str]:
        """Where this rank computes, in words."""
        return [describe(comm.device)]

    def share_cores(self, run: AnyRun, world: World, policy: AnyPolicy) -> None:
        """Give this rank its part of the host's cores, if its gradient steps are worth it."""
        share_cores(world, run.minibatch_rows(world) * multiplications(policy))

    def start_from(
        self, path: Path, comm: Comm, policy: AnyPolicy, observations: RunningMoments | None, learner: Learner
    ) -> None:
        """Begin with a policy file, whose parameters go where the learner's are; equal on all ranks; *collective*."""
        start_from(path, policy, observations)
        comm.broadcast_(policy)
        if observations is not None:
            observations.restore(comm.broadcast_object(observations.state()))

    def player(self, policy: AnyPolicy, comm: Comm, observations: RunningMoments | None) -> Player:
        """What an evaluation plays: always the newest parameters."""
        return Player(policy.distribution, actor_of(policy, comm.device), observations)

    def restorable(self, learner: Learner, comm: Comm) -> LearnerState:
        """What a checkpoint takes of a learner."""
        return LearnerState(learner)

    def parameters(self, policy: AnyPolicy) -> dict[str, np.ndarray]:
        """What was trained, float32, by name."""
        return {name: p.detach().float().cpu().numpy() for name, p in policy.named_parameters()}

    def save(self, path: Path, policy: AnyPolicy, observations: RunningMoments | None, run: AnyRun) -> None:
        """Write a policy file, whole or not at all."""
        save_policy(path, policy, observations, run)

    def leave(self, error: BaseException, run_dir: Path, comm: Comm, tensors: Mapping[str, Any]) -> None:
        """Leave for inspection what a failed run's error speaks of."""
        held = {name: torch.as_tensor(tensor).numpy(force=True) for name, tensor in tensors.items()}
        save_debug_dump(error, run_dir, comm.world.rank, held)


class Session(BaseSession[SomeRun, Comm, AnyPolicy, Learner]):
    """One run on this rank, as a context manager. Collective throughout."""

    backend = Torch()
