"""Functions called inside ranks by `test_estimates_of_ranks.py`: a policy with random parameters, judged by a log."""

import os
from pathlib import Path
from typing import Any

import torch

from lockstep import World
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun, ScoreNetworkConfig, override
from lockstep.session.offline import estimate as counterfactual
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.comm import Comm
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.policy import ScoringPolicy


def judged(rank: int, ports: dict[str, int], paths: dict[str, list[str]]) -> dict[str, Any]:
    """Estimates by name: from `paths[name][node]`, where every rank is a machine of its own, or all are of one."""
    torch.set_num_threads(1)
    counterfactual._BLOCK = 64  # many blocks to deal out
    return {name: judge(world_of(rank, ports[name], len(listed)), listed) for name, listed in paths.items()}


def world_of(rank: int, port: int, nodes: int) -> World:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    node, local = (rank % nodes, rank // nodes)  # ranks of two machines lie between each other
    return World(
        rank=rank, size=size, local_rank=local, local_size=size // nodes, node_rank=node, address="127.0.0.1", port=port
    )


def judge(world: World, paths: list[str]) -> dict[str, Any]:
    dataset = Dataset.open(Path(paths[world.node_rank]))
    algo = "dqn" if dataset.info.kind == "discrete" else "parametric_dqn"
    run = OfflineRun(data="data", algo=algo, network=ScoreNetworkConfig(hidden=(8,)))
    run = override(run, {"policy": "softmax", "seed": 3})
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
    )
    with Comm(world, device="cpu", timeout_s=30) as comm:
        scorer = PolicyScorer(ScoringPolicy(about, seed=1), run)
        return counterfactual.estimate(scorer, dataset, comm, run).to_dict()
