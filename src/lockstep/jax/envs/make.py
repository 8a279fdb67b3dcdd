"""From a task's name to an environment on the device."""

import importlib
import inspect
from typing import Any, cast

from lockstep.config.env import EnvConfig
from lockstep.envs.load import load_module, near
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import refuse_unknown_kwargs
from lockstep.errors import ConfigError, RunError
from lockstep.jax.envs.interface import DeviceEnv

BUILT_IN = {"CartPole-v1": ("lockstep.jax.envs.cartpole", "CartPole")}
"""Tasks `jax/NAME`, and the classes behind them."""
_ADAPTERS = {
    "gymnax": "lockstep.jax.envs.gymnax",
    "brax": "lockstep.jax.envs.brax",
    "playground": "lockstep.jax.envs.playground",
}


def make_device_env(task: str, config: EnvConfig) -> DeviceEnv:
    """One environment, as pure functions.

    Args:
        task: `jax/NAME` (built in), `gymnax/NAME`, `brax/NAME`, `playground/NAME`, or `module:Class` of a class with
            `on_device = True`.
        config: how it is made.
    """
    _check(task, config)
    kwargs: dict[str, Any] = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    maker = _maker(task)
    refuse_unknown_kwargs(maker, kwargs, task)
    try:
        env = maker(**kwargs)
    except (ConfigError, RunError) as error:
        raise ConfigError(f"task={task}: {error}") from error
    except Exception as error:
        raise ConfigError(f"task={task} could not be made: {type(error).__name__}: {error}") from error
    return _checked(env, task)


def _maker(task: str) -> Any:
    """What makes an environment of `task`, given keyword arguments."""
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


def _check(task: str, config: EnvConfig) -> None:
    """Refuse what is for environments of the host."""
    if config.wrappers or config.vectorization not in ("auto", "entry_point"):
        setting = (
            f"env.wrappers={list(config.wrappers)}" if config.wrappers else f"env.vectorization={config.vectorization}"
        )
        raise ConfigError(f"{setting} is for single Gymnasium environments; {task} lives on the device: remove it")


def _checked(env: Any, task: str) -> DeviceEnv:
    """The environment, if it has what it needs to have."""
    lacking = [name for name in ("reset", "observe", "step") if not callable(getattr(env, name, None))]
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        lacking.append("spec (an EnvSpec)")
    elif spec.autoreset != "same_step" or not spec.separately_seedable:
        lacking.append("a spec with autoreset='same_step' and separately_seedable=True")
    if lacking or inspect.isclass(env):
        raise ConfigError(f"task={task} does not follow lockstep's DeviceEnv: it lacks {', '.join(lacking)}")
    return cast(DeviceEnv, env)
