"""From the name of a task to what is found out about its environments."""

import inspect
import random
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium
import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.envs import gymnasium as tasks
from lockstep.envs.adapters import Env, SingleEnvs, VectorizedTask
from lockstep.envs.load import load_module
from lockstep.envs.make import jax_module, make_vector_env, on_device
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv, refuse_unknown_kwargs
from lockstep.session.env_checks.batch import NUM_ENVS, GymnasiumPlayer, ProtocolPlayer, check_modes
from lockstep.session.env_checks.play import Limits, check_play
from lockstep.session.env_checks.report import CheckEndedError, Report
from lockstep.session.env_checks.single import check_single
from lockstep.session.env_checks.values import check_spaces, seen_by_network, told_of_spaces


def is_own(task: str, config: EnvConfig) -> bool:
    """Whether code of the user's own is part of the environment: `module:Class`, `file.py:Class`, or wrappers."""
    return ":" in task or bool(config.wrappers)


def check_task(task: str, config: EnvConfig, report: Report, limits: Limits, *, trace_only: bool = False) -> None:
    """Find out what is wrong with the environments of a task.

    Random generators of Python and numpy that belong to nobody are left as they were.

    Args:
        task: its name, as `make_vector_env` takes it.
        config: how environments are made.
        report: what is found goes there.
        limits: how much to play.
        trace_only: of an environment in JAX only look at types and shapes; nothing is computed.

    Raises:
        ConfigError: there is no such task, or it cannot be made with this config.
    """
    with _generators_kept(), warnings.catch_warnings(), suppress(CheckEndedError):
        warnings.simplefilter("ignore")
        if on_device(task):
            jax_module("check", task).check_device_env(task, config, report)
            if not trace_only and not report.faults:
                _check_protocol(lambda: make_vector_env(task, config, NUM_ENVS), report, limits)
            return
        found = _class_of(task)
        if found is not None and _derives(found, gymnasium.vector.VectorEnv):
            _check_vector_class(found, task, config, report, limits)
        elif found is not None and _derives(found, gymnasium.Env):
            refuse_unknown_kwargs(found, dict(config.kwargs), task)
            create = tasks.creator_of_class(found, config, config.kwargs)
            _check_single(create, task, config, config.max_episode_steps, report, limits)
        else:
            _check_made(task, config, report, limits)


def _class_of(task: str) -> Any:
    """The user's class, where the task names one."""
    location, _, name = task.rpartition(":")
    found: Any = getattr(load_module(location, f"task={task}"), name, None) if location else None
    return found if inspect.isclass(found) else None


def _derives(cls: type, base: type) -> bool:
    return issubclass(cls, base)  # apart, because a checker would narrow to Gymnasium's half-typed generics


def _check_made(task: str, config: EnvConfig, report: Report, limits: Limits) -> None:
    """An environment that comes by a registered id, is built in, or follows our protocol."""
    env = make_vector_env(task, config, NUM_ENVS, training=False)
    env.close()
    if isinstance(env, SingleEnvs) and env.spec.frames == 1:
        name = task.rpartition(":")[2]
        create = tasks.creator_of_id(name, config, config.kwargs)
        _check_single(create, task, config, env.spec.max_episode_steps, report, limits)
    elif isinstance(env, VectorizedTask):
        limit = env.spec.max_episode_steps

        def create_raw() -> Any:
            made: Any = make_vector_env(task, config, NUM_ENVS)
            return made.raw

        _check_gymnasium(create_raw, limit, task, report, limits)
    else:
        _check_protocol(lambda: make_vector_env(task, config, NUM_ENVS, training=False), report, limits)


def _check_single(
    create: Callable[[], Env], task: str, config: EnvConfig, limit: int | None, report: Report, limits: Limits
) -> None:
    """The task itself, whose faults a wrapper would blur, then all of it."""
    if config.wrappers or limit is not None:
        bare = Report(skip_non_finite=report.skip_non_finite)
        with suppress(CheckEndedError):
            check_single(lambda: create().unwrapped, task, limit, bare, Limits(seconds=0), inner=bool(config.wrappers))
        report.faults += bare.faults
        if report.faults:
            return
    check_single(tasks.maker_of(create, task, config).wrapped, task, limit, report, limits)


def _check_vector_class(cls: type, task: str, config: EnvConfig, report: Report, limits: Limits) -> None:
    limit = config.max_episode_steps
    kwargs = dict(config.kwargs) | ({} if limit is None else {"max_episode_steps": limit})
    refuse_unknown_kwargs(cls, kwargs, task)
    create: Any = cls
    _check_gymnasium(lambda: create(num_envs=NUM_ENVS, **kwargs), limit, task, report, limits)


def _check_gymnasium(create: Callable[[], Any], limit: int | None, task: str, report: Report, limits: Limits) -> None:
    """A vector environment of Gymnasium."""
    env = report.call("__init__", create)
    try:
        check_spaces(env, report, "single_")
        check_modes(env, report)
        player = GymnasiumPlayer(env, limit, task, report)
        spaces = env.single_observation_space, env.single_action_space
        report.facts += told_of_spaces(*spaces, "many environments together")
        check_play(player, lambda: GymnasiumPlayer(create(), limit, task, report), limits)
    finally:
        env.close()


def _check_protocol(create: Callable[[], VectorEnv], report: Report, limits: Limits) -> None:
    """Environments that follow `VectorEnv`."""
    env = create()
    try:
        report.facts += told_of_spec(env.spec)
        player = ProtocolPlayer(env, report)
        player.check_seeds()
        check_play(player, lambda: ProtocolPlayer(create(), report), limits)
    finally:
        env.close()


def told_of_spec(spec: EnvSpec) -> list[str]:
    """What a spec says, in words."""
    sizes = " x ".join(map(str, spec.action.sizes))
    return [
        f"observations: {seen_by_network(spec.observation_size, spec.image)}",
        f"actions: {spec.action.kind.replace('_', '-')}, {sizes}",
    ]


@contextmanager
def _generators_kept() -> Generator[None]:
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
