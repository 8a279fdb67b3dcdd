"""The ten seams of data-parallel learning (docs/house.md), each exercised inside 2 ranks. `test_seams.py` judges.

Each function takes `(world, folder)` and returns what this rank saw.
"""

import copy
import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from running import Job, small, train_one
from seam_world import BOUND_S, ENVS, FAR, SPEC, STEPS, make_rollout, run_listed
from torch import nn

from lockstep import World
from lockstep.envs.spec import ActionSpec
from lockstep.run import Run, override
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO


def config(**changes: Any) -> Run:
    """One update on hand-made rollouts; one gradient step of the whole batch unless told otherwise."""
    base = {
        "num_envs": 2 * ENVS, "num_steps": STEPS, "num_epochs": 1, "num_minibatches": 1, "entropy_coef": 0.01,
        "learning_rate": 1e-3, "learning_rate_schedule": "constant", "max_grad_norm": None,
        "normalize_advantage": False,
    }  # fmt: skip
    return override(small("lockstep/Corridor-v0"), {**base, **changes})


@contextmanager
def learner(world: World, run: Run, policy_seed: int = 0) -> Iterator[PPO]:
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield PPO(run, Policy(SPEC, run.network, seed=policy_seed), comm)


def one_update(world: World, run: Run, **kwargs: Any) -> dict[str, Any]:
    """What an update on the hand-made rollouts did, with the local sums of each gradient step."""
    rollouts, seen = [make_rollout(shard, **kwargs) for shard in world.shards], []
    with learner(world, run) as ppo:
        loss = ppo._loss

        def keep(part: Any) -> Any:
            value, sums = loss(part)
            seen.append({"sums": sums.tolist(), "ids": part.observation[:, 0].tolist()})
            return value, sums

        ppo._loss = keep
        ppo.update(rollouts, np.zeros((len(rollouts), 1)))
        return {
            "gradient": ppo.flat.gradient.numpy().copy(),
            "learning_rate": float(ppo.learning_rate),
            "messages": dict(ppo.comm.num_messages),
            "observations": ppo.observations and ppo.observations.state(),
            "returns": ppo.returns and ppo.returns.state(),
            "seen": seen,
            "metrics": ppo.metrics.read(),
        }


def start_equal(world: World, folder: str) -> dict[str, Any]:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), float(world.rank)))
            self.register_buffer("mean", torch.full((3,), float(world.rank)))
            self.register_buffer("count", torch.tensor(world.rank))

    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        run = config()
        policy = Policy(SPEC, run.network, seed=world.rank)
        PPO(run, policy, comm)
        module = Buffered()
        comm.broadcast_(module)
    return {
        "policy": {name: p.detach().numpy() for name, p in policy.named_parameters()},
        "module": {name: t.detach().numpy() for name, t in module.state_dict().items()},
    }


def initialized_from(world: World, folder: str) -> dict[str, Any]:
    """Every rank finds another policy file: the files of two hosts, say."""
    from lockstep.experience.normalize import RunningMoments
    from lockstep.torch.export import save_policy

    run = small("rank_envs:Ticking", normalize_observation=True, total_steps=128, **{"env.kwargs": {"lengths": [4, 4]}})
    moments = RunningMoments(3)
    moments.update(np.array([10.0, *[10.0 * (1 + world.rank)] * 3, *[1000.0] * 3]))
    home = Path(folder).parent
    spec = dataclasses.replace(SPEC, action=ActionSpec("discrete", (2,)))
    save_policy(home / f"policy_{world.rank}.safetensors", Policy(spec, run.network, seed=world.rank), moments, run)
    names = tuple(str(home / f"policy_{r}.safetensors") for r in range(world.size))
    outcome = train_one(world.rank, Job(run, folder, world.port, init_from=names))
    return {"error": outcome.error, "fingerprint": outcome.summary.get("params_fingerprint")}


def gradient_mean(world: World, folder: str) -> dict[str, Any]:
    return one_update(world, config(max_grad_norm=0.5))


def statistics_in_the_loss(world: World, folder: str) -> dict[str, Any]:
    return one_update(world, config(normalize_advantage=True))


def running_statistics(world: World, folder: str) -> dict[str, Any]:
    return one_update(world, config(normalize_observation=True, normalize_return=True))


def far_statistics(world: World, folder: str) -> dict[str, Any]:
    return one_update(world, config(normalize_observation=True, normalize_return=True), far=FAR)


def reset_rows(world: World, folder: str) -> dict[str, Any]:
    """Three updates: the environments of shard 0 only reset themselves, then those of both shards, then none."""
    stages: list[dict[str, Any]] = []
    changes = {"normalize_observation": True, "normalize_return": True, "normalize_advantage": True}
    with learner(world, config(num_epochs=2, num_minibatches=4, **changes)) as ppo:
        for resetting in ((0,), (0, 1), ()):
            rollouts = [make_rollout(shard) for shard in world.shards]
            for shard, rollout in zip(world.shards, rollouts, strict=True):
                rollout.weight[:] *= shard not in resetting
            ppo.comm.num_messages.clear()
            ppo.update(rollouts, np.zeros((len(rollouts), 1)))
            stages.append({
                "values": ppo.flat.values.detach().numpy().copy(),
                "steps": float(ppo.optimizer.steps),
                "observations": {name: array.copy() for name, array in ppo.observations.state().items()},
                "messages": {tag: ppo.comm.num_messages[tag] for tag in ("moments", "average_gradients")},
                "metrics": ppo.metrics.read(),
            })  # fmt: skip
    return {"stages": stages}


