"""Policies learned from logs, of any kind of actions, and their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.record.evaluations import EvaluationResult
from lockstep.session.offline.policy_spec import OfflinePolicySpec, spec_of
from lockstep.session.policy_file import damaged_error, write
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.policy import ScoringPolicy

OfflinePolicy = ScoringPolicy | ActorPolicy


def policy_of(policy_spec: OfflinePolicySpec, seed: int = 0) -> OfflinePolicy:
    """A new policy for the kind of actions of its data, with initial parameters drawn from `seed`."""
    return (ActorPolicy if policy_spec.info.kind == "continuous" else ScoringPolicy)(policy_spec, seed)


def save_offline_policy(path: Path, policy: OfflinePolicy, evaluation: EvaluationResult | None = None) -> None:
    """Write a policy file atomically. Raises `RunError` if it cannot be written."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}
    write(path, arrays, None, policy.policy_spec.to_dict(), evaluation)


def offline_policy_from_file(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> OfflinePolicy:
    """The policy of a file's metadata and tensors; `path` is for messages."""
    policy = policy_of(spec_of(path, metadata))
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise damaged_error(path) from error
    return policy
