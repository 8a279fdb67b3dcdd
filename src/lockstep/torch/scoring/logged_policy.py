"""Policies learned from logs, of any kind of actions: their files, and their check against a simulator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.errors import ConfigError
from lockstep.session.policy_file import damaged_error, newer_format_error, write
from lockstep.torch.scoring.actor_policy import ActorPolicy, bounds_of
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.torch.scoring.policy_spec import FORMAT, PolicySpec

LoggedPolicy = ScoringPolicy | ActorPolicy


def policy_of(policy_spec: PolicySpec, seed: int = 0) -> LoggedPolicy:
    """A new policy for the kind of actions of its data, with initial parameters drawn from `seed`."""
    return (ActorPolicy if policy_spec.info.kind == "continuous" else ScoringPolicy)(policy_spec, seed)


def save_logged(path: Path, policy: LoggedPolicy) -> None:
    """Write a policy file atomically. Raises `RunError` if it cannot be written."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}
    write(path, arrays, None, policy.policy_spec.to_dict())


def logged_from_file(path: Path, policy_spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LoggedPolicy:
    """The policy of a file's metadata and tensors; `path` is for messages."""
    if policy_spec["format"] > FORMAT:
        raise newer_format_error(path, policy_spec)
    policy = policy_of(PolicySpec.from_dict(policy_spec))
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise damaged_error(path) from error
    return policy


def check_simulator(policy_spec: PolicySpec, task: str) -> None:
    """Raise `ConfigError` if a simulator's observations or actions do not match those of the log."""
    spec, info = policy_spec.spec, policy_spec.info
    if spec is None:
        return
    if spec.image is not None or spec.observation_size != len(info.state_features):
        raise ConfigError(
            f"task={task} observes {spec.observation_size} numbers, the log has {len(info.state_features)} state "
            "features; name the simulator that the log is from, or leave task out"
        )
    if info.kind == "continuous":
        _check_bounds(policy_spec, task)
        return
    count = len(info.actions) if info.kind == "discrete" else len(info.candidates)
    if spec.action.kind != "discrete" or spec.action.sizes[0] != count:
        what = "actions" if info.kind == "discrete" else "candidates that are the same in every row"
        raise ConfigError(
            f"task={task} does not choose among the {count} {what} of the log; name the simulator that the log is "
            "from, or leave task out"
        )


def _check_bounds(policy_spec: PolicySpec, task: str) -> None:
    """Raise `ConfigError` if a simulator does not take the continuous actions of the log."""
    assert policy_spec.spec is not None and policy_spec.action is not None
    action, size = policy_spec.spec.action, policy_spec.info.action_size
    if action.kind != "continuous" or action.width != size:
        raise ConfigError(
            f"task={task} does not take the {size} numbers of an action of the log; name the simulator that the log is "
            "from, or leave task out"
        )
    for name, low, high, lowest, highest in zip(
        policy_spec.action.ids, *bounds_of(policy_spec.action), action.low, action.high, strict=True
    ):
        if low >= highest or high <= lowest:
            raise ConfigError(
                f"task={task} takes numbers from {lowest:g} to {highest:g} where those of the log ({name}) lie in "
                f"[{low:g}, {high:g}]; name the simulator that the log is from, or leave task out"
            )
