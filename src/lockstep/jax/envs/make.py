"""Environments written in JAX, by task name."""

import importlib
from typing import Any, cast

import jax

from lockstep.config.env import EnvConfig
from lockstep.envs.limits import has_limits
from lockstep.envs.load import load_module, near
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import (
    kwargs_of,
    not_made_error,
    refuse_numbers_of_actions,
    refuse_single_env_settings,
    refuse_unknown_kwargs,
)
from lockstep.errors import ConfigError, RunError
from lockstep.jax.envs.interface import DeviceEnv
from lockstep.jax.envs.limits import LimitedEnv
from lockstep.jax.envs.packed import PackedEnv

BUILT_IN = {"CartPole-v1": ("lockstep.jax.envs.gymnasium_cartpole", "CartPole")}
"""Classes of the tasks `jax/NAME`."""
_TASKS_OF_BOTH = {
    "lockstep/Cartpole-v0": ("lockstep.jax.envs.cartpole", "Cartpole"),
    "lockstep/PixelPong-v0": ("lockstep.jax.envs.pixel_pong", "PixelPong"),
}
"""Classes of the tasks that are also in numpy and torch."""
_ADAPTERS = {
    "gymnax": "lockstep.jax.envs.gymnax",
    "brax": "lockstep.jax.envs.brax",
    "playground": "lockstep.jax.envs.playground",
}


def make_device_env(task: str, config: EnvConfig) -> DeviceEnv:
    """One environment, as pure functions.

    Args:
        task: `jax/NAME`, `lockstep/Cartpole-v0` or `lockstep/PixelPong-v0` (built in), `gymnax/NAME`, `brax/NAME`,
            `playground/NAME`, or `module:Class` of a class with `on_device = True`.
        config: of the environment.
    """
    refuse_single_env_settings(config, f"{task} runs on the device")
    kwargs = kwargs_of(config)
    maker = _find_maker(task)
    refuse_unknown_kwargs(maker, config, task, settings=True)
    try:
        env = maker(**kwargs)
    except (ConfigError, RunError) as error:
        raise ConfigError(f"task={task}: {error}") from error
    except Exception as error:
        raise not_made_error(task, error) from error
    checked = _check_protocol(env, task)
    if task.partition("/")[0] in _ADAPTERS:
        _check_that_it_steps(checked, task)
    else:
        refuse_numbers_of_actions(checked.spec, task)
    return LimitedEnv(checked, config, task) if has_limits(config) else checked


def _find_maker(task: str) -> Any:
    """The class or factory of `task`, which takes keyword arguments."""
    if task in _TASKS_OF_BOTH:
        module, attribute = _TASKS_OF_BOTH[task]
        return getattr(importlib.import_module(module), attribute)
    family, slash, name = task.partition("/")
    if ":" in task or not slash:
        location, _, name = task.rpartition(":")
        return getattr(load_module(location, f"task={task}"), name)
    if family == "jax":
        if name not in BUILT_IN:
            raise ConfigError(
                f"task={task} is not built in{near(name, list(BUILT_IN))} (there is jax/{', jax/'.join(BUILT_IN)})"
            )
        module, attribute = BUILT_IN[name]
        return getattr(importlib.import_module(module), attribute)
    try:
        return importlib.import_module(_ADAPTERS[family]).maker(name)
    except ModuleNotFoundError as error:
        package = (error.name or family).split(".")[0]
        extra = f"pip install 'lockstep-rl[{family}]'"
        raise ConfigError(f"task={task} needs the Python package {package}: {extra}") from error


def _check_that_it_steps(env: DeviceEnv, task: str) -> None:
    """Trace a task of a package, which may have been written for another version of JAX."""
    try:
        PackedEnv(env)  # traces `reset` and `step`
    except Exception as error:
        package = task.partition("/")[0]
        raise ConfigError(
            f"task={task}: {package} cannot step it with jax {jax.__version__}: {type(error).__name__}: {error}; use "
            f"versions of {package} and jax that fit, or another task"
        ) from error


def _check_protocol(env: Any, task: str) -> DeviceEnv:
    """The environment, if it follows the protocol."""
    lacking = [name for name in ("reset", "observe", "step") if not callable(getattr(env, name, None))]
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        lacking.append("spec (an EnvSpec)")
    elif spec.autoreset != "same_step" or not spec.separately_seedable:
        lacking.append("a spec with autoreset='same_step' and separately_seedable=True")
    if lacking:
        raise ConfigError(f"task={task} does not follow lockstep's DeviceEnv: it lacks {', '.join(lacking)}")
    return cast(DeviceEnv, env)
