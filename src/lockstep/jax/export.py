"""Policies of JAX as files, and from files: `lockstep.session.policy_file`, which says what stands in one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax.comm import Comm
from lockstep.jax.flat import Params
from lockstep.jax.networks import Policy, actor_of
from lockstep.jax.q_networks import QPolicy
from lockstep.run import AnyRun, NetworkConfig, Run
from lockstep.session import policy_file
from lockstep.session.evaluation import Player
from lockstep.session.policy_file import PolicySpec

AnyPolicy = Policy | QPolicy


def save_policy(path: Path, policy: AnyPolicy, observations: RunningMoments | None, run: AnyRun) -> None:
    """Write a policy file, whole or not at all. Raises `RunError` where that cannot be."""
    assert isinstance(run, Run)  # or JAX was refused
    arrays = {name: np.asarray(array) for name, array in policy.params.items()}
    policy_file.write(path, arrays, observations, _about(policy, run.task, run.network).to_dict())


def load_policy(path: Path | str) -> tuple[AnyPolicy, RunningMoments | None]:
    """Read a policy file, or the policy of a run directory, whichever backend wrote it."""
    about, parameters, observations = _read(Path(path))
    policy = (
        Policy(about.spec, about.network)
        if about.algorithm is None
        else QPolicy(about.spec, about.network, about.algorithm)
    )
    if _shapes(parameters) != _shapes(policy.params):
        raise policy_file.damaged_error(policy_file.file_of(Path(path)))
    policy.params = cast(Params, parameters)
    return policy, observations


def start_from(path: Path, policy: AnyPolicy, observations: RunningMoments | None) -> None:
    """Give a fresh policy the parameters of a policy file, if they are of the same shape, and copy the normalizer."""
    about, parameters, moments = _read(path)
    mine = _about(policy, "", NetworkConfig())
    policy_file.check_start(
        path,
        policy_file.signature(about, _shapes(parameters), moments),
        policy_file.signature(mine, _shapes(policy.params), observations),
    )
    policy.params = cast(Params, parameters)
    if moments is not None and observations is not None:
        observations.restore(moments.state())


def load_player(path: Path | str, comm: Comm | None = None) -> tuple[EnvSpec, Player]:
    """What the policy of a run directory or file plays, and the policy as evaluations play it.

    `player.act(observation)` is its action. It is computed on the first device of `comm`; without one, on the CPU.
    """
    policy, observations = load_policy(path)
    device = comm.devices[0] if comm is not None else jax.devices("cpu")[0]
    return policy.spec, Player(policy.sampler, actor_of(policy, device), observations, policy.spec)


def _read(path: Path) -> tuple[PolicySpec, dict[str, np.ndarray], RunningMoments | None]:
    header, arrays = policy_file.read(path)
    if policy_file.from_log(header):
        raise ConfigError(f"{path} learned from a log, which only torch does; use --ml-framework torch")
    about = PolicySpec.from_dict(header)
    return about, *policy_file.split_normalizer(about.spec, arrays)


def _about(policy: AnyPolicy, task: str, network: NetworkConfig) -> PolicySpec:
    algorithm = policy.algorithm if isinstance(policy, QPolicy) else None
    return PolicySpec(task=task, spec=policy.spec, network=network, algorithm=algorithm)


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in params.items()}
