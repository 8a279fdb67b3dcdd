"""What the tests of logged data do differently in JAX; `torch_offline.py` has the same names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jax_compiled import keep_compiled
from seam_world import BOUND_S

from lockstep import World
from lockstep.data.dataset import Dataset
from lockstep.jax.comm import Comm
from lockstep.jax.flat import subtree
from lockstep.jax.offline.dqn import OfflineDQN
from lockstep.jax.offline.iql import IQL
from lockstep.jax.scoring.actor_policy import CRITICS
from lockstep.jax.scoring.offline_policy import policy_of, save_offline_policy
from lockstep.run import OfflineRun
from offline_policies import spec_for

CONTINUOUS = "iql"
"""The algorithm that stands for those of continuous actions in most seams."""


def prepare(rank: int) -> None:
    keep_compiled(rank)


@contextmanager
def learner(world: World, run: OfflineRun, dataset: Dataset, seed: int) -> Iterator[Any]:
    policy = policy_of(spec_for(run, dataset), seed)
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield (IQL if run.algo == "iql" else OfflineDQN)(run, policy, comm)


def network(policy: Any) -> dict[str, np.ndarray]:
    """Parameters of the networks that learn, without the models for estimates."""
    return _arrays(subtree(policy.params, "network"))


def target(one: Any) -> dict[str, np.ndarray]:
    """Parameters of the first target network, which is that of Q."""
    values = one.optimizer.flat_target.split(one.comm.read(one.state.target_params))
    return _arrays(subtree(values, _scores_name(one)))


def _scores_name(one: Any) -> str:
    return CRITICS if isinstance(one, IQL) else one.policy.scores_name


def networks(one: Any) -> dict[str, Any]:
    """All parameters, those of Q's target, and everything that is compared between ranks."""
    shared, of_q = one.shared_arrays(), target(one)
    compared = np.concatenate([shared[f"target.{_scores_name(one)}.{name}"].ravel() for name in of_q])
    return {"policy": _arrays(one.policy.params), "target": of_q, "shared": shared, "compared": compared}


def gradient(one: Any) -> np.ndarray:
    """The gradient of the first step, that of Q first: Adam's moment is then a tenth of it."""
    return 10.0 * one.comm.read(one.state.optimizer.moment)


def num_scores(one: Any) -> int:
    """The number of parameters whose gradient is clipped."""
    return sum(values.size for values in target(one).values())


def save_random_policy(path: Path, run: OfflineRun, dataset: Dataset, seed: int) -> dict[str, np.ndarray]:
    """Write a policy file with random parameters; returns those of the networks that learn."""
    policy = policy_of(spec_for(run, dataset), seed)
    save_offline_policy(path, policy)
    return network(policy)


def _arrays(named: Any) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in named.items()}
