"""The ten seams of data-parallel learning (docs/flows.md) for PPO, each exercised inside 2 ranks.

Each function takes `(backend, world, folder)` and returns what this rank saw; `backend` is the module `torch_seams` or
`jax_seams`. `test_seams.py` checks the results.
"""

import copy
import dataclasses
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from running import small
from seam_world import ENVS, FAR, SPEC, STEPS, make_rollout, run_listed

from lockstep import World
from lockstep.envs.spec import ActionSpec
from lockstep.run import Run, override
from lockstep.session import session


def config(**changes: Any) -> Run:
    """One update on hand-made rollouts; one gradient step of the whole batch unless told otherwise."""
    base = {
        "num_envs": 2 * ENVS, "num_steps": STEPS, "num_epochs": 1, "num_minibatches": 1, "entropy_coef": 0.01,
        "learning_rate": 1e-3, "learning_rate_schedule": "constant", "max_grad_norm": None,
        "normalize_advantage": False,
    }  # fmt: skip
    return override(small("lockstep/Corridor-v0"), {**base, **changes})


def one_update(backend: Any, world: World, run: Run, **kwargs: Any) -> dict[str, Any]:
    """What an update on the hand-made rollouts did, with the local sums of each gradient step."""
    rollouts, seen = [make_rollout(shard, **kwargs) for shard in world.shards], []
    with backend.ppo_learner(world, run) as ppo:
        backend.record_loss(ppo, seen)
        ppo.update(rollouts, np.zeros((len(rollouts), 1)))
        return {
            **backend.ppo_state(ppo),
            "messages": dict(ppo.comm.num_messages),
            "observations": ppo.normalizers.observations and ppo.normalizers.observations.state(),
            "returns": ppo.normalizers.returns and ppo.normalizers.returns.state(),
            "targets": ppo.normalizers.values and ppo.normalizers.values.state(),
            "seen": seen,
        }


def start_equal(backend: Any, world: World, folder: str) -> dict[str, Any]:
    with backend.ppo_learner(world, config(), seed=world.rank) as ppo:
        return backend.ppo_networks(ppo)


