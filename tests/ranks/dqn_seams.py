"""The ten seams of data-parallel learning (docs/flows.md) for DQN, each exercised inside 2 ranks.

Each function takes `(backend, world, folder)` and returns what this rank saw; `backend` is the module `torch_seams` or
`jax_seams`. `test_dqn_seams.py` checks the results.
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
from running import small_dqn
from seam_world import ENVS, SPEC, STEPS, first_gradient_step, make_rollout, run_listed

from lockstep import World
from lockstep.run import Run, override
from lockstep.session import session

ROWS = 2 * ENVS * STEPS  # environment steps of one hand-made rollout, both shards together
TOTAL = 48 * 16
RUN = {"total_steps": TOTAL, "log_every": 128, "num_steps": 1}


def config(**changes: Any) -> Run:
    """One gradient step on a replay of hand-made rollouts."""
    base = {
        "num_envs": 2 * ENVS, "num_steps": STEPS, "batch_size": 32, "capacity": 4 * ROWS, "learning_starts": 1,
        "updates_per_step": 1 / ROWS, "n_step": 2, "max_grad_norm": None, "prioritized": False,
        "importance_exponent": 1.0, "target_update_every": 1000,
    }  # fmt: skip
    return override(small_dqn("lockstep/Corridor-v0"), {**base, **changes})


def one_step(backend: Any, world: World, run: Run, priorities: bool = False) -> dict[str, Any]:
    """The first gradient step on the hand-made rollouts: what each rank drew for it, and the gradient taken."""
    drawn: list[dict[str, np.ndarray]] = []
    with backend.dqn_learner(world, run) as dqn:
        first_gradient_step(dqn, world, make_rollout, drawn, priorities=priorities)
        return {
            "gradient": backend.dqn_gradient(dqn),
            "drawn": drawn,
            "size": dqn.replays.buffers[0].size,
            "metrics": dqn.metrics.read(),
        }


def start_equal(backend: Any, world: World, folder: str) -> dict[str, Any]:
    with backend.dqn_learner(world, config(), seed=world.rank) as dqn:
        return backend.dqn_networks(dqn)


def initialized_from(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Every rank finds another policy file (on another host, say), and nothing is learned after."""
    dqn, kept = backend.dqn, {}

    class Kept(dqn.DQN):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept["dqn"] = self

    settings = {**RUN, "timeout_s": backend.RUN_BOUND_S, "env.kwargs": {"lengths": [4, 4]}}
    run = small_dqn("rank_envs:Ticking", learning_starts=10_000, **settings)
    spec = dataclasses.replace(SPEC, action=dataclasses.replace(SPEC.action, sizes=(2,)), autoreset="same_step")
    home = Path(folder).parent
    mine = dqn.QPolicy(spec, run.network, run.algorithm, seed=100 + world.rank)
    backend.save_policy(home / f"policy_{world.rank}.safetensors", mine, None, run)
    names = tuple(str(home / f"policy_{r}.safetensors") for r in range(world.size))
    with mock.patch.object(dqn, "DQN", Kept):
        outcome = backend.train(world, folder, run, init_from=names)
    return {"error": outcome.error, **backend.dqn_networks(kept["dqn"]), "given": backend.parameters(mine)}


def gradient_mean(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(max_grad_norm=0.5))


def importance_weights(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(prioritized=True), priorities=True)


