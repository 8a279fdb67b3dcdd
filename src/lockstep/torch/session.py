"""The session of PyTorch: `lockstep.session.session` with its backend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from lockstep.distributed.timers import Timers
from lockstep.errors import RunError
from lockstep.experience.normalize import RunningMoments
from lockstep.preflight.compare import Flags, Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.record.evaluations import EvaluationResult
from lockstep.run import AnyRun, Run, SomeRun
from lockstep.session.debug_dump import save_debug_dump
from lockstep.session.evaluation import Player
from lockstep.session.normalizers import broadcast_moments
from lockstep.session.session import BaseSession
from lockstep.torch.comm import Comm
from lockstep.torch.compiler import compiler_failure
from lockstep.torch.envs.interface import TensorVectorEnv
from lockstep.torch.envs.make import make_tensor_env, steps_on_device
from lockstep.torch.export import save_policy, start_from
from lockstep.torch.forecast import Learner as Forecastable
from lockstep.torch.forecast import forecast
from lockstep.torch.hardware import describe, peak_memory, pin, share_cores
from lockstep.torch.networks import AnyPolicy, actor_of, multiplications
from lockstep.torch.preflight import preflight
from lockstep.torch.state import Learner, LearnerState
from lockstep.torch.tracer import TorchTracer
from lockstep.world import World


class Torch:
    """The `Backend` of torch: a rank is a process with one device."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> Comm:
        """Set deterministic modes and make the collectives; not yet entered."""
        pin(run, world)
        return Comm(
            world, device=run.device, backend=run.backend, timers=timers, share_gpus=run.share_gpus,
            timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s,
        )  # fmt: skip

    def preflight(self, comm: Comm, run: AnyRun, flags: Flags) -> Preflight:
        """Compare all ranks before the first step; *collective*."""
        return preflight(comm, run, flags=flags)

    def forecast(self, run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
        """Predict the speed of this world and of one host, or return why not; not collective."""
        return forecast(run, comm, cast(Forecastable, learner), layout, message_s)  # a run in environments

    def tracer(self, comm: Comm) -> TorchTracer:
        """PyTorch's profiler."""
        return TorchTracer(comm.device)

    def devices(self, comm: Comm) -> list[str]:
        """Description of this rank's device."""
        return [describe(comm.device)]

    def peak_memory(self, comm: Comm) -> list[int | None]:
        """The most memory of this rank's GPU that tensors have used so far, in bytes; None on a CPU."""
        return [peak_memory(comm.device)]

    def share_cores(self, run: AnyRun, world: World, policy: AnyPolicy) -> None:
        """Set the number of threads of this rank."""
        share_cores(world, run.minibatch_rows(world) * multiplications(policy))

    def start_from(
        self,
        path: Path,
        comm: Comm,
        policy: AnyPolicy,
        observation_moments: RunningMoments | None,
        critic_moments: Mapping[str, RunningMoments],
        run: AnyRun,
        learner: Learner,
    ) -> list[str]:
        """Load a policy file into the policy and the normalizers, equal on all ranks; *collective*."""
        notes = start_from(path, policy, observation_moments, critic_moments, run)
        comm.broadcast_(policy)
        broadcast_moments(comm, observation_moments, critic_moments)
        return notes

    def player(self, policy: AnyPolicy, comm: Comm, observation_moments: RunningMoments | None) -> Player:
        """The policy for evaluations, always with the newest parameters."""
        return Player(policy.distribution, actor_of(policy, comm.device), observation_moments)

    def restorable(self, learner: Learner, comm: Comm) -> LearnerState:
        """The learner's state for checkpoints."""
        return LearnerState(learner)

    def parameters(self, policy: AnyPolicy) -> dict[str, np.ndarray]:
        """Trained parameters by name, float32."""
        return {name: p.detach().float().cpu().numpy() for name, p in policy.named_parameters()}

    def save(
        self,
        path: Path,
        policy: AnyPolicy,
        observation_moments: RunningMoments | None,
        critic_moments: Mapping[str, RunningMoments],
        run: AnyRun,
        evaluation: EvaluationResult | None,
    ) -> None:
        """Write a policy file atomically."""
        save_policy(path, policy, observation_moments, run, evaluation, critic_moments=critic_moments)

    def dump_error(self, error: BaseException, run_dir: Path, comm: Comm, tensors: Mapping[str, Any]) -> None:
        """Save the tensors or batches of a failed run's error."""
        arrays = {name: torch.as_tensor(tensor).numpy(force=True) for name, tensor in tensors.items()}
        save_debug_dump(error, run_dir, comm.world.rank, arrays)

    def compiler_failure(self, error: BaseException) -> RunError | None:
        """What to report in place of an error of `torch.compile`; None for other errors."""
        return compiler_failure(error)


class Session(BaseSession[SomeRun, Comm, AnyPolicy, Learner]):
    """One run on this rank, as a context manager. Collective throughout."""

    backend = Torch()

    @property
    def envs_on_device(self) -> bool:
        """Whether the environments of the run are on tensors of the learner's device. Equal on all ranks."""
        assert isinstance(self.run, Run)
        return steps_on_device(self.run, self.comm.device)

    def make_tensor_envs(self, num_envs: int) -> list[TensorVectorEnv]:
        """Make the tensor environments of each local shard; closed with the session.

        Args:
            num_envs: over all shards.

        Raises:
            ConfigError: `num_envs` does not divide among the shards.
        """
        device = self.comm.device
        task, config = self.run.task or "", self.run.env
        self.journal.say(f"environments on torch tensors, on {device.type} (env.placement)")
        return self._make_shards(num_envs, lambda size: make_tensor_env(task, config, size, device))
