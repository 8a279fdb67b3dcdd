"""What the tests of logged data do differently in torch; `jax_offline.py` has the same names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from seam_world import BOUND_S

from lockstep import World
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.cql import ContinuousCQL
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.td3_bc import TD3BC
from lockstep.torch.scoring.offline_policy import save_offline_policy
from offline_policies import policy_for

CONTINUOUS = "td3_bc"
"""The algorithm that stands for those of continuous actions in most seams."""
CLASSES = {"bc": Cloning, "iql": IQL, "td3_bc": TD3BC, "cql": ContinuousCQL}


def prepare(rank: int) -> None:
    torch.set_num_threads(1)


@contextmanager
def learner(world: World, run: OfflineRun, dataset: Dataset, seed: int) -> Iterator[Any]:
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield CLASSES.get(run.algo, OfflineDQN)(run, policy_for(run, dataset, seed), comm)


def network(policy: Any) -> dict[str, np.ndarray]:
    """Parameters of the networks that learn, without the models for estimates."""
    return _arrays(policy.network.named_parameters())


def target(one: Any) -> dict[str, np.ndarray]:
    """Parameters of the first target network, which is that of Q."""
    return {} if one.target is None else _arrays(one.target.networks[0].named_parameters())


def networks(one: Any) -> dict[str, Any]:
    """All parameters, those of Q's target, and everything that is compared between ranks."""
    shared = _arrays(one.shared_tensors().items())
    compared = shared["target"][: sum(values.size for values in target(one).values())]
    policy = _arrays(one.policy.named_parameters())
    return {"policy": policy, "target": target(one), "shared": shared, "compared": compared}


def gradient(one: Any) -> np.ndarray:
    """The gradient of the last step, that of Q first."""
    found = one.optimizer.flat.gradient
    if isinstance(one, TD3BC):
        found = torch.cat([found, one.actor_optimizer.flat.gradient])
    return found.numpy().copy()


def num_scores(one: Any) -> int:
    """The number of parameters whose gradient is clipped."""
    return sum(p.numel() for p in one.scores.parameters())


def save_random_policy(path: Path, run: OfflineRun, dataset: Dataset, seed: int) -> dict[str, np.ndarray]:
    """Write a policy file with random parameters; returns those of the networks that learn."""
    policy = policy_for(run, dataset, seed)
    save_offline_policy(path, policy)
    return network(policy)


def _arrays(named: Any) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named}
