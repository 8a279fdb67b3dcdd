"""Checks of a task against the algorithm, the network and other settings, before a process starts."""

import warnings
from typing import Any, assert_never

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import SHORTEST_SEQUENCE, PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.network import NetworkConfig
from lockstep.config.settings import as_text
from lockstep.envs.drawing import other_mujoco_gl, picture_of
from lockstep.envs.make import make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.exploration import EpsilonGreedy
from lockstep.run import AnyRun, Run
from lockstep.session.encoder_choice import check_encoder, only_convolves
from lockstep.session.placement import check_placement, learns_on_device


def check_task(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task that does not fit the algorithm or the network."""
    config = run.algorithm
    if spec.num_agents > 1 and not isinstance(config, PPOConfig):
        raise ConfigError(
            f"task={run.task} has {spec.num_agents} agents, which algo={run.algo} does not support; use ppo"
        )
    check_agents(run.num_envs, run.num_shards or 1, spec)
    check_placement(run)
    match config:
        case PPOConfig():
            _check_ppo(run, config, spec)
        case DQNConfig():
            _check_dqn(run, config, spec)
        case SACConfig() | TD3Config():
            _check_actor_critic(run, spec)
        case _:
            assert_never(config)
    check_encoder(run.network, spec)
    check_critic_observation(run.network, spec)
    _check_heads(run, spec)
    _check_recurrent(run)
    if run.evaluate_video:
        check_drawing(run)


def check_agents(num_envs: int, num_shards: int, spec: EnvSpec) -> None:
    """Raise `ConfigError` if the agents of an environment would be divided between shards."""
    whole = spec.num_agents * num_shards
    if spec.num_agents > 1 and num_envs % whole:
        below, above = num_envs // whole * whole, -(-num_envs // whole) * whole
        raise ConfigError(
            f"num_envs={num_envs} counts agents, and each of {num_shards} shards needs whole environments of "
            f"{spec.num_agents} agents; use {f'{below} or ' if below else ''}{above}"
        )


def _check_ppo(run: Run, config: PPOConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task that settings of PPO do not fit."""
    if config.bounds_loss_coef > 0 and spec.action.kind != "continuous":
        raise ConfigError(
            f"bounds_loss_coef={config.bounds_loss_coef} is for continuous actions; those of task={run.task} are "
            f"{spec.action.kind}: use 0"
        )
    if config.normalize_observation and spec.image is not None:
        raise ConfigError("normalize_observation=true is for vectors; the network scales images: set it false")
    _check_kl_reference(run, config.kl_reference, spec)


def _check_dqn(run: Run, config: DQNConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task or a network that DQN does not support."""
    if run.env.critic_keys:
        raise ConfigError(f"env.critic_keys={list(run.env.critic_keys)}: algo=dqn has no critic; leave it out")
    if run.network.module is not None:
        check_custom_heads(run.network.module, config)
    try:
        EpsilonGreedy(spec.action)
    except ConfigError as error:
        raise ConfigError(f"task={run.task}: {error}") from None


def _check_actor_critic(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task or a network that SAC and TD3 do not support."""
    action = spec.action
    if action.kind != "continuous":
        kind = "one of several choices" if action.kind == "discrete" else "several choices at once"
        other = "--algo dqn or --algo ppo" if action.kind == "discrete" else "--algo ppo"
        raise ConfigError(f"algo={run.algo} needs continuous actions, and task={run.task} takes {kind}; use {other}")
    with np.errstate(over="ignore", invalid="ignore"):
        lowest, highest = action.float32_bounds
        widths = highest - lowest
    for d, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if low == high or widths[d] == 0:
            raise ConfigError(
                f"algo={run.algo} needs actions that can vary in float32, and dimension {d} of task={run.task} has the "
                f"bounds [{low}, {high}]; leave it out of the action space, or use --algo ppo"
            )
        if not np.isfinite(float(widths[d])) or not low < high:
            raise ConfigError(
                f"algo={run.algo} needs finite bounds of actions, and dimension {d} of task={run.task} has "
                f"[{low}, {high}]; set bounds with env.clip_action=1.0, say, or use --algo ppo"
            )
    if spec.image is not None or (spec.image_parts and run.network.encoder != "mlp"):
        among_numbers = ", network.encoder=mlp for linear layers, or env.policy_keys without them"
        other = "--algo ppo" if spec.image is not None else f"--algo ppo{among_numbers}"
        raise ConfigError(f"algo={run.algo} learns from vectors, and task={run.task} observes images; use {other}")
    if spec.critic_size is not None:
        raise ConfigError(
            f"algo={run.algo} has no observation for the critics alone, and task={run.task} has one; use --algo ppo, "
            "or name the policy's groups as env.critic_keys, too"
        )
    if run.ml_framework == "jax":
        learns_on_device(run)  # raises if env.placement=device does not fit other settings
    network = run.network
    for name in ("module", "shared"):
        if getattr(network, name) not in (None, False):
            raise ConfigError(
                f"network.{name}={as_text(getattr(network, name))} is not a setting of algo={run.algo}; leave it out"
            )


def check_drawing(run: AnyRun) -> None:
    """Raise `ConfigError` for a task that cannot be rendered; renders one picture."""
    assert run.task is not None
    try:
        env: Any = make_vector_env(run.task, run.env, 1, render=True, training=False)
    except ConfigError as error:
        raise ConfigError(f"a video was asked for: {error}") from error
    try:
        env.reset([0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW warns twice, with names of its files, and then fails
            rendered = env.render()
    except Exception as error:
        why = " ".join(str(error).split()) or f"render() raised {type(error).__name__}"
        if isinstance(error, NotImplementedError):
            why += "; it needs a method render that returns an array of bytes, height by width by 3 colours"
        else:
            why += other_mujoco_gl()
        raise ConfigError(f"a video was asked for, and task={run.task} cannot be rendered here: {why}") from error
    finally:
        env.close()
    try:
        picture_of(rendered)
    except ValueError as error:
        raise ConfigError(f"a video was asked for, and task={run.task} cannot be rendered: {error}") from None


def check_critic_observation(config: NetworkConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` for one network of policy and value where the value network observes something else."""
    if spec.critic_size is None:
        return
    if config.module is not None:
        raise ConfigError(
            f"network.module={config.module} has one observation, and the critic of this task one of its own; use null"
        )
    if config.shared:
        raise ConfigError(
            "network.shared=true: the critic of this task has an observation of its own; use null or false"
        )


def _check_kl_reference(run: Run, reference: str, spec: EnvSpec) -> None:
    if reference == "rollout":
        return
    if run.ml_framework == "jax":
        raise ConfigError(f"kl_reference={reference} is not available in JAX; use rollout")
    if spec.action.kind != "continuous":
        raise ConfigError(
            f"kl_reference={reference} is for continuous actions; those of task={run.task} are {spec.action.kind}: "
            "use rollout"
        )


def _check_heads(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for outputs that no action has, or layers of a value network that does not exist."""
    network = run.network
    if run.algo != "ppo" or spec.action.kind != "continuous":
        reason = f"this run has algo={run.algo}" if run.algo != "ppo" else f"those of task={run.task} are not"
        for name, value in (("state_dependent_std", "true"), ("initial_log_std", network.initial_log_std)):
            if getattr(network, name):
                raise ConfigError(f"network.{name}={value} is for continuous actions of PPO; {reason}: leave it out")
    if network.critic_hidden is None:
        return
    reason = None
    if run.algo == "dqn":
        reason = f"algo={run.algo} has no value network"
    elif network.module is not None:
        reason = f"network.module={network.module} has layers of its own"
    elif network.shared:
        reason = "network.shared=true has one body for policy and value (--set network.shared=false has two)"
    elif only_convolves(network, spec):
        reason = "the value network of a task with images has convolutions"
    if reason is not None:
        raise ConfigError(f"network.critic_hidden={list(network.critic_hidden)}: {reason}; leave it out")


def _check_recurrent(run: Run) -> None:
    """Raise `ConfigError` for recurrent layers where they are not supported, or settings of those that do not exist."""
    network, config = run.network, run.algorithm
    setting = f"network.recurrent={network.recurrent}"
    if network.recurrent == "none":
        _refuse_recurrent_settings(run)
        return
    reason = None
    if not isinstance(config, PPOConfig):
        reason = f"algo={run.algo} has no recurrent policies; use algo=ppo, or leave it out"
    elif network.module is not None:
        reason = f"network.module={network.module} is called with observations alone; leave one of them out"
    elif config.symmetry is not None:
        reason = (
            f"symmetry={config.symmetry} does not say what the mirror image of a state of recurrent layers is; leave "
            "one of them out"
        )
    elif run.precision != "float32":
        reason = f"recurrent layers do not support precision={run.precision}; use float32, or leave it out"
    if reason is not None:
        raise ConfigError(f"{setting}: {reason}")
    assert isinstance(config, PPOConfig)
    steps, length = config.num_steps, config.steps_of_sequences
    if config.sequence_length is None and length < min(SHORTEST_SEQUENCE, steps):
        raise ConfigError(
            f"num_steps={steps}: {setting} would learn from sequences of {length} step{'s' * (length > 1)}, its "
            f"largest divisor up to 32, and remember nothing longer; use num_steps={-(-steps // 32) * 32}, or set "
            "sequence_length"
        )


def _refuse_recurrent_settings(run: Run) -> None:
    """Raise `ConfigError` for settings of recurrent layers in a run without them."""
    network, config, default = run.network, run.algorithm, NetworkConfig()
    given = {
        f"network.{name}": getattr(network, name)
        for name in ("recurrent_size", "recurrent_layers")
        if getattr(network, name) != getattr(default, name)
    }
    way_out = f"algo={run.algo} has none: leave it out"
    if isinstance(config, PPOConfig):
        way_out = "set network.recurrent to gru or lstm, or leave it out"
        if config.sequence_length is not None:
            given = {"sequence_length": config.sequence_length, **given}
    if given:
        name, value = next(iter(given.items()))
        raise ConfigError(f"{name}={value} is for recurrent policies; {way_out}")


def check_custom_heads(path: str, algorithm: DQNConfig) -> None:
    """Raise `ConfigError` for settings of Lockstep's heads with a user's `network.module`."""
    for name in ("dueling", "noisy"):
        if getattr(algorithm, name):
            raise ConfigError(
                f"algorithm.{name}=true shapes Lockstep's own heads, but network.module={path} has its own; "
                f"use --set {name}=false"
            )
