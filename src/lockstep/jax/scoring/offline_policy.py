"""Policies learned from logs, of named or of continuous actions, and their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from lockstep.algorithms.all import JAX_OFFLINE_ALGORITHMS
from lockstep.errors import ConfigError
from lockstep.jax.flat import Params
from lockstep.jax.scoring.actor_policy import ActorPolicy
from lockstep.jax.scoring.scoring_policy import ScoringPolicy
from lockstep.record.evaluations import EvaluationResult
from lockstep.session.offline.policy_spec import OfflinePolicySpec, spec_of
from lockstep.session.policy_file import damaged_error, write

OfflinePolicy = ScoringPolicy | ActorPolicy


def policy_of(policy_spec: OfflinePolicySpec, seed: int = 0) -> OfflinePolicy:
    """A new policy for the kind of actions of its data, with initial parameters drawn from `seed`."""
    return (ActorPolicy if policy_spec.info.kind == "continuous" else ScoringPolicy)(policy_spec, seed)


def save_offline_policy(path: Path, policy: OfflinePolicy, evaluation: EvaluationResult | None = None) -> None:
    """Write a policy file atomically. Raises `RunError` if it cannot be written."""
    arrays = {name: np.asarray(array) for name, array in policy.params.items()}
    write(path, arrays, None, policy.policy_spec.to_dict(), evaluation)


def offline_policy_from_file(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> OfflinePolicy:
    """The policy of a file's metadata and arrays; `path` is for messages."""
    policy_spec = spec_of(path, metadata)
    if policy_spec.algo not in JAX_OFFLINE_ALGORITHMS:
        raise ConfigError(
            f"{path} learned by algo={policy_spec.algo}, which ml_framework=jax does not have; use --ml-framework torch"
        )
    policy = policy_of(policy_spec)
    if {name: array.shape for name, array in arrays.items()} != {name: p.shape for name, p in policy.params.items()}:
        raise damaged_error(path)
    policy.params = cast(Params, dict(arrays))
    return policy
