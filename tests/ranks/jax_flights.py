"""Called inside processes by `test_jax_session_on_ranks.py`: runs on several devices, ranks that differ, restarts."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from jax_compiled import keep_compiled

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.jax import preflight
from lockstep.jax.comm import Comm
from lockstep.jax.session import Session
from lockstep.preflight import identity as identity
from lockstep.run import NetworkConfig, Run
from lockstep.train import train

RUN = Run(
    task="lockstep/Corridor-v0",
    ml_framework="jax",
    device="cpu",
    num_envs=16,
    num_shards=4,
    total_steps=16 * 8 * 2,
    algorithm=PPOConfig(num_steps=8, num_epochs=1, num_minibatches=2, learning_rate_schedule="constant"),
    network=NetworkConfig(hidden=(8,)),
    evaluate_every=None,
    evaluate_episodes=8,
    stop_when_solved=False,
    timeout_s=30.0,
    startup_timeout_s=120.0,
)


def preflights(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """What the preflight says where rank 1 has another version of jaxlib, or another config, and where nothing is."""
    told: dict[str, Any] = {}
    real = identity.version
    other = {
        "version": mock.patch.object(identity, "version", lambda name: "0.0.1" if name == "jaxlib" else real(name)),
        "torch": mock.patch.object(identity, "version", lambda name: "0.0.1" if name == "torch" else real(name)),
    }
    for name, port in ports.items():
        run = replace(RUN, seed=5) if name == "config" and rank == 1 else RUN
        around = other.get(name) if rank == 1 else None
        with around or mock.MagicMock(), Comm(World(rank=rank, size=2, port=port), device="cpu", timeout_s=20) as comm:
            try:
                told[name] = preflight.preflight(comm, run).to_dict()
            except Exception as error:
                told[name] = f"{type(error).__name__}: {error}"
    return told


def trained(
    rank: int, port: int, folder: str, changes: dict[str, Any], resume: bool, start_record: str
) -> dict[str, Any]:
    """A run of the processes that were spawned."""
    keep_compiled(rank, changes.get("devices_per_process", 1))
    world = World(rank=rank, size=int(os.environ["WORLD_SIZE"]), port=port, launcher="test" if start_record else "none")
    variables = {"LOCKSTEP_START_RECORD": start_record} if start_record else {}
    with mock.patch.dict(os.environ, variables):
        return train(replace(RUN, **changes), world=world, **{"resume" if resume else "run_dir": folder})


def differs(rank: int, port: int, folder: str) -> str:
    """A run of two processes in which the parameters of the second go off."""
    from lockstep.jax import ppo
    from lockstep.jax.ppo import PPO

    def spoiling(self: PPO, *args: Any) -> Any:
        told = update(self, *args)
        if rank == 1:
            arrays = self.shared_arrays()
            name = next(name for name in sorted(arrays) if name.startswith("policy."))
            self.load_shared(arrays | {name: arrays[name] + 1})
        return told

    keep_compiled(rank)
    update, run = PPO.update, replace(RUN, check_every=1)
    with mock.patch.object(PPO, "update", spoiling):
        try:
            with Session(run, World(rank=rank, size=2, port=port), run_dir=folder) as session:
                ppo.train(session)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def starts(rank: int, port: int, folder: str, files: list[str]) -> dict[str, Any]:
    """A run of two processes, each told of another policy file: what they begin with."""
    from lockstep.jax.networks import Policy
    from lockstep.jax.ppo import PPO

    keep_compiled(rank)
    run = replace(RUN, algorithm=replace(RUN.algorithm, normalize_observation=True))
    with Session(run, World(rank=rank, size=2, port=port), run_dir=folder, init_from=Path(files[rank])) as session:
        learner = PPO(run, Policy(session.spec, run.network), session.comm)
        session.begin(learner.policy, learner, observation_moments=learner.normalizers.observations)
        held = {f"held.{name}": np.asarray(array) for name, array in learner.policy.params.items()}
        moments = {f"normalizer.{name}": array for name, array in learner.normalizers.observations.state().items()}
        return learner.shared_arrays() | held | moments
