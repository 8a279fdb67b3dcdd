"""The seams of data-parallel learning (docs/house.md) where learning is from logged data, each inside 2 ranks.

Each function takes `(world, folder)` and returns what this rank saw. `test_offline_seams.py` judges.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logged_runs import LoggedJob, small_offline, train_one
from seam_world import BOUND_S, run_listed

from lockstep import World
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.scoring.policy import save_scoring
from logged_policies import SMALL, part, policy_for

ROWS = 16
PADDING = (0, 11)
"""Rows of each rank's part that only fill it up."""
DQN = OfflineDQNConfig(batch_size=2 * ROWS, target_rate=0.5, gamma=0.9)
GRADIENTS = {
    "plain": DQN,
    "clipped": replace(DQN, max_grad_norm=0.1),
    "sarsa": replace(DQN, maxq=False, cql_alpha=0.5),
    "cloning": CloningConfig(batch_size=2 * ROWS, target_rate=0.5, gamma=0.9),
}


def data(folder: str) -> Path:
    """What all ranks learn from."""
    return Path(folder).parents[1] / "data"


def index_of(rank: int) -> np.ndarray:
    """The rows that a rank learns from first."""
    return np.random.default_rng(rank).integers(300, size=ROWS)


@contextmanager
def learner(
    world: World, folder: str, config: OfflineDQNConfig | CloningConfig, seed: int = 0, **changes: Any
) -> Iterator[tuple[Dataset, Any]]:
    algo = "bc" if isinstance(config, CloningConfig) else "dqn"
    run, dataset = (
        OfflineRun(data="any", algo=algo, algorithm=config, network=SMALL, **changes),
        Dataset.open(data(folder)),
    )
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield dataset, (Cloning if algo == "bc" else OfflineDQN)(run, policy_for(run, dataset, seed), comm)


def numbers(named: Any) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named}


def held(one: OfflineDQN | Cloning) -> dict[str, Any]:
    """The networks as they are used, and all that is compared between ranks."""
    assert one.target is not None
    return {
        "policy": numbers(one.policy.named_parameters()),
        "target": numbers(one.target.networks[0].named_parameters()),
        "shared": numbers(one.shared_tensors().items()),
    }


def start_equal(world: World, folder: str) -> dict[str, Any]:
    with learner(world, folder, DQN, seed=world.rank) as (_, one):
        return held(one)


def gradients(world: World, folder: str) -> dict[str, Any]:
    """Of one step: the gradient that was taken, what was told, and everything afterwards."""
    found: dict[str, Any] = {}
    for name, config in GRADIENTS.items():
        with learner(world, folder, config) as (dataset, one):
            parts = [part(dataset, index_of(world.rank), PADDING[world.rank])]
            told = one.update(parts, np.array([[1.0, 3.0 * world.rank]]), Progress(1000))
            found[name] = taken(one) | {"told": told.tolist()}
    return found


def taken(one: OfflineDQN | Cloning) -> dict[str, Any]:
    """What a step left behind."""
    return {**held(one), "gradient": one.descent.flat.gradient.numpy().copy(), "metrics": one.metrics.read()}


def one_rank_bad(world: World, folder: str) -> dict[str, Any]:
    """Rank 1 alone has a number that is too large, in the second of three steps."""
    found: dict[str, Any] = {}
    for how in ("skip", "stop"):
        with learner(world, folder, DQN, non_finite=how) as (dataset, one):
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
            found[how] = taken(one) | {"steps": progress.updates, "error": error}
    return found


def whole_run(world: World, folder: str) -> dict[str, Any]:
    """A run from its beginning to its end, and what this rank touched on the disk."""
    touched: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and watching:
            path, *rest = arguments
            writes = event != "open" or (rest and rest[1] is not None and rest[1] & (os.O_WRONLY | os.O_RDWR))
            if writes and isinstance(path, str) and path.startswith(folder + "/"):
                touched.append(f"{event} {path}")

    watching = True
    sys.addaudithook(audit)
    run = small_offline(data(folder), epochs=2, log_every=100, checkpoint_every=200)
    outcome = train_one(world, LoggedJob(run, folder, port=world.port))
    watching = False
    return {**vars(outcome), "folder": folder, "touched": touched}


def initialized_from(world: World, folder: str) -> dict[str, Any]:
    """Every rank finds another policy file (on another host, say)."""
    run = small_offline(data(folder), epochs=1)
    mine = policy_for(run, Dataset.open(data(folder)), seed=100 + world.rank)
    names = tuple(str(Path(folder).parent / f"policy_{r}.safetensors") for r in range(world.size))
    save_scoring(Path(names[world.rank]), mine)
    outcome = train_one(world, LoggedJob(run, folder, port=world.port, init_from=names))
    return {**vars(outcome), "given": numbers(mine.network.named_parameters())}


SEAMS = (start_equal, gradients, one_rank_bad, whole_run, initialized_from)


def run_seams(rank: int, ports: dict[str, int], folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return run_listed(SEAMS, rank, ports, folder)