def ticking(backend: Any, world: World, folder: str, *, env: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole run: the exploration of every rollout, and how many gradient steps came after it."""
    task = changes.pop("task", "rank_envs:Ticking")
    run = small_dqn(task, **{**RUN, "timeout_s": backend.RUN_BOUND_S, "env.kwargs": env, **changes})
    epsilon: list[float] = []
    steps: list[int] = []
    owner, name = backend.gradient_step
    step = getattr(owner, name)

    class Traced(session.Collector):
        def collect(self) -> Any:
            epsilon.append(float(self._sampler.epsilon))
            steps.append(0)
            return super().collect()

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps[-1] += 1
        return step(self, *args, **kwargs)

    with mock.patch.object(session, "Collector", Traced), mock.patch.object(owner, name, counted):
        outcome = backend.train(world, folder, run)
    keys = ("status", "env_steps", "updates", "episodes", "eval_return_mean", "eval_episodes", "solved_at_step")
    summary = {key: outcome.summary.get(key) for key in keys}
    return {
        "error": outcome.error, "summary": summary, "taken": outcome.counts["steps"], "folder": folder,
        "epsilon": epsilon, "steps": steps, "seeds": outcome.env_seeds,
    }  # fmt: skip


def begin_together(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Rank 1 has whole episodes at once, rank 0 waits for its eighth reward before it has one transition."""
    env = {"lengths": [40, 1]}
    return ticking(backend, world, folder, task="rank_envs:Halting", env=env, learning_starts=16, n_step=8)


def exploration(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return ticking(backend, world, folder, env={"lengths": [4, 4]}, epsilon_steps=TOTAL // 2)


def solved_by_all(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Rank 0 alone would call the task solved after every evaluation, the two together never."""
    env = {"rewards": [2.0, 0.0], "lengths": [1, 1]}
    return ticking(backend, world, folder, env=env, stop_return=1.5, stop_when_solved=True, evaluate_every=128)


def signal_stops_all(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return ticking(backend, world, folder, env={"signal_at": 30})


def metrics_are_sums(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return ticking(backend, world, folder, env={"lengths": [2, 8]}, capacity=4096)


def seeds(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Which random numbers lie before this rank: of its environments, its exploration, its noise and its replay."""
    dqn, kept = backend.dqn, {}

    class Kept(dqn.DQN):
        def __init__(self, run: Run, policy: Any, comm: Any) -> None:
            kept["init"] = backend.parameters(policy)
            super().__init__(run, policy, comm)
            kept["replay"] = [ahead(s) for s in self.replays.streams]

    class KeptCollector(session.Collector):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept["action"] = [ahead(s) for streams in self._noise_streams for s in streams]

    def ahead(generator: np.random.Generator) -> list[int]:
        return copy.deepcopy(generator.bit_generator).random_raw(500).tolist()

    settings = {**RUN, "timeout_s": backend.RUN_BOUND_S, "env.kwargs": {"lengths": [4, 4]}}
    run = small_dqn("rank_envs:Ticking", num_shards=2, **settings)
    with mock.patch.object(dqn, "DQN", Kept), mock.patch.object(session, "Collector", KeptCollector):
        outcome = backend.train(world, folder, run)
    return {**kept, "env": outcome.env_seeds, "error": outcome.error}


def files(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Which files this rank opens for writing, makes or renames: those of the run, and those of its replay."""
    touched: list[str] = []
    home = str(Path(folder).parent)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.rename", "os.remove"):
            path = os.fspath(args[0]) if isinstance(args[0], str | os.PathLike) else ""
            if str(path).startswith((folder + "/", home + "/replay")):
                touched.append(f"{event} {path}")

    sys.addaudithook(audit)
    run = ticking(backend, world, folder, env={"lengths": [2, 8]}, evaluate_every=128 * 3, replay_path=f"{home}/replay")
    return {"touched": touched, **run}


def data_shards(backend: Any, world: World, folder: str) -> dict[str, Any]:
    return one_step(backend, world, config(updates_per_step=4 / ROWS))


SEAMS = [
    start_equal, initialized_from, gradient_mean, importance_weights, begin_together, exploration, solved_by_all,
    signal_stops_all, metrics_are_sums, seeds, files, data_shards,
]  # fmt: skip


def run_seams(rank: int, backend_name: str, ports: dict[str, int], folder: str) -> dict[str, Any]:
    backend = import_module(f"{backend_name}_seams")
    backend.prepare(rank)
    return run_listed(SEAMS, rank, ports, folder, backend)
