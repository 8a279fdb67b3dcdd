"""What surrounds an algorithm's loop in JAX: `lockstep.session.session`, with what JAX does in its own way."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from lockstep.distributed.timers import Timers
from lockstep.envs.make import env_spec
from lockstep.errors import MismatchError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax import hardware
from lockstep.jax.comm import Comm
from lockstep.jax.encoders import make_encoder
from lockstep.jax.export import AnyPolicy, save_policy, start_from
from lockstep.jax.networks import actor_of
from lockstep.jax.preflight import preflight
from lockstep.jax.state import InArrays, Learner
from lockstep.preflight.compare import Forecast, Preflight
from lockstep.preflight.cost_model import Layout
from lockstep.run import AnyRun, Run
from lockstep.session.debug_dump import save_debug_dump
from lockstep.session.evaluation import Player
from lockstep.session.session import BaseSession
from lockstep.world import World

_STRIDES = 64
"""Pixels of an image for each place that a convolution looks at, as far as an order of magnitude goes."""


class Jax:
    """The `Backend` of JAX: a process drives one device or several, and each is a rank."""

    def open(self, run: AnyRun, world: World, timers: Timers) -> Comm:
        """Fix what must be fixed before JAX is first used, and make the collectives; not yet entered."""
        hardware.pin(run, world)
        if not world.pinned and world.local_size == 1 and isinstance(run, Run):
            hardware.share_cores(world, run.minibatch_rows(world) * _multiplications(run))
        else:
            hardware.share_cores(world, 0)
        return Comm(
            world, device=run.device, backend=run.backend, devices_per_process=run.devices_per_process, timers=timers,
            timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s,
        )  # fmt: skip

    def preflight(self, comm: Comm, run: AnyRun) -> Preflight:
        """Compare all ranks before the first step; *collective*."""
        return preflight(comm, run)

    def forecast(self, run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
        """There is none: the work of JAX's learners is not measured ahead."""
        return "no prediction: only the work of torch's learners is measured ahead"

    def devices(self, comm: Comm) -> list[str]:
        """Where each rank of this process computes, in words."""
        return [hardware.describe([device]) for device in comm.devices]

    def share_cores(self, run: AnyRun, world: World, policy: AnyPolicy) -> None:
        """Nothing any more: `open` did, since JAX runs by now."""

    def start_from(
        self, path: Path, comm: Comm, policy: AnyPolicy, observations: RunningMoments | None, learner: Learner
    ) -> None:
        """Begin with the parameters and the normalizer of a policy file, equal on all ranks; *collective*."""
        start_from(path, policy, observations)
        found: Mapping[str, np.ndarray] = comm.read(comm.broadcast(policy.params))
        shared = learner.shared_arrays() | {f"policy.{name}": array for name, array in found.items()}
        if observations is not None:
            observations.restore(comm.broadcast_object(observations.state()))
            shared |= {f"observations.{name}": array for name, array in observations.state().items()}
        learner.load_shared(shared)

    def player(self, policy: AnyPolicy, comm: Comm, observations: RunningMoments | None) -> Player:
        """What an evaluation plays: always the newest parameters."""
        return Player(policy.sampler, actor_of(policy, comm.devices[0]), observations)

    def restorable(self, learner: Learner, comm: Comm) -> InArrays:
        """What a checkpoint takes of a learner."""
        return InArrays(learner, comm)

    def parameters(self, policy: AnyPolicy) -> dict[str, np.ndarray]:
        """What was trained, float32, by name."""
        return {name: np.asarray(array, np.float32) for name, array in policy.params.items()}

    def save(self, path: Path, policy: AnyPolicy, observations: RunningMoments | None, run: AnyRun) -> None:
        """Write a policy file, whole or not at all."""
        save_policy(path, policy, observations, run)

    def leave(self, error: BaseException, run_dir: Path, comm: Comm, tensors: Mapping[str, Any]) -> None:
        """Leave for inspection what a failed run's error speaks of; each device as the rank that it is."""
        devices = comm.devices if isinstance(error, MismatchError) else comm.devices[:1]
        for d, device in enumerate(devices):
            held = {name: _copy(tensor, device) for name, tensor in tensors.items()}
            save_debug_dump(error, run_dir, comm.world.rank * len(comm.devices) + d, held)


class Session(BaseSession[Run, Comm, AnyPolicy, Learner]):
    """One run on this process, as a context manager. Collective throughout."""

    backend = Jax()


def _copy(tensor: np.ndarray | Array, device: Any) -> np.ndarray:
    """What a local device holds of it."""
    if isinstance(tensor, Array):  # `addressable_data` gives the first copy of any array that is meant to be the same
        return np.asarray(next(part.data for part in tensor.addressable_shards if part.device == device))
    return tensor


def _multiplications(run: Run) -> int:
    """About how many multiplications a row takes; 0, for one thread, where only the user's own network would know."""
    if run.network.module is not None:
        return 0
    spec = env_spec(run.task, run.env)
    encoder = make_encoder(spec, run.network)
    places = 1 if spec.image is None else math.prod(spec.image[1:]) // _STRIDES
    shapes: list[tuple[int, ...]] = [*encoder.shapes, getattr(encoder, "linear", None) or (0,)]
    return sum(math.prod(shape) * (places if len(shape) == 4 else 1) for shape in shapes)
