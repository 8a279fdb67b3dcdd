"""The seams of data-parallel learning from logged data (docs/source-layout.md), each on 2 ranks of either backend.

Each function takes `(backend, world, folder)` and returns what this rank saw; `test_offline_seams.py` checks it. What
the backends do differently is in `torch_offline.py` and `jax_offline.py`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from offline_runs import OfflineJob, small_offline, train_one
from seam_world import run_listed

from lockstep import World
from lockstep.algorithms.all import JAX_OFFLINE_ALGORITHMS, OfflineConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from offline_policies import SMALL, part

ROWS = 16
PADDING = (0, 11)
"""Padding rows in each rank's part."""
DQN = OfflineDQNConfig(batch_size=2 * ROWS, target_rate=0.5, gamma=0.9)
OF_CONTINUOUS = {"batch_size": 2 * ROWS, "target_rate": 0.5, "gamma": 0.9}
LEARNERS: dict[str, tuple[str, OfflineConfig]] = {
    "plain": ("dqn", DQN),
    "clipped": ("dqn", replace(DQN, max_grad_norm=0.1)),
    "sarsa": ("dqn", replace(DQN, maxq=False, cql_alpha=0.5)),
    "cloning": ("bc", CloningConfig(batch_size=2 * ROWS, target_rate=0.5, gamma=0.9)),
    "candidates": ("parametric_dqn", DQN),
    "candidates clipped": ("parametric_dqn", replace(DQN, max_grad_norm=0.1, cql_alpha=0.5)),
    "candidates sarsa": ("parametric_dqn", replace(DQN, maxq=False, policy="softmax", cql_alpha=0.5)),
    "iql": ("iql", IQLConfig(**OF_CONTINUOUS)),
    "td3_bc": ("td3_bc", TD3BCConfig(policy_delay=1, target_noise=0.0, **OF_CONTINUOUS)),
    "cql": ("cql", CQLConfig(num_sampled_actions=3, cql_gap=1.0, **OF_CONTINUOUS)),
}
KINDS = ("named", "candidates", "continuous")
"""The kinds of actions."""
DATA = {"parametric_dqn": "candidates", "iql": "continuous", "td3_bc": "continuous", "cql": "continuous"}


def data(folder: str, algo: str = "dqn") -> Path:
    """The prepared data of all ranks for an algorithm."""
    return Path(folder).parents[1] / DATA.get(algo, "named")


def index_of(rank: int) -> np.ndarray:
    """The rows of a rank's first part."""
    return np.random.default_rng(rank).integers(300, size=ROWS)


def learners(backend: Any) -> list[str]:
    """The learners that a backend has."""
    every = backend.__name__.startswith("torch")
    return [name for name, (algo, _) in LEARNERS.items() if every or algo in JAX_OFFLINE_ALGORITHMS]


def kinds(backend: Any) -> dict[str, str]:
    """One learner for each kind of actions that a backend has."""
    found = {"named": "plain", "candidates": "candidates", "continuous": backend.CONTINUOUS}
    return {kind: name for kind, name in found.items() if name in learners(backend)}


@contextmanager
def learner(
    backend: Any, world: World, folder: str, name: str, seed: int = 0, **changes: Any
) -> Iterator[tuple[Dataset, Any]]:
    algo, config = LEARNERS[name]
    run = OfflineRun(data="any", algo=algo, algorithm=config, network=SMALL, **changes)
    dataset = Dataset.open(data(folder, algo))
    with backend.learner(world, run, dataset, seed) as one:
        yield dataset, one


def start_equal(backend: Any, world: World, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, name in kinds(backend).items():
        with learner(backend, world, folder, name, seed=world.rank) as (_, one):
            found[kind] = backend.networks(one)
    return found


def gradients(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Of one step: the gradient, the extra sums, and the state afterwards."""
    found: dict[str, Any] = {}
    for name in learners(backend):
        with learner(backend, world, folder, name) as (dataset, one):
            parts = [part(dataset, index_of(world.rank), PADDING[world.rank])]
            extra = one.update(parts, np.array([[1.0, 3.0 * world.rank]]), Progress(1000))
            found[name] = after_step(backend, one) | {"extra": extra.tolist()}
    return found


def after_step(backend: Any, one: Any) -> dict[str, Any]:
    return {**backend.networks(one), "gradient": backend.gradient(one), "metrics": one.metrics.read()}


def one_rank_bad(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Rank 1 alone has a reward that is too large, in the second of three steps."""
    found: dict[str, Any] = {}
    for kind, name in kinds(backend).items():
        for mode in ("skip", "stop"):
            with learner(backend, world, folder, name, non_finite=mode) as (dataset, one):
                progress, error = Progress(1000), ""
                for step in range(3):
                    parts = [part(dataset, index_of(world.rank + 2 * step))]
                    if step == world.rank == 1:
                        parts[0].reward[4] = 1e30
                    try:
                        one.update(parts, np.zeros((1, 0)), progress)
                    except RuntimeError as raised:
                        error = str(raised)
                        break
                    progress.updates += 1
                found[kind, mode] = after_step(backend, one) | {"steps": progress.updates, "error": error}
    return found


def whole_run(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """A run from its beginning to its end, and the files that this rank changed."""
    touched: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and watching:
            path, *rest = arguments
            writes = event != "open" or (rest and rest[1] is not None and rest[1] & (os.O_WRONLY | os.O_RDWR))
            if writes and isinstance(path, str) and path.startswith(folder + "/"):
                touched.append(f"{event} {path}")

    watching = True
    sys.addaudithook(audit)
    run = small_offline(data(folder), epochs=2, log_every=100, checkpoint_every=200, **framework(backend))
    outcome = train_one(world, OfflineJob(run, folder, port=world.port))
    watching = False
    return {**vars(outcome), "folder": folder, "touched": touched}


def initialized_from(backend: Any, world: World, folder: str) -> dict[str, Any]:
    """Every rank has another policy file, as on another host."""
    found: dict[str, Any] = {}
    for kind, name in kinds(backend).items():
        algo, _ = LEARNERS[name]
        run = small_offline(data(folder, algo), algo=algo, epochs=1, **framework(backend))
        files = tuple(str(Path(folder).parent / f"{kind}_{rank}.safetensors") for rank in range(world.size))
        given = backend.save_random_policy(Path(files[world.rank]), run, Dataset.open(run.data), 100 + world.rank)
        outcome = train_one(world, OfflineJob(run, f"{folder}-{kind}", port=world.port, init_from=files))
        found[kind] = {**vars(outcome), "given": given}
    return found


SEAMS = (start_equal, gradients, one_rank_bad, whole_run, initialized_from)


def framework(backend: Any) -> dict[str, str]:
    """The setting that chooses a backend."""
    return {"ml_framework": backend.__name__.partition("_")[0]}


def run_seams(rank: int, name: str, ports: dict[str, int], folder: str) -> dict[str, Any]:
    backend = import_module(f"{name}_offline")
    backend.prepare(rank)
    return run_listed(SEAMS, rank, ports, folder, backend)
