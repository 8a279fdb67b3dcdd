"""Save and load JAX policies; the file format is in `lockstep.session.policy_file`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.flat import Params
from lockstep.jax.networks import AnyPolicy, Policy, actor_of
from lockstep.jax.q_networks import QPolicy
from lockstep.run import AnyRun, NetworkConfig, Run
from lockstep.session import policy_file
from lockstep.session.evaluation import Player
from lockstep.session.policy_file import PolicySpec


def save_policy(path: Path, policy: AnyPolicy, observations: RunningMoments | None, run: AnyRun) -> None:
    """Write a policy file atomically. Raises `RunError` if that fails."""
    assert isinstance(run, Run)  # learning from logs is refused for JAX
    arrays = {name: np.asarray(array) for name, array in policy.params.items()}
    policy_file.write(path, arrays, observations, _policy_spec(policy, run.task, run.network).to_dict())


def load_policy(path: Path | str) -> tuple[AnyPolicy, RunningMoments | None]:
    """Load a policy from a file or run directory of either backend."""
    about, parameters, observations = _read(Path(path))
    policy = _policy_of(about)
    if _shapes(parameters) != _shapes(policy.params):
        raise policy_file.damaged_error(policy_file.file_of(Path(path)))
    policy.params = cast(Params, parameters)
    return policy, observations


def start_from(path: Path, policy: AnyPolicy, observations: RunningMoments | None) -> None:
    """Load parameters of the same shapes, and the normalizer, from a policy file into a new policy."""
    about, parameters, moments = _read(path)
    mine = _policy_spec(policy, "", NetworkConfig())
    policy_file.check_start(
        path,
        policy_file.signature(about, _shapes(parameters), moments),
        policy_file.signature(mine, _shapes(policy.params), observations),
    )
    policy.params = cast(Params, parameters)
    if moments is not None and observations is not None:
        observations.restore(moments.state())


def load_player(path: Path | str, comm: Comm | None = None) -> tuple[EnvSpec, Player]:
    """The environment spec and the player of a policy from a run directory or file.

    `player.act(observation)` returns its action, computed on the first device of `comm` or, without `comm`, on the CPU.
    """
    policy, observations = load_policy(path)
    device = comm.devices[0] if comm is not None else jax.devices("cpu")[0]
    return policy.spec, Player(policy.sampler, actor_of(policy, device), observations, policy.spec)


def _read(path: Path) -> tuple[PolicySpec, dict[str, np.ndarray], RunningMoments | None]:
    header, arrays = policy_file.read(path)
    if policy_file.from_log(header):
        raise ConfigError(f"{path} learned from a log, which only torch does; use --ml-framework torch")
    about = PolicySpec.from_dict(header)
    return about, *policy_file.split_normalizer(about, arrays)


def _policy_of(about: PolicySpec) -> AnyPolicy:
    """A new policy of the kind that a file describes."""
    if about.algorithm is None:
        return Policy(about.spec, about.network)
    if isinstance(about.algorithm, DQNConfig):
        return QPolicy(about.spec, about.network, about.algorithm)
    return ContinuousPolicy(about.spec, about.network, about.algorithm)


def _policy_spec(policy: AnyPolicy, task: str, network: NetworkConfig) -> PolicySpec:
    algorithm = None if isinstance(policy, Policy) else policy.algorithm
    return PolicySpec(task=task, spec=policy.spec, network=network, algorithm=algorithm)


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in params.items()}
