"""Write torch policies to policy files and read them back; `lockstep.session.policy_file` defines the format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.normalize import RunningMoments
from lockstep.record.evaluations import EvaluationResult
from lockstep.run import AnyRun, Run
from lockstep.session import policy_file
from lockstep.session.critic_moments import take_over
from lockstep.session.evaluation import Player
from lockstep.session.policy_file import PolicySignature, PolicySpec
from lockstep.session.start_policy_notes import note_on_choice, notes_on_groups, notes_on_normalizer, notes_on_spec
from lockstep.session.which_policy import read_policy
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.networks import AnyPolicy, Policy, actor_of
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.scoring.offline_policy import OfflinePolicy, offline_policy_from_file, save_offline_policy


def save_policy(
    path: Path,
    policy: AnyPolicy,
    observation_moments: RunningMoments | None,
    run: AnyRun,
    evaluation: EvaluationResult | None = None,
    *,
    critic_moments: Mapping[str, RunningMoments] | None = None,
) -> None:
    """Write a policy file atomically. Raises `RunError` if it cannot be written."""
    if isinstance(policy, OfflinePolicy):
        save_offline_policy(path, policy, evaluation)
        return
    assert isinstance(run, Run)
    arrays = {name: _array(tensor) for name, tensor in policy.state_dict().items()}
    metadata = policy_file.policy_spec_of(policy, run.task, run.network).to_dict()
    policy_file.write(path, arrays, observation_moments, metadata, evaluation, of_critic=critic_moments)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """On the host; bfloat16, which numpy lacks, as float32, which holds it."""
    on_host = tensor.detach().cpu()
    return (on_host.float() if on_host.dtype == torch.bfloat16 else on_host).numpy()


def load_policy(path: Path | str) -> tuple[AnyPolicy, RunningMoments | None]:
    """Read a policy file, or the policy of a run directory: the final one, or of a run in progress the newest.

    Returns:
        The policy, on the CPU, of the class that the file names, and the normalizer of its observations, if it has one.

    Raises:
        ConfigError: there is no policy, or its file is damaged.
    """
    found, metadata, arrays = read_policy(Path(path))
    return policy_from(found.path, metadata, arrays)


def policy_from(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[AnyPolicy, RunningMoments | None]:
    """What `load_policy` returns, of the metadata and arrays of the file or checkpoint `path`."""
    if policy_file.from_log(metadata):
        return offline_policy_from_file(path, metadata, _tensors(arrays)), None
    about, parameters, observation_moments = policy_file.split_policy(path, metadata, arrays)
    policy = _policy_of(about)
    try:
        policy.load_state_dict(_tensors(parameters))
    except RuntimeError as error:
        raise policy_file.damaged_error(path) from error
    return policy.eval(), observation_moments


def _policy_of(about: PolicySpec) -> Policy | QPolicy | ContinuousPolicy:
    """A new policy of the kind that a file describes."""
    match about.algorithm:
        case PPOConfig():
            return Policy(about.spec, about.network, trains=False, algorithm=about.algorithm)
        case DQNConfig():
            return QPolicy(about.spec, about.network, about.algorithm, trains=False)
        case SACConfig() | TD3Config():
            return ContinuousPolicy(about.spec, about.network, about.algorithm)
        case _:
            assert_never(about.algorithm)


def start_from(
    path: Path,
    policy: AnyPolicy,
    observation_moments: RunningMoments | None,
    critic_moments: Mapping[str, RunningMoments] | None = None,
    run: AnyRun | None = None,
) -> list[str]:
    """Copy the parameters and normalizers of a policy file into a fresh policy of the same shape; returns notes."""
    found, metadata, arrays = read_policy(path)
    source, moments = policy_from(found.path, metadata, arrays)
    of_critic, held = policy_file.critic_moments_of(found.path, metadata, arrays), critic_moments or {}
    theirs, ours = _signature(source, moments, of_critic), _signature(policy, observation_moments, held)
    policy_file.check_start(path, theirs, ours)
    policy.load_state_dict(source.state_dict())
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
    """Load the policy of a run directory or file for acting, on the CPU.

    Returns:
        The spec of its environments, and the player: `player.act(observation)` is the most likely action.

    Raises:
        ConfigError: the policy was learned from a log without a simulator.
    """
    found, metadata, arrays = read_policy(Path(path))
    return player_from(found.path, metadata, arrays)


def player_from(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[EnvSpec, Player]:
    """What `load_player` returns, of the metadata and arrays of the file or checkpoint `path`."""
    policy, observation_moments = policy_from(path, metadata, arrays)
    if policy.spec is None:
        raise policy_file.no_simulator_error(path)
    actor = actor_of(policy, torch.device("cpu"))
    return policy.spec, Player(policy.distribution, actor, observation_moments, policy.spec)


def _signature(
    policy: AnyPolicy, observation_moments: RunningMoments | None, of_critic: Mapping[str, RunningMoments] | None
) -> PolicySignature:
    shapes = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    if isinstance(policy, OfflinePolicy):
        return policy.policy_spec.signature(shapes)
    return policy_file.signature(
        policy_file.policy_spec_of(policy, "", NetworkConfig()), shapes, observation_moments, of_critic
    )


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
