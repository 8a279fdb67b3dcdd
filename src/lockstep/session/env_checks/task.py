"""Check the environments of a task by name."""

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
from lockstep.envs.atari import is_game_id
from lockstep.envs.limits import without_limits
from lockstep.envs.load import load_module
from lockstep.envs.make import is_jax_task, jax_module, make_vector_env
from lockstep.envs.pettingzoo import ParallelEnvs
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv, kwargs_of, refuse_taken_kwargs, refuse_unknown_kwargs
from lockstep.session.env_checks.episodes import Limits, check_episodes
from lockstep.session.env_checks.inputs import check_inputs
from lockstep.session.env_checks.report import CheckEndedError, Report
from lockstep.session.env_checks.single_env import check_single
from lockstep.session.env_checks.values import check_spaces, describe_network_input, describe_spaces
from lockstep.session.env_checks.vector_env import NUM_ENVS, GymnasiumVectorDriver, ProtocolDriver, check_modes


def uses_user_code(task: str, config: EnvConfig) -> bool:
    """Whether the environment contains user code: `module:Class`, `file.py:Class`, or wrappers."""
    return ":" in task or bool(config.wrappers)


def check_env_of_task(
    task: str, config: EnvConfig, report: Report, limits: Limits, *, trace_only: bool = False
) -> None:
    """Check the environments of a task.

    The global random generators of Python and numpy are restored afterwards.

    Args:
        task: as for `make_vector_env`.
        config: of the environments.
        report: receives the findings.
        limits: of steps and time.
        trace_only: of an environment in JAX, check only types and shapes, without computing.

    Raises:
        ConfigError: the task does not exist, or cannot be made with this config.
    """
    refuse_taken_kwargs(config)
    config = without_limits(config)  # the faults are those of the environment itself
    with _preserve_random_state(), warnings.catch_warnings(), suppress(CheckEndedError):
        warnings.simplefilter("ignore")
        with _exits_are_faults(report):
            _check(task, config, report, limits, trace_only=trace_only)


def _check(task: str, config: EnvConfig, report: Report, limits: Limits, *, trace_only: bool) -> None:
    if is_jax_task(task):
        jax_module("check", task).check_device_env(task, config, report)
        if not trace_only and not report.faults:
            _check_protocol(lambda: make_vector_env(task, config, NUM_ENVS), report, limits)
        return
    cls = _class_of(task)
    if cls is not None and _derives(cls, gymnasium.vector.VectorEnv):
        _check_vector_class(cls, task, config, report, limits)
    elif cls is not None and _derives(cls, gymnasium.Env):
        refuse_unknown_kwargs(cls, config, task, settings=False)
        create = tasks.creator_of_class(cls, config, config.kwargs)
        _check_single(create, task, config, config.max_episode_steps, report, limits)
    else:
        _check_made(task, config, report, limits)


@contextmanager
def _exits_are_faults(report: Report) -> Generator[None]:
    """Report an environment that ends the process."""
    try:
        yield
    except SystemExit as end:
        report.fatal(f"{report.doing} called sys.exit({end.code}); raise an exception to report a failure")


def _class_of(task: str) -> Any:
    """The user-defined class that the task names, or None."""
    location, _, name = task.rpartition(":")
    found: Any = getattr(load_module(location, f"task={task}"), name, None) if location else None
    return found if inspect.isclass(found) else None


def _derives(cls: type, base: type) -> bool:
    return issubclass(cls, base)  # a function, because pyright would narrow to Gymnasium's partially typed generics


def _check_made(task: str, config: EnvConfig, report: Report, limits: Limits) -> None:
    """Check an environment by registered id, a built-in one, or one that follows `VectorEnv`."""
    env = make_vector_env(task, config, NUM_ENVS, training=False)
    env.close()
    name = task.rpartition(":")[2]
    # An Atari game is made by Lockstep, not by its entry: with wrappers it shows one stack of frames, too.
    if isinstance(env, SingleEnvs) and env.spec.frames == 1 and not is_game_id(name):
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
    """Check the unwrapped task, whose faults wrappers could hide, then the wrapped one."""
    report.wrapped = bool(config.wrappers)
    if config.wrappers or limit is not None:
        bare = Report(skip_non_finite=report.skip_non_finite)
        with suppress(CheckEndedError):
            # What `policy_keys` leave out, and wrappers replace, need not be supported.
            inner = bool(config.wrappers or config.policy_keys or config.critic_keys)
            check_single(lambda: create().unwrapped, task, limit, bare, Limits(seconds=0), inner=inner)
        report.faults += bare.faults
        if report.faults:
            return
    check_single(tasks.env_factory(create, task, config).wrapped, task, limit, report, limits)


def _check_vector_class(cls: type, task: str, config: EnvConfig, report: Report, limits: Limits) -> None:
    limit, kwargs = config.max_episode_steps, kwargs_of(config)
    refuse_unknown_kwargs(cls, config, task, settings=True)
    create: Any = cls
    _check_gymnasium(lambda: create(num_envs=NUM_ENVS, **kwargs), limit, task, report, limits)


def _check_gymnasium(create: Callable[[], Any], limit: int | None, task: str, report: Report, limits: Limits) -> None:
    env = report.call("__init__", create)
    try:
        check_spaces(env, report, "single_")
        check_modes(env, report)
        driver = GymnasiumVectorDriver(env, limit, task, report)
        spaces = env.single_observation_space, env.single_action_space
        check_inputs(spaces[0], report)
        report.facts += describe_spaces(*spaces, "many environments together")
        check_episodes(driver, lambda: GymnasiumVectorDriver(create(), limit, task, report), limits)
    finally:
        env.close()


def _check_protocol(create: Callable[[], VectorEnv], report: Report, limits: Limits) -> None:
    env = create()
    try:
        report.facts += describe_spec(env.spec)
        if isinstance(env, ParallelEnvs):
            check_inputs(env.observation_space, report)
        driver = ProtocolDriver(env, report)
        driver.check_seeds()
        check_episodes(driver, lambda: ProtocolDriver(create(), report), limits)
    finally:
        env.close()


def describe_spec(spec: EnvSpec) -> list[str]:
    """Facts about a spec, for the report."""
    sizes = " x ".join(map(str, spec.action.sizes))
    critic = [] if spec.critic_size is None else [f"observations of the critic alone: a vector of {spec.critic_size}"]
    agents = [f"agents: {spec.num_agents}, each a row of the batch"] if spec.num_agents > 1 else []
    return [
        f"observations: {describe_network_input(spec.observation_size, spec.image, spec.image_parts)}",
        *critic,
        f"actions: {spec.action.kind.replace('_', '-')}, {sizes}",
        *agents,
    ]


@contextmanager
def _preserve_random_state() -> Generator[None]:
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
