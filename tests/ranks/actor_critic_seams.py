"""The ten seams of data-parallel learning (docs/flows.md) for SAC and TD3, each exercised inside 2 ranks.

Each function takes `(backend, world, folder)` and returns what this rank saw; `backend` is the module `torch_seams` or
`jax_seams`. `test_actor_critic_seams.py` checks the results. Seams of the session are those of `dqn_seams.py`.
"""

import dataclasses
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from running import small_actor_critic
from seam_world import ENVS, SIZE, STEPS, first_gradient_step, make_rollout, run_listed

from lockstep import World, stream
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.run import Run
from lockstep.session import session

ROWS = 2 * ENVS * STEPS  # environment steps of one hand-made rollout, both shards together
BOUNDS = (-2.0, 0.0), (2.0, 1.0)
SPEC = EnvSpec(SIZE, ActionSpec("continuous", (2,), *BOUNDS), "next_step", True)


def config(algo: str = "sac", **changes: Any) -> Run:
    """One gradient step on a replay of hand-made rollouts."""
    base = {
        "num_envs": 2 * ENVS, "num_steps": STEPS, "batch_size": 32, "capacity": 4 * ROWS, "learning_starts": 1,
        "updates_per_step": 1 / ROWS, "n_step": 2, "prioritized": False, "importance_exponent": 1.0, "policy_delay": 1,
    }  # fmt: skip
    return small_actor_critic(algo, "unused", **{**base, **changes})


def continuous_rollout(shard: int) -> Rollout:
    """The hand-made rollout with actions within the bounds; shard 1 acts otherwise."""
    rollout = make_rollout(shard)
    low, high = np.array(BOUNDS)
    middle = stream(0, "seam action", shard).beta(1 + 3 * shard, 2, (STEPS, ENVS, 2))
    return dataclasses.replace(rollout, action=(low + (high - low) * middle).astype(np.float32))


def one_step(backend: Any, world: World, run: Run, priorities: bool = False) -> dict[str, Any]:
    """The first gradient step on the hand-made rollouts: what each rank drew for it, and its gradient."""
    drawn: list[dict[str, np.ndarray]] = []
    with backend.actor_critic_learner(world, run, SPEC) as learner:
        make_noise = learner.replays.noise

        def noise(*shape: int) -> list[np.ndarray]:
            made = make_noise(*shape)
            for part, one in zip(drawn[-len(made) :], made, strict=True):
                part["noise"] = one.copy()
            return made

        learner.replays.noise = noise
        first_gradient_step(learner, world, continuous_rollout, drawn, priorities=priorities)
        return {
            "gradient": backend.actor_critic_gradient(learner),
            "drawn": drawn,
            "size": learner.replays.buffers[0].size,
            "metrics": learner.metrics.read(),
        }


def start_equal(backend: Any, world: World, folder: str) -> dict[str, Any]:
    with backend.actor_critic_learner(world, config(), SPEC, seed=world.rank) as learner:
        return backend.actor_critic_networks(learner)


def gradient_mean(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(max_grad_norm=0.01))


def td3_gradient_mean(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config("td3", max_grad_norm=0.01))


def importance_weights(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(prioritized=True), priorities=True)


def data_shards(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(updates_per_step=4 / ROWS))


def begin_together(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Rank 1 has whole episodes at once, rank 0 waits for its eighth reward before it has one transition."""
    settings = {"num_steps": 1, "learning_starts": 32, "n_step": 8, "timeout_s": backend.RUN_BOUND_S}
    kwargs = {"env.kwargs": {"lengths": [40, 1]}}
    run = small_actor_critic("sac", "rank_envs:Pushing", **settings, **kwargs)
    random: list[bool] = []
    steps: list[int] = []
    owner, name = backend.actor_critic_step
    step = getattr(owner, name)

    class Traced(session.Collector):
        def collect(self) -> Any:
            random.append(bool(self._sampler.random))
            steps.append(0)
            return super().collect()

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps[-1] += 1
        return step(self, *args, **kwargs)

    with mock.patch.object(session, "Collector", Traced), mock.patch.object(owner, name, counted):
        outcome = backend.train(world, folder, run)
    return {"error": outcome.error, "summary": outcome.summary, "random": random, "steps": steps, "folder": folder}


def initialized_from(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return started_from_files(backend, world, folder, "sac")


def td3_initialized_from(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return started_from_files(backend, world, folder, "td3")


def started_from_files(backend: Any, world: World, folder: str, algo: str) -> dict[str, Any]:
    """Every rank finds another policy file (on another host, say), and nothing is learned after."""
    algorithm, kept = getattr(backend, algo), {}

    class Kept(getattr(algorithm, algo.upper())):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept["learner"] = self

    settings = {"timeout_s": backend.RUN_BOUND_S, "env.kwargs": {"lengths": [4, 4]}, "learning_starts": 10_000}
    run = small_actor_critic(algo, "rank_envs:Pushing", **settings)
    spec = dataclasses.replace(SPEC, autoreset="same_step", action=ActionSpec("continuous", (1,), (-1.0,), (1.0,)))
    home = Path(folder).parent
    mine = algorithm.ContinuousPolicy(spec, run.network, run.algorithm, seed=100 + world.rank)
    backend.save_policy(home / f"{algo}_{world.rank}.safetensors", mine, None, run)
    names = tuple(str(home / f"{algo}_{r}.safetensors") for r in range(world.size))
    with mock.patch.object(algorithm, algo.upper(), Kept):
        outcome = backend.train(world, folder, run, init_from=names)
    networks = backend.actor_critic_networks(kept["learner"])
    return {"error": outcome.error, **networks, "given": backend.parameters(mine)}


SEAMS = [
    start_equal, initialized_from, td3_initialized_from, gradient_mean, td3_gradient_mean, importance_weights,
    data_shards, begin_together,
]  # fmt: skip


def run_seams(rank: int, backend_name: str, ports: dict[str, int], folder: str) -> dict[str, Any]:
    backend = import_module(f"{backend_name}_seams")
    backend.prepare(rank)
    return run_listed(SEAMS, rank, ports, folder, backend)
