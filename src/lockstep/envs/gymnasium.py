"""Gymnasium tasks: by their own vectorized entry point, in one process, or in worker processes."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.wrappers import TimeLimit

from lockstep.config.env import EnvConfig
from lockstep.envs import atari
from lockstep.envs.adapters import Env, EnvFactory, SingleEnvs, VectorizedTask, config_errors
from lockstep.envs.groups import ObservationGroups, refuse_groups
from lockstep.envs.load import near
from lockstep.envs.mujoco_warnings import of_gymnasium, without_warnings
from lockstep.envs.spaces import action_spec, image_shape, observation_size
from lockstep.envs.spec import EnvSpec, threshold_of
from lockstep.envs.vector import BUILT_IN, GROUPS, VectorEnv, refuse_single_env_settings, refuse_unknown_kwargs
from lockstep.envs.workers import WorkerEnvs
from lockstep.envs.wrappers import load_wrappers
from lockstep.errors import ConfigError

_OF_MAKE = {
    "max_episode_steps": "use env.max_episode_steps",
    "disable_env_checker": "Gymnasium's own checks are always off (`lockstep check TASK` has ours); leave it out",
    "id": "the setting task names the environment; leave it out",
}
"""The arguments of `gymnasium.make` itself, and what to do instead."""
_OF_MAKE_VEC = ("vectorization_mode", "vector_kwargs", "wrappers")
"""Those of `gymnasium.make_vec`, which no entry point receives."""


def known_tasks() -> list[str]:
    """All task ids."""
    atari.register()
    return [*BUILT_IN, *gymnasium.registry]


def suggested_tasks() -> list[str]:
    """The task ids that may be meant: all but those of games that need a setting to be played."""
    atari.register()
    return [*BUILT_IN, *(name for name, one in gymnasium.registry.items() if not atari.draws_frame_skip(one))]


def make(task: str, config: EnvConfig, num_envs: int, *, render: bool, training: bool = True) -> VectorEnv:
    """The vector environment of a registered Gymnasium id."""
    registered = gymnasium.registry.get(task)
    if registered is None:
        suggested = suggested_tasks()  # registers Atari games as a side effect
        registered = gymnasium.registry.get(task)
        if registered is None:
            raise atari.refusal(task) or ConfigError(
                f"task={task} is unknown{near(task, suggested)} "
                "(Gymnasium ids, lockstep/... ids, module:Class and file.py:Class are understood, and module:Id-v0 for "
                "an id that your module registers)"
            )
    if atari.is_game(registered):
        refuse_groups(config, f"{task} observes images")
        return _games(registered, config, num_envs, render=render, training=training)
    _refuse_arguments_of_make(config)
    kwargs = dict(config.kwargs) | ({"render_mode": "rgb_array"} if render else {})
    limit = registered.max_episode_steps if config.max_episode_steps is None else config.max_episode_steps
    refusal = None
    if config.vectorization in ("auto", "entry_point"):
        refusal = _entry_point_refusal(registered, config, kwargs)
        if refusal is None:
            # By Gymnasium's convention the entry point applies the limit if the task is registered with one.
            limits = {} if limit is None else {"max_episode_steps": limit}
            creator: Callable[..., Any] = partial(
                gymnasium.make_vec, task, vectorization_mode="vector_entry_point", **kwargs, **limits
            )
            made = _adapt_vector(creator, task, num_envs, threshold_of(registered, task), limit)
            if not isinstance(made, str):
                return made
            refusal = made
        if config.vectorization == "entry_point":
            raise ConfigError(f"env.vectorization=entry_point cannot serve {task}: {refusal}; use auto, sync or async")
    if registered.entry_point is None:
        reason = refusal or f"env.vectorization={config.vectorization}; use auto"
        raise ConfigError(f"task={task} has only a vectorized entry point, which cannot be used: {reason}")
    with config_errors(task):
        refuse_unknown_kwargs(_creator(registered.entry_point), config, task, settings=False)
    env = _vectorize(creator_of_id(task, config, kwargs), task, config, num_envs)
    return SingleEnvs(env, threshold_of(registered, task), limit)


def _games(registered: Any, config: EnvConfig, num_envs: int, *, render: bool, training: bool) -> VectorEnv:
    """Atari games, in C++, or single games with Gymnasium's wrappers if the config requires it."""
    if not config.wrappers and config.vectorization in ("auto", "entry_point"):
        return atari.make(registered, config, num_envs, render=render, training=training)
    if config.vectorization == "entry_point":
        raise ConfigError("env.vectorization=entry_point: env.wrappers need single environments; use auto")
    from lockstep.envs.atari_wrappers import single_game

    rom, options, limit = atari.settings_of(registered, config)
    create = single_game(registered.id, rom, options, limit, training=training, render=render)
    env = _vectorize(create, registered.id, config, num_envs)
    return SingleEnvs(env, None, limit, 1 if config.wrappers else options.stack_num)


