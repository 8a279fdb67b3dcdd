"""The session of a training run in JAX: `lockstep.session.session` with JAX's backend."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from lockstep.distributed.timers import Timers
from lockstep.envs.dlpack import DLPackEnv
from lockstep.envs.make import env_spec, reads_tensors, torch_module
from lockstep.errors import MismatchError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax import hardware
from lockstep.jax.comm import Comm
from lockstep.jax.encoders import Convolutions, ImagesAndNumbers, Impala, Mlp, make_encoder
from lockstep.jax.export import save_policy, start_from
from lockstep.jax.networks import AnyPolicy, actor_of
from lockstep.jax.preflight import preflight
from lockstep.jax.state import Learner, LearnerState
from lockstep.jax.tracer import JaxTracer
from lockstep.preflight.compare import Flags, Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.record.evaluations import EvaluationResult
from lockstep.run import AnyRun, Run
from lockstep.session.debug_dump import save_debug_dump
from lockstep.session.evaluation import Player
from lockstep.session.normalizers import broadcast_moments
from lockstep.session.session import BaseSession
from lockstep.world import World

_STRIDES = 64
"""Pixels per output position of a convolution, as an order of magnitude."""


class Jax:
    """The `Backend` of JAX: a process drives one or several devices, each of which is a rank."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> Comm:
        """Set threads and flags before JAX is first used, and return the collectives, not yet entered."""
        hardware.pin(run, world)
        if isinstance(run, Run) and run.algo == "ppo" and reads_tensors(run.task, run.env):
            # The simulator needs memory of the same GPU.
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if not world.pinned and world.local_size == 1 and isinstance(run, Run):
            hardware.share_cores(world, run.minibatch_rows(world) * _multiplications(run))
        else:
            hardware.share_cores(world, 0)
        return Comm(
            world, device=run.device, backend=run.backend, devices_per_process=run.devices_per_process, timers=timers,
            timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s,
        )  # fmt: skip

    def preflight(self, comm: Comm, run: AnyRun, flags: Flags) -> Preflight:
        """Compare all ranks before the first step; *collective*."""
        return preflight(comm, run, flags=flags)

    def forecast(self, run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
        """Not available for JAX."""
        return "no prediction: only the work of torch's learners is measured ahead"

    def tracer(self, comm: Comm) -> JaxTracer:
        """JAX's profiler."""
        return JaxTracer()

    def devices(self, comm: Comm) -> list[str]:
        """The device of each rank of this process, for display."""
        return [hardware.describe([device]) for device in comm.devices]

    def peak_memory(self, comm: Comm) -> list[int | None]:
        """The most memory that each GPU of this process has used so far, in bytes; None on CPUs."""
        return [hardware.peak_memory(device) for device in comm.devices]

    def share_cores(self, run: AnyRun, world: World, policy: AnyPolicy) -> None:
        """A no-op: `open` shares the cores, because JAX is in use by now."""

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
        """Load parameters and normalizers from a policy file, equal on all ranks; *collective*."""
        notes = start_from(path, policy, observation_moments, critic_moments, run)
        params: Mapping[str, np.ndarray] = comm.read(comm.broadcast(policy.params))
        shared = learner.shared_arrays() | {f"policy.{name}": array for name, array in params.items()}
        learner.load_shared(shared | broadcast_moments(comm, observation_moments, critic_moments))
        return notes

    def player(self, policy: AnyPolicy, comm: Comm, observation_moments: RunningMoments | None) -> Player:
        """The player for evaluations, with the current parameters."""
        return Player(policy.sampler, actor_of(policy, comm.devices[0]), observation_moments)

    def restorable(self, learner: Learner, comm: Comm) -> LearnerState:
        """The learner as checkpoints save it."""
        return LearnerState(learner, comm)

    def parameters(self, policy: AnyPolicy) -> dict[str, np.ndarray]:
        """The trained parameters by name, float32."""
        return {name: np.asarray(array, np.float32) for name, array in policy.params.items()}

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
        """Save a debug dump of the arrays that a failed run's error refers to, one per device."""
        devices = comm.devices if isinstance(error, MismatchError) else comm.devices[:1]
        for d, device in enumerate(devices):
            copies = {name: _copy(tensor, device) for name, tensor in tensors.items()}
            save_debug_dump(error, run_dir, comm.world.rank * len(comm.devices) + d, copies)

    def compiler_failure(self, error: BaseException) -> None:
        """None: XLA compiles within this process, and its errors are reported as they are."""


class Session(BaseSession[Run, Comm, AnyPolicy, Learner]):
    """One run on this process, as a context manager. Collective throughout."""

    backend = Jax()

    def make_tensor_envs(self, num_envs: int) -> list[DLPackEnv]:
        """Make the environments on torch tensors of each local shard; closed with the session.

        Those of all shards are on the device of torch that is this process' first one, or on the CPU.

        Args:
            num_envs: over all shards.

        Raises:
            ConfigError: `num_envs` does not divide among the shards.
        """
        run, device = self.run, self.comm.devices[0]
        module = torch_module("dlpack", run.task)
        make, kind = module.maker(run.task, run.env, device.platform, device.local_hardware_id)
        line = f"environments on torch tensors, on {kind}"
        if kind == "cpu" and device.platform != "cpu":
            line += f", copied to JAX's {device.platform} because torch has no such device here"
        self.journal.say(f"{line} (env.placement)")
        return self._make_shards(num_envs, make)


def _copy(tensor: np.ndarray | Array, device: Any) -> np.ndarray:
    if isinstance(tensor, Array):  # `addressable_data` would return the first device's copy of a replicated array
        return np.asarray(next(part.data for part in tensor.addressable_shards if part.device == device))
    return tensor


def _multiplications(run: Run) -> int:
    """Approximate multiplications per row; 0, which means one thread, for a user-defined network."""
    if run.network.module is not None:
        return 0
    spec = env_spec(run.task, run.env)
    encoder = make_encoder(spec, run.network)
    if isinstance(encoder, ImagesAndNumbers):
        pairs = zip(encoder.encoders, encoder.parts, strict=True)
        return sum(_multiplications_of(one, part.shape) for one, part in pairs)
    return _multiplications_of(encoder, spec.image)


def _multiplications_of(encoder: Mlp | Convolutions | Impala, image: tuple[int, int, int] | None) -> int:
    places = 1 if image is None else math.prod(image[1:]) // _STRIDES
    shapes: list[tuple[int, ...]] = [*encoder.shapes, getattr(encoder, "linear", None) or (0,)]
    return sum(math.prod(shape) * (places if len(shape) == 4 else 1) for shape in shapes)