def stop_on_kl(world: World, folder: str) -> dict[str, Any]:
    run = config(num_epochs=12, num_minibatches=2, learning_rate=3e-3, target_kl=0.01, normalize_advantage=True)
    return one_update(world, run, unlike=8.0)


def adaptive_rate(world: World, folder: str) -> dict[str, Any]:
    run = config(
        num_epochs=6, num_minibatches=2, learning_rate_schedule="adaptive", desired_kl=0.01, learning_rate=3e-3,
        normalize_advantage=True,
    )  # fmt: skip
    return one_update(world, run, unlike=8.0)


def train_ticking(world: World, folder: str, *, port: int | None = None, **changes: Any) -> dict[str, Any]:
    """A whole run with an environment that is not alike on the two ranks."""
    kwargs = {"env.kwargs": changes.pop("env")}
    run = small("rank_envs:Ticking", total_steps=6 * 128, timeout_s=BOUND_S, log_every=128, **kwargs, **changes)
    outcome = train_one(world.rank, Job(run, folder, port or world.port))
    keys = ("status", "env_steps", "updates", "episodes", "eval_return_mean", "eval_episodes", "solved_at_step")
    summary = {key: outcome.summary.get(key) for key in keys}
    return {"error": outcome.error, "summary": summary, "steps": outcome.counts["steps"], "folder": folder}


def solved_by_all(world: World, folder: str) -> dict[str, Any]:
    """Rank 0 alone would call the task solved after every evaluation, the two together never."""
    env = {"rewards": [2.0, 0.0], "lengths": [1, 1]}
    return train_ticking(world, folder, env=env, stop_return=1.5, stop_when_solved=True, evaluate_every=128)


def signal_stops_all(world: World, folder: str) -> dict[str, Any]:
    return train_ticking(world, folder, env={"signal_at": 3 * 8 + 2})


def metrics_are_sums(world: World, folder: str) -> dict[str, Any]:
    return train_ticking(world, folder, env={"lengths": [2, 8]})


def no_episode_weighs_nothing(world: World, folder: str) -> dict[str, Any]:
    return train_ticking(world, folder, env={"lengths": [4, 60]})


def seeds(world: World, folder: str) -> dict[str, Any]:
    """Which random numbers lie before this rank: those of its environments, its exploration and its minibatches."""
    from lockstep.torch import ppo

    kept: dict[str, Any] = {}

    class KeptPPO(PPO):
        def __init__(self, run: Run, policy: Policy, comm: Comm) -> None:
            kept["init"] = {name: p.detach().numpy().copy() for name, p in policy.named_parameters()}
            super().__init__(run, policy, comm)
            kept["minibatch"] = [ahead(s) for s in self._streams]

    class KeptCollector(ppo.Collector):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept["action"] = [ahead(s) for streams in self._noise_streams for s in streams]

    def ahead(generator: np.random.Generator) -> list[int]:
        return copy.deepcopy(generator.bit_generator).random_raw(2000).tolist()

    run = small("rank_envs:Ticking", total_steps=128, num_shards=2, **{"env.kwargs": {"lengths": [4, 4]}})
    with mock.patch.object(ppo, "PPO", KeptPPO), mock.patch.object(ppo, "Collector", KeptCollector):
        outcome = train_one(world.rank, Job(run, folder, world.port))
    return {**kept, "env": outcome.env_seeds, "error": outcome.error}


def files(world: World, folder: str) -> dict[str, Any]:
    """Which files of the run this rank opens for writing, makes or renames."""
    from lockstep.torch import session

    touched: list[str] = []

    def audit(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.rename", "os.remove"):
            path = os.fspath(args[0]) if isinstance(args[0], str | os.PathLike) else ""
            if str(path).startswith(folder + "/"):
                touched.append(f"{event} {path}")

    def save(path: Path, *args: Any) -> None:
        touched.append(f"save_policy {path}")
        real_save(path, *args)

    real_save = session.save_policy
    sys.addaudithook(audit)
    with mock.patch.object(session, "save_policy", save):
        told = train_ticking(world, folder, env={"lengths": [2, 8]}, evaluate_every=128 * 3)
    return {"touched": touched, **told}


def data_shards(world: World, folder: str) -> dict[str, Any]:
    return one_update(world, config(num_epochs=3, num_minibatches=4))


SEAMS = [
    start_equal, initialized_from, gradient_mean, statistics_in_the_loss, running_statistics, far_statistics,
    reset_rows, stop_on_kl, adaptive_rate,
    solved_by_all, signal_stops_all, metrics_are_sums, no_episode_weighs_nothing, seeds, files, data_shards,
]  # fmt: skip


def run_seams(rank: int, ports: dict[str, int], folder: str) -> dict[str, Any]:
    return run_listed(SEAMS, rank, ports, folder)