def adapt_class(cls: type, task: str, config: EnvConfig, num_envs: int, *, render: bool) -> VectorEnv | None:
    """The vector environment of a user's Gymnasium class; `None` if it is neither an `Env` nor a `VectorEnv`.

    The class attribute `reward_threshold` is the mean return at which the task counts as solved.
    """
    kwargs = dict(config.kwargs) | ({"render_mode": "rgb_array"} if render else {})
    limit, threshold = config.max_episode_steps, threshold_of(cls, task)
    if issubclass(cls, GymnasiumVectorEnv):
        refuse_groups(config, f"{task} is vectorized itself")
        refuse_single_env_settings(config, f"{task} is vectorized itself")
        refuse_unknown_kwargs(cls, config, task, settings=True)
        limits = {} if limit is None else {"max_episode_steps": limit}
        made = _adapt_vector(partial(cast(Any, cls), **kwargs, **limits), task, num_envs, threshold, limit)
        if isinstance(made, str):
            raise ConfigError(f"task={task} cannot be used: {made}")
        return made
    if not issubclass(cls, gymnasium.Env):
        return None
    if config.vectorization == "entry_point":
        raise ConfigError(f"env.vectorization=entry_point: {task} is a single environment; use auto, sync or async")
    refuse_unknown_kwargs(cls, config, task, settings=False)
    create = creator_of_class(cast(Any, cls), config, kwargs)
    return SingleEnvs(_vectorize(create, task, config, num_envs), threshold, limit)


def creator_of_id(task: str, config: EnvConfig, kwargs: Mapping[str, Any]) -> Callable[[], Env]:
    """A factory of one environment of a registered id."""
    create = partial(gymnasium.make, task, config.max_episode_steps, disable_env_checker=True, **kwargs)
    return partial(without_warnings, create) if of_gymnasium(gymnasium.registry[task]) else create


def creator_of_class(cls: Any, config: EnvConfig, kwargs: Mapping[str, Any]) -> Callable[[], Env]:
    """A factory of one environment of a user-defined class."""
    limit = config.max_episode_steps

    def create() -> Env:
        env: Env = cls(**kwargs)
        return env if limit is None else TimeLimit(env, limit)

    return create


def env_factory(create: Callable[[], Env], task: str, config: EnvConfig) -> EnvFactory:
    """The factory of the environments of a shard, with the wrappers of the config."""
    wrappers = load_wrappers(config)
    if config.policy_keys or config.critic_keys:
        groups = partial(ObservationGroups, policy_keys=config.policy_keys, critic_keys=config.critic_keys)
        wrappers.append(groups)
    return EnvFactory(create, tuple(wrappers), task, os.getpid())


def _refuse_arguments_of_make(config: EnvConfig) -> None:
    """Refuse names under `env.kwargs` that `gymnasium.make` takes for itself, so that no environment receives them."""
    for name, advice in _OF_MAKE.items():
        if name in config.kwargs:
            raise ConfigError(f"env.kwargs {name}={config.kwargs[name]}: {advice}")


def _entry_point_refusal(registered: Any, config: EnvConfig, kwargs: Mapping[str, Any]) -> str | None:
    """Why the task's vectorized entry point does not support the config; `None` if it does."""
    if registered.vector_entry_point is None:
        return "the task has no vectorized entry point"
    if config.wrappers or registered.additional_wrappers:
        return "wrappers need single environments"
    for name in GROUPS:
        if getattr(config, name):
            return f"env.{name} needs single environments"
    if config.max_episode_steps is not None and registered.max_episode_steps is None:
        return "its entry point takes no max_episode_steps"
    with config_errors(registered.id):
        creator = _creator(registered.vector_entry_point)
        parameters = inspect.signature(creator).parameters
    if any(base.__name__ == "FunctionalJaxVectorEnv" for base in getattr(creator, "__mro__", ())):
        return "Gymnasium's FunctionalJaxVectorEnv undoes the steps of all environments when one resets"
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in kwargs if name in _OF_MAKE_VEC or not (takes_all or name in parameters)]
    if unknown:
        return f"its entry point takes no {', '.join(unknown)}"
    return None


def _creator(entry_point: Any) -> Any:
    return entry_point if callable(entry_point) else load_env_creator(entry_point)


def _adapt_vector(
    creator: Callable[..., Any], task: str, num_envs: int, threshold: float | None, limit: int | None
) -> VectorizedTask | str:
    """The adapter of a Gymnasium vector environment, or why there can be none."""
    with config_errors(task):
        env = creator(num_envs=num_envs)
        observation_space: Any = env.single_observation_space
    try:
        metadata: Mapping[str, Any] = env.metadata or {}
        mode = metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            env.close()
            return "it does not say that it resets ended environments itself (metadata autoreset_mode)"
        if not isinstance(observation_space, gymnasium.spaces.Box):
            env.close()
            return "its observation space is not a Box"
        spec = EnvSpec(
            observation_size=observation_size(observation_space, task),
            image=image_shape(observation_space),
            action=action_spec(env.single_action_space, task),
            autoreset="next_step" if mode is AutoresetMode.NEXT_STEP else "same_step",
            separately_seedable=False,
            reward_threshold=threshold,
            max_episode_steps=limit,
        )
        return VectorizedTask(env, spec, task)
    except ConfigError:
        env.close()
        raise


def _vectorize(create: Callable[[], Env], task: str, config: EnvConfig, num_envs: int) -> SyncVectorEnv | WorkerEnvs:
    """Single environments, in this process or in workers."""
    factory = env_factory(create, task, config)
    factories = [replace(factory, index=index) for index in range(num_envs)]
    with config_errors(task):
        if config.vectorization == "async":
            return WorkerEnvs(factories)
        return SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
