"""The seams of data-parallel learning where actions are candidates, each inside 2 ranks.

Each function takes `(world, folder)` and returns what this rank saw. `test_parametric_ranks.py` judges. What does not
depend on the kind of actions (order, counters, files) is judged in `test_offline_seams.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logged_runs import LoggedJob, small_offline, train_one
from offline_seams import PADDING, data, held, index_of, numbers, taken
from seam_world import BOUND_S, run_listed

from lockstep import World
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.parametric_dqn import ParametricDQN
from lockstep.torch.scoring.policy import save_scoring
from logged_policies import SMALL, part, policy_for

DQN = OfflineDQNConfig(batch_size=32, target_rate=0.5, gamma=0.9)
GRADIENTS = {
    "plain": DQN,
    "clipped": replace(DQN, max_grad_norm=0.1, cql_alpha=0.5),
    "sarsa": replace(DQN, maxq=False, policy="softmax", cql_alpha=0.5),
}


@contextmanager
def learner(
    world: World, folder: str, config: OfflineDQNConfig, seed: int = 0, **changes: Any
) -> Iterator[tuple[Dataset, ParametricDQN]]:
    run = OfflineRun(data="any", algo="parametric_dqn", algorithm=config, network=SMALL, **changes)
    dataset = Dataset.open(data(folder))
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield dataset, ParametricDQN(run, policy_for(run, dataset, seed), comm)


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


def initialized_from(world: World, folder: str) -> dict[str, Any]:
    """Every rank finds another policy file (on another host, say)."""
    run = small_offline(data(folder), algo="parametric_dqn", epochs=1)
    mine = policy_for(run, Dataset.open(data(folder)), seed=100 + world.rank)
    names = tuple(str(Path(folder).parent / f"policy_{r}.safetensors") for r in range(world.size))
    save_scoring(Path(names[world.rank]), mine)
    outcome = train_one(world, LoggedJob(run, folder, port=world.port, init_from=names))
    return {**vars(outcome), "given": numbers(mine.network.named_parameters())}


SEAMS = (start_equal, gradients, one_rank_bad, initialized_from)


def run_seams(rank: int, ports: dict[str, int], folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return run_listed(SEAMS, rank, ports, folder)