def broadcast(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """A torch module with parameters and buffers that differ by rank."""
    return backend.broadcast_module(world)


def initialized_from(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Every rank finds another policy file: the files of two hosts, say."""
    from lockstep.experience.normalize import RunningMoments

    normalized = {"normalize_observation": True, "normalize_value": True, "normalize_return": True}
    run = small("rank_envs:Ticking", total_steps=128, **normalized, **{"env.kwargs": {"lengths": [4, 4]}})

    def moments(size: int) -> RunningMoments:
        one = RunningMoments(size)
        one.update(np.array([10.0, *[10.0 * (1 + world.rank)] * size, *[1000.0] * size]))
        return one

    home = Path(folder).parent
    spec = dataclasses.replace(SPEC, action=ActionSpec("discrete", (2,)))
    policy = backend.ppo.Policy(spec, run.network, seed=world.rank)
    of_critic = {"returns": moments(1), "values": moments(1)}
    file = home / f"policy_{world.rank}.safetensors"
    backend.save_policy(file, policy, moments(3), run, critic_moments=of_critic)
    names = tuple(str(home / f"policy_{r}.safetensors") for r in range(world.size))
    outcome = backend.train(world, folder, run, init_from=names)
    return {"error": outcome.error, "fingerprint": outcome.summary.get("params_fingerprint")}


def gradient_mean(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(max_grad_norm=0.5))


def symmetry_weights(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Two copies of each row, equal to it."""
    return one_update(backend, world, config(symmetry=f"{backend.__name__}:copied"))


def statistics_in_the_loss(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(normalize_advantage=True))


def running_statistics(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(normalize_observation=True, normalize_return=True))


def critic_statistics(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """The last number of the observations is of the critic's own."""
    spec = dataclasses.replace(SPEC, observation_size=SPEC.observation_size - 1, critic_size=1)
    run, rollouts = config(normalize_observation=True), [make_rollout(shard) for shard in world.shards]
    with backend.ppo_learner(world, run, spec=spec) as ppo:
        ppo.update(rollouts, np.zeros((len(rollouts), 1)))
        named = {name: moments.state() for name, moments in ppo.normalizers.named().items()}
        return {"named": named, "values": backend.ppo_state(ppo)["values"]}


def value_statistics(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(normalize_value=True))


def far_statistics(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(normalize_observation=True, normalize_return=True), far=FAR)


def reset_rows(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Three updates: the environments of shard 0 only reset themselves, then those of both shards, then none."""
    stages: list[dict[str, Any]] = []
    changes = {"normalize_observation": True, "normalize_return": True, "normalize_advantage": True}
    with backend.ppo_learner(world, config(num_epochs=2, num_minibatches=4, **changes)) as ppo:
        for resetting in ((0,), (0, 1), ()):
            rollouts = [make_rollout(shard) for shard in world.shards]
            for shard, rollout in zip(world.shards, rollouts, strict=True):
                rollout.weight[:] *= shard not in resetting
            ppo.comm.num_messages.clear()
            ppo.update(rollouts, np.zeros((len(rollouts), 1)))
            stages.append({
                **backend.ppo_state(ppo),
                "observations": {name: array.copy() for name, array in ppo.normalizers.observations.state().items()},
                "messages": {tag: ppo.comm.num_messages[tag] for tag in ("moments", "average_gradients")},
            })  # fmt: skip
    return {"stages": stages}


def stop_on_kl(backend: Any, world: World, folder: str) -> dict[str, Any]:
    run = config(num_epochs=12, num_minibatches=2, learning_rate=3e-3, target_kl=0.01, normalize_advantage=True)
    return one_update(backend, world, run, unlike=8.0)


def adaptive_rate(backend: Any, world: World, folder: str) -> dict[str, Any]:
    run = config(
        num_epochs=6, num_minibatches=2, learning_rate_schedule="adaptive", desired_kl=0.01, learning_rate=3e-3,
        normalize_advantage=True,
    )  # fmt: skip
    return one_update(backend, world, run, unlike=8.0)


def adaptive_rate_of_minibatches(backend: Any, world: World, folder: str) -> dict[str, Any]:
    run = config(
        num_epochs=3, num_minibatches=4, learning_rate_schedule="adaptive", desired_kl=0.01, learning_rate=3e-3,
        normalize_advantage=True, adapt_every="minibatch",
    )  # fmt: skip
    return one_update(backend, world, run, unlike=8.0)


def train_ticking(backend: Any, world: World, folder: str, **changes: Any) -> dict[str, Any]:
    """A whole run with an environment that is not alike on the two ranks."""
    kwargs = {"env.kwargs": changes.pop("env")}
    bounds = {"timeout_s": backend.RUN_BOUND_S}
    run = small("rank_envs:Ticking", total_steps=6 * 128, log_every=128, **bounds, **kwargs, **changes)
    outcome = backend.train(world, folder, run)
    keys = ("status", "env_steps", "updates", "episodes", "eval_return_mean", "eval_episodes", "solved_at_step")
    summary = {key: outcome.summary.get(key) for key in keys}
    return {"error": outcome.error, "summary": summary, "steps": outcome.counts["steps"], "folder": folder}


def solved_by_all(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Rank 0 alone would call the task solved after every evaluation, the two together never."""
    env = {"rewards": [2.0, 0.0], "lengths": [1, 1]}
    return train_ticking(backend, world, folder, env=env, stop_return=1.5, stop_when_solved=True, evaluate_every=128)


def signal_stops_all(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return train_ticking(backend, world, folder, env={"signal_at": 3 * 8 + 2})


def no_episode_weighs_nothing(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return train_ticking(backend, world, folder, env={"lengths": [4, 60]})


def seeds(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Which random numbers lie before this rank: those of its environments, its exploration and its minibatches."""
    ppo, kept = backend.ppo, {}

    class KeptPPO(ppo.PPO):
        def __init__(self, run: Run, policy: Any, comm: Any) -> None:
            kept["init"] = backend.parameters(policy)
            super().__init__(run, policy, comm)
            orders = getattr(self, "_orders", self)  # of torch
            kept["minibatch"] = [ahead(s) for s in orders._streams]

    class KeptCollector(session.Collector):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept["action"] = [ahead(s) for streams in self._noise_streams for s in streams]

    def ahead(generator: np.random.Generator) -> list[int]:
        return copy.deepcopy(generator.bit_generator).random_raw(2000).tolist()

    run = small("rank_envs:Ticking", total_steps=128, num_shards=2, **{"env.kwargs": {"lengths": [4, 4]}})
    with mock.patch.object(ppo, "PPO", KeptPPO), mock.patch.object(session, "Collector", KeptCollector):
        outcome = backend.train(world, folder, run)
    return {**kept, "env": outcome.env_seeds, "error": outcome.error}


def files(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """A whole run, and which of its files this rank opens for writing, makes or renames."""
    touched: list[str] = []

    def audit(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.rename", "os.remove"):
            path = os.fspath(args[0]) if isinstance(args[0], str | os.PathLike) else ""
            if str(path).startswith(folder + "/"):
                touched.append(f"{event} {path}")

    sys.addaudithook(audit)
    run = train_ticking(backend, world, folder, env={"lengths": [2, 8]}, evaluate_every=128 * 3)
    return {"touched": touched, **run}


def data_shards(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_update(backend, world, config(num_epochs=3, num_minibatches=4))


SEAMS = [
    start_equal, broadcast, initialized_from, gradient_mean, symmetry_weights, statistics_in_the_loss,
    running_statistics, critic_statistics, value_statistics, far_statistics, reset_rows, stop_on_kl, adaptive_rate,
    adaptive_rate_of_minibatches, solved_by_all, signal_stops_all, no_episode_weighs_nothing, seeds, files, data_shards,
]  # fmt: skip


def run_seams(rank: int, backend_name: str, ports: dict[str, int], folder: str) -> dict[str, Any]:
    backend = import_module(f"{backend_name}_seams")
    backend.prepare(rank)
    return run_listed(SEAMS, rank, ports, folder, backend)
