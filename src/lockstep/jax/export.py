"""Save and load JAX policies; the file format is in `lockstep.session.policy_file`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never, cast

import jax
import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.normalize import RunningMoments
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.flat import Params
from lockstep.jax.networks import ActingPolicy, AnyPolicy, Policy, actor_of
from lockstep.jax.q_networks import QPolicy
from lockstep.jax.scoring.offline_policy import OfflinePolicy, offline_policy_from_file, save_offline_policy
from lockstep.record.evaluations import EvaluationResult
from lockstep.run import AnyRun, Run
from lockstep.session import policy_file
from lockstep.session.critic_moments import take_over
from lockstep.session.evaluation import Player
from lockstep.session.policy_file import PolicySignature, PolicySpec
from lockstep.session.start_policy_notes import note_on_choice, notes_on_groups, notes_on_normalizer, notes_on_spec
from lockstep.session.which_policy import read_policy


def save_policy(
    path: Path,
    policy: AnyPolicy,
    observation_moments: RunningMoments | None,
    run: AnyRun,
    evaluation: EvaluationResult | None = None,
    *,
    critic_moments: Mapping[str, RunningMoments] | None = None,
) -> None:
    """Write a policy file atomically. Raises `RunError` if that fails."""
    if isinstance(policy, OfflinePolicy):
        save_offline_policy(path, policy, evaluation)
        return
    assert isinstance(run, Run)
    arrays = {name: np.asarray(array) for name, array in policy.params.items()}
    metadata = policy_file.policy_spec_of(policy, run.task, run.network).to_dict()
    policy_file.write(path, arrays, observation_moments, metadata, evaluation, of_critic=critic_moments)


def load_policy(path: Path | str) -> tuple[AnyPolicy, RunningMoments | None]:
    """Load a policy from a file or run directory of either backend; of a run in progress, its newest."""
    found, metadata, arrays = read_policy(Path(path))
    return policy_from(found.path, metadata, arrays)


def policy_from(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[AnyPolicy, RunningMoments | None]:
    """What `load_policy` returns, of the metadata and arrays of the file or checkpoint `path`."""
    if policy_file.from_log(metadata):
        return offline_policy_from_file(path, metadata, arrays), None
    about, parameters, observation_moments = policy_file.split_policy(path, metadata, arrays)
    policy = _policy_of(about)
    if _shapes(parameters) != _shapes(policy.params):
        raise policy_file.damaged_error(path)
    policy.params = cast(Params, parameters)
    return policy, observation_moments


def start_from(
    path: Path,
    policy: AnyPolicy,
    observation_moments: RunningMoments | None,
    critic_moments: Mapping[str, RunningMoments] | None = None,
    run: AnyRun | None = None,
) -> list[str]:
    """Load parameters of the same shapes, and normalizers, from a policy file into a new policy; returns notes."""
    found, metadata, arrays = read_policy(path)
    source, moments = policy_from(found.path, metadata, arrays)
    of_critic, held = policy_file.critic_moments_of(found.path, metadata, arrays), critic_moments or {}
    theirs, ours = _signature(source, moments, of_critic), _signature(policy, observation_moments, held)
    policy_file.check_start(path, theirs, ours)
    policy.params = source.params
    if moments is not None and observation_moments is not None:
        observation_moments.restore(moments.state())
    return [
        *note_on_choice(path, found),
        *notes_on_spec(path, source.spec, policy.spec),
        *notes_on_groups(path, found, run),
        *notes_on_normalizer(path, moments, observation_moments),
        *take_over(path, of_critic, held),
    ]


def load_player(path: Path | str) -> tuple[EnvSpec, Player]:
    """The environment spec and the player of a policy from a run directory or file.

    `player.act(observation)` returns its action, computed on the CPU.
    """
    found, metadata, arrays = read_policy(Path(path))
    return player_from(found.path, metadata, arrays)


def player_from(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[EnvSpec, Player]:
    """What `load_player` returns, of the metadata and arrays of the file or checkpoint `path`."""
    policy, observation_moments = policy_from(path, metadata, arrays)
    if policy.spec is None:
        raise policy_file.no_simulator_error(path)
    actor = actor_of(policy, jax.local_devices(backend="cpu")[0])
    return policy.spec, Player(policy.sampler, actor, observation_moments, policy.spec)


def _policy_of(about: PolicySpec) -> ActingPolicy:
    """A new policy of the kind that a file describes."""
    match about.algorithm:
        case PPOConfig():
            return Policy(about.spec, about.network, algorithm=about.algorithm)
        case DQNConfig():
            return QPolicy(about.spec, about.network, about.algorithm)
        case SACConfig() | TD3Config():
            return ContinuousPolicy(about.spec, about.network, about.algorithm)
        case _:
            assert_never(about.algorithm)


def _signature(
    policy: AnyPolicy, observation_moments: RunningMoments | None, of_critic: Mapping[str, RunningMoments] | None
) -> PolicySignature:
    shapes = _shapes(policy.params)
    if isinstance(policy, OfflinePolicy):
        return policy.policy_spec.signature(shapes)
    return policy_file.signature(
        policy_file.policy_spec_of(policy, "", NetworkConfig()), shapes, observation_moments, of_critic
    )


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in params.items()}
