"""Refuses a policy that a run cannot start from before the run begins.

Networks of other shapes are known by their settings, except those of the user's own classes, which are refused when
they are made.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.settings import as_text
from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import AnyRun, OfflineRun, Run
from lockstep.session import critic_moments, policy_file
from lockstep.session.data_checks import check_data
from lockstep.session.encoder_choice import encoder_of, only_convolves
from lockstep.session.offline import policy_spec
from lockstep.session.policy_file import PolicySignature, PolicySpec
from lockstep.session.which_policy import read_policy


def check_start_policy(path: Path, run: AnyRun) -> None:
    """Raise `ConfigError` if the run cannot start from the policy of a file, run directory or checkpoint.

    The shapes of parameters are not compared: that takes the network, and so the framework.
    """
    _, metadata, arrays = read_policy(path)
    algo = str(metadata.get("algo", "ppo"))
    policy_file.check_algo(path, algo, policy_file.FROM_LOG + run.algo if isinstance(run, OfflineRun) else run.algo)
    if isinstance(run, OfflineRun):
        theirs = policy_spec.spec_of(path, metadata)
        ours = policy_spec.OfflinePolicySpec.of_run(run, check_data(run)[0], None)
        policy_file.check_start(path, theirs.signature({}), ours.signature({}))
        return
    policy, _, observation_moments = policy_file.split_policy(path, metadata, arrays)
    spec = env_spec(run.task, run.env)
    if run.network.module is None:  # one of the user's own may take observations of any size
        _check_spec(path, policy.spec, spec, run.task)
    ours = _policy_of(run, spec)
    if run.network.module is None and policy.network.module is None:
        _check_settings(path, _layers(policy), _layers(ours))
    _check_temperature(path, policy.algorithm, ours.algorithm)
    of_critic = policy_file.critic_moments_of(path, metadata, arrays)
    policy_file.check_start(
        path, policy_file.signature(policy, {}, observation_moments, of_critic), _signature(run, ours)
    )


def _policy_of(run: Run, spec: EnvSpec) -> PolicySpec:
    """The policy that the run would begin with."""
    return PolicySpec(task=run.task, spec=spec, network=run.network, algorithm=run.algorithm)


def _signature(run: Run, policy: PolicySpec) -> PolicySignature:
    """The signature of the run's policy, without shapes."""
    normalizes = isinstance(run.algorithm, PPOConfig) and run.algorithm.normalize_observation
    of_critic = [name for name, setting in critic_moments.SETTINGS.items() if getattr(run.algorithm, setting, False)]
    return replace(policy_file.signature(policy, {}, None, of_critic), normalizes=normalizes)


def _layers(policy: PolicySpec) -> dict[str, Any]:
    """The settings, by name, that decide the layers of Lockstep's networks."""
    network, algorithm, spec = policy.network, policy.algorithm, policy.spec
    encoder = encoder_of(network, spec)
    convolves = encoder != "mlp"
    settings: dict[str, Any] = {"network.encoder": encoder, "network.recurrent": network.recurrent}
    if convolves:
        settings["network.features"] = network.features
    if not convolves or (spec.image is None and isinstance(algorithm, PPOConfig)):
        settings |= {"network.hidden": network.hidden, "network.activation": network.activation}
    if network.recurrent != "none":
        settings["network.recurrent_size"] = network.recurrent_size
        settings["network.recurrent_layers"] = network.recurrent_layers
    shared = convolves and spec.critic_size is None if network.shared is None else network.shared
    if not isinstance(algorithm, DQNConfig) and not shared and not only_convolves(network, spec):
        settings |= {"network.critic_hidden": network.value_hidden, "network.activation": network.activation}
    of_algorithm: tuple[str, ...] = ()
    match algorithm:
        case PPOConfig():
            settings["network.shared"] = shared
            settings["network.state_dependent_std"] = network.state_dependent_std
            if network.state_dependent_std and spec.action.kind == "continuous":  # is added to the network's output
                settings["network.initial_log_std"] = network.initial_log_std
        case DQNConfig():
            of_heads = {"none": (), "categorical": ("num_atoms",), "quantile": ("num_quantiles",)}
            of_algorithm = ("dueling", "noisy", "value_distribution", *of_heads[algorithm.value_distribution])
        case SACConfig() | TD3Config():
            of_algorithm = ("num_critics", "layer_norm")
        case _:
            assert_never(algorithm)
    return settings | {name: getattr(algorithm, name) for name in of_algorithm}


def _check_settings(path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise `ConfigError` at the first setting that has another value."""
    for name, value in theirs.items():
        if name in ours and ours[name] != value:
            raise ConfigError(
                f"--init-from {path}: its network has {name}={as_text(value)}, and this run's {as_text(ours[name])}; "
                f"add --set {shlex.quote(f'{name}={as_text(value)}')}, or start without it"
            )


def _check_temperature(path: Path, theirs: object, ours: object) -> None:
    """Raise `ConfigError` if only one of the two learns the temperature of SAC, which is then a parameter."""
    if not isinstance(theirs, SACConfig) or not isinstance(ours, SACConfig):
        return
    if (theirs.alpha is None) != (ours.alpha is None):
        raise ConfigError(
            f"--init-from {path}: its temperature is {_temperature(theirs)}, and this run's is {_temperature(ours)}; "
            f"add --set alpha={as_text(theirs.alpha)}, or start without it"
        )


def _temperature(config: SACConfig) -> str:
    return "learned (alpha=null)" if config.alpha is None else f"fixed (alpha={as_text(config.alpha)})"


def _check_spec(path: Path, theirs: EnvSpec, ours: EnvSpec, task: str) -> None:
    """Raise `ConfigError` if a policy's environments differ from those of the run so that no network is for both."""
    if _kind(theirs) != _kind(ours):
        raise ConfigError(
            f"--init-from {path}: it {_described(theirs)}, and task={task} {_described(ours)}; "
            "use a policy of this task, or start without it"
        )


def _kind(spec: EnvSpec) -> tuple[object, ...]:
    # Images of nearby sizes may have the same network.
    seen = spec.observation_size if spec.image is None else ("channels", spec.image[0])
    return seen, spec.critic_size, spec.action.kind == "continuous", spec.action.sizes


def _described(spec: EnvSpec) -> str:
    critic = "" if spec.critic_size is None else f" (its value network {spec.critic_size} numbers)"
    return f"observes {list(spec.observation_shape)}{critic} and takes {spec.action.kind} actions of " + str(
        list(spec.action.sizes)
    )
