"""Environments on torch tensors, by task name."""

import importlib
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch

from lockstep.config.env import EnvConfig
from lockstep.envs import isaac
from lockstep.envs.limits import has_limits, limited_spec, without_limits
from lockstep.envs.load import load_module
from lockstep.envs.make import cannot_be_drawn, stays_on_device
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import (
    kwargs_of,
    not_made_error,
    refuse_numbers_of_actions,
    refuse_single_env_settings,
    refuse_unknown_kwargs,
)
from lockstep.errors import ConfigError, RunError
from lockstep.run import Run
from lockstep.torch.envs.interface import TensorVectorEnv
from lockstep.torch.envs.limits import LimitedEnv

BUILT_IN = {
    "lockstep/Cartpole-v0": ("lockstep.torch.envs.cartpole", "Cartpole"),
    "lockstep/PixelPong-v0": ("lockstep.torch.envs.pixel_pong", "PixelPong"),
}
"""Classes of the built-in tasks."""
_ADAPTERS = {
    **dict.fromkeys(isaac.PREFIXES, "lockstep.torch.envs.isaac_lab"),
    "Mjlab-": "lockstep.torch.envs.mjlab",
    "envpool/": "lockstep.torch.envs.envpool",
}
"""Modules of the adapters, by prefix of their tasks (the prefixes are also in `lockstep.envs.make.TENSOR_PREFIXES`).

An adapter has the function `maker(task)`, which returns a factory that is called as `Class(num_envs=..., device=...,
**kwargs)`, and `drawing_maker(task)` if its tasks can be drawn. It may have `env_spec(task, config)` where making an
environment to read its spec is expensive.
"""


_MANY = 256
"""Environments, over all ranks, from which a built-in task is faster on tensors than in numpy on a CPU."""


def steps_on_device(run: Run, device: torch.device) -> bool:
    """Whether PPO steps the environments of the run on tensors of the learner's device. Equal on all ranks."""
    preferred = device.type == "cuda" or run.num_envs >= _MANY
    return stays_on_device(run.task, run.env, "torch", preferred=preferred)


def make_tensor_env(
    task: str, config: EnvConfig, num_envs: int, device: torch.device, *, render: bool = False
) -> TensorVectorEnv:
    """The environments of a shard.

    Args:
        task: a built-in task, an adapter's, or `module:Class` of a class with `on_tensors = True`.
        config: of the environments.
        num_envs: B.
        device: of the tensors.
        render: make environments that can be drawn (`DrawnTensorEnv`): an adapter's, or of a class that has `render`.
    """
    refuse_single_env_settings(config, f"{task} is vectorized itself")
    _refuse_device(config)
    maker = _find_drawing_maker(task) if render else _find_maker(task)
    refuse_unknown_kwargs(maker, config, task, settings=True)
    with _config_errors(task):
        env = maker(num_envs=num_envs, device=device, **kwargs_of(config))
    checked = _check_protocol(env, task, num_envs)
    if _adapter_of(task) is None:
        refuse_numbers_of_actions(checked.spec, task)
    return LimitedEnv(checked, config, task) if has_limits(config) else checked


def tensor_env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of `task`; unless its adapter has a cheaper way, one environment is made on the CPU and closed."""
    adapter = _adapter_of(task)
    if adapter is not None and hasattr(adapter, "env_spec"):
        _refuse_device(config)
        with _config_errors(task):
            spec = adapter.env_spec(task, without_limits(config))
        return limited_spec(spec, config, task)
    env = make_tensor_env(task, config, 1, torch.device("cpu"))
    try:
        return env.spec
    finally:
        env.close()


def _refuse_device(config: EnvConfig) -> None:
    if "device" in config.kwargs:
        raise ConfigError(f"env.kwargs device={config.kwargs['device']} is set by Lockstep; use device")


@contextmanager
def _config_errors(task: str) -> Generator[None]:
    """Convert errors of making an environment, or of a suite that describes one, into a `ConfigError` with the task."""
    try:
        yield
    except (ConfigError, RunError) as error:
        message = str(error)
        raise ConfigError(message if message.startswith("task=") else f"task={task}: {message}") from error
    except Exception as error:
        raise not_made_error(task, error) from error


def _adapter_of(task: str) -> Any:
    """The adapter's module, or None."""
    name = next((module for prefix, module in _ADAPTERS.items() if task.startswith(prefix)), None)
    return None if name is None else importlib.import_module(name)


def _find_maker(task: str) -> Any:
    """The class or factory of `task`."""
    if task in BUILT_IN:
        module, name = BUILT_IN[task]
        return getattr(importlib.import_module(module), name)
    adapter = _adapter_of(task)
    if adapter is not None:
        return adapter.maker(task)
    location, _, name = task.rpartition(":")
    return getattr(load_module(location, f"task={task}"), name)


def _find_drawing_maker(task: str) -> Any:
    """The factory of environments of `task` that can be drawn."""
    adapter = _adapter_of(task)
    if hasattr(adapter, "drawing_maker"):
        return adapter.drawing_maker(task)
    maker = None if adapter is not None else _find_maker(task)
    if not callable(getattr(maker, "render", None)):
        raise cannot_be_drawn(task)
    return maker


def _check_protocol(env: Any, task: str, num_envs: int) -> TensorVectorEnv:
    """The environment, if it follows the protocol."""
    lacking = [name for name in ("reset", "step", "close") if not callable(getattr(env, name, None))]
    if not isinstance(getattr(env, "spec", None), EnvSpec):
        lacking.append("spec (an EnvSpec)")
    if getattr(env, "num_envs", None) != num_envs:
        lacking.append(f"num_envs == {num_envs}")
    if not isinstance(getattr(env, "device", None), torch.device):
        lacking.append("device (a torch.device)")
    if getattr(env, "capturable", False):
        lacking += [
            f"{name}, which `capturable = True` needs"
            for name in ("generators", "state", "restore")
            if not hasattr(env, name)
        ]
    if lacking or inspect.isclass(env):
        raise ConfigError(f"task={task} does not follow lockstep's TensorVectorEnv: it lacks {', '.join(lacking)}")
    return cast(TensorVectorEnv, env)
