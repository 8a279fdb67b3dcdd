"""The seams of data-parallel learning from logged data (docs/house.md), each on 2 ranks.

Each function takes `(world, folder)` and returns what this rank saw; `test_offline_seams.py` checks it.
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
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineConfig, OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.cql import ContinuousCQL
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.td3_bc import TD3BC
from lockstep.torch.scoring.logged_policy import save_logged
from logged_policies import SMALL, part, policy_for

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
KINDS = {"named": "plain", "candidates": "candidates", "continuous": "td3_bc"}
"""One learner for each kind of actions."""
CLASSES = {"bc": Cloning, "iql": IQL, "td3_bc": TD3BC, "cql": ContinuousCQL}
DATA = {"parametric_dqn": "candidates", "iql": "continuous", "td3_bc": "continuous", "cql": "continuous"}


def data(folder: str, algo: str = "dqn") -> Path:
    """The prepared data of all ranks for an algorithm."""
    return Path(folder).parents[1] / DATA.get(algo, "named")


def index_of(rank: int) -> np.ndarray:
    """The rows of a rank's first part."""
    return np.random.default_rng(rank).integers(300, size=ROWS)


@contextmanager
def learner(world: World, folder: str, name: str, seed: int = 0, **changes: Any) -> Iterator[tuple[Dataset, Any]]:
    algo, config = LEARNERS[name]
    run = OfflineRun(data="any", algo=algo, algorithm=config, network=SMALL, **changes)
    dataset = Dataset.open(data(folder, algo))
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield dataset, CLASSES.get(algo, OfflineDQN)(run, policy_for(run, dataset, seed), comm)


def arrays(named: Any) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named}


def state_of(one: Any) -> dict[str, Any]:
    """The networks, and everything that is compared between ranks."""
    assert one.target is not None
    return {
        "policy": arrays(one.policy.named_parameters()),
        "target": arrays(one.target.networks[0].named_parameters()),
        "shared": arrays(one.shared_tensors().items()),
    }


def start_equal(world: World, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, name in KINDS.items():
        with learner(world, folder, name, seed=world.rank) as (_, one):
            found[kind] = state_of(one)
    return found


def gradients(world: World, folder: str) -> dict[str, Any]:
    """Of one step: the gradient, the extra sums, and the state afterwards."""
    found: dict[str, Any] = {}
    for name in LEARNERS:
        with learner(world, folder, name) as (dataset, one):
            parts = [part(dataset, index_of(world.rank), PADDING[world.rank])]
            extra = one.update(parts, np.array([[1.0, 3.0 * world.rank]]), Progress(1000))
            found[name] = after_step(one) | {"extra": extra.tolist()}
    return found


def after_step(one: Any) -> dict[str, Any]:
    gradient = one.optimizer.flat.gradient
    if isinstance(one, TD3BC):
        gradient = torch.cat([gradient, one.actor_optimizer.flat.gradient])
    return {
        **state_of(one),
        "gradient": gradient.numpy().copy(),
        "metrics": one.metrics.read(),
    }


def one_rank_bad(world: World, folder: str) -> dict[str, Any]:
    """Rank 1 alone has a reward that is too large, in the second of three steps."""
    found: dict[str, Any] = {}
    for kind, name in KINDS.items():
        for mode in ("skip", "stop"):
            with learner(world, folder, name, non_finite=mode) as (dataset, one):
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
                found[kind, mode] = after_step(one) | {"steps": progress.updates, "error": error}
    return found


def whole_run(world: World, folder: str) -> dict[str, Any]:
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
    run = small_offline(data(folder), epochs=2, log_every=100, checkpoint_every=200)
    outcome = train_one(world, LoggedJob(run, folder, port=world.port))
    watching = False
    return {**vars(outcome), "folder": folder, "touched": touched}


def initialized_from(world: World, folder: str) -> dict[str, Any]:
    """Every rank has another policy file, as on another host."""
    found: dict[str, Any] = {}
    for kind, name in KINDS.items():
        algo, _ = LEARNERS[name]
        run = small_offline(data(folder, algo), algo=algo, epochs=1)
        mine = policy_for(run, Dataset.open(run.data), seed=100 + world.rank)
        files = tuple(str(Path(folder).parent / f"{kind}_{rank}.safetensors") for rank in range(world.size))
        save_logged(Path(files[world.rank]), mine)
        outcome = train_one(world, LoggedJob(run, f"{folder}-{kind}", port=world.port, init_from=files))
        found[kind] = {**vars(outcome), "given": arrays(mine.network.named_parameters())}
    return found


SEAMS = (start_equal, gradients, one_rank_bad, whole_run, initialized_from)


def run_seams(rank: int, ports: dict[str, int], folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return run_listed(SEAMS, rank, ports, folder)
