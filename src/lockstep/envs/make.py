"""Vector environments by task name."""

import importlib
import inspect
import os
from typing import Any, Literal, cast

from lockstep.config.env import EnvConfig
from lockstep.envs import isaac
from lockstep.envs.limits import LimitedEnv, has_limits, without_limits
from lockstep.envs.load import load_module, near
from lockstep.envs.spec import EnvSpec
from lockstep.envs.stacking import StackedEnv, stacked_spec
from lockstep.envs.state import UNSAVABLE
from lockstep.envs.vector import (
    BUILT_IN,
    GROUPS,
    VectorEnv,
    kwargs_of,
    not_made_error,
    refuse_numbers_of_actions,
    refuse_single_env_settings,
    refuse_taken_kwargs,
    refuse_unknown_kwargs,
)
from lockstep.errors import ConfigError

JAX_PREFIXES = ("jax", "gymnax", "brax", "playground")
"""Prefixes of tasks `FAMILY/NAME` whose environments are written in JAX."""
TENSOR_PREFIXES = (*isaac.PREFIXES, "Mjlab-", "envpool/")
"""Prefixes of tasks whose environments are on torch tensors, from adapters of `lockstep.torch.envs`."""
PIXELS_OF_BOTH = "lockstep/PixelPong-v0"
TASKS_OF_BOTH = ("lockstep/Cartpole-v0", PIXELS_OF_BOTH)
"""Tasks written in numpy, torch and JAX."""


def make_vector_env(
    task: str, config: EnvConfig, num_envs: int, *, render: bool = False, training: bool = True
) -> VectorEnv:
    """The environments of a shard.

    Call it on the main thread, because worker processes die with the thread that started them.

    Args:
        task: a Gymnasium id (also `module:Id-v0`), a built-in `lockstep/...` id, or your own `module:Class` or
            `file.py:Class`: a `gymnasium.Env`, a `gymnasium.vector.VectorEnv` or a class that follows `VectorEnv`.
            Tasks written in JAX or on torch tensors are wrapped for the host.
        config: of the environments.
        num_envs: B; rounded up to whole environments where several agents share one.
        render: make environments with `render_mode="rgb_array"`.
        training: `False` disables training aids (Atari: episodic life and reward clipping).
    """
    _check(config, num_envs)
    env = _make(task, config, num_envs, render=render, training=training)
    if has_limits(config):
        env = LimitedEnv(env, config, task)
    return env if config.frame_stack == 1 else StackedEnv(env, config.frame_stack, task)


def _make(task: str, config: EnvConfig, num_envs: int, *, render: bool, training: bool) -> VectorEnv:
    """The environments without the limits of `lockstep.envs.limits`."""
    if render:  # without this SDL, which Gymnasium's tasks render with, searches for a display and prints errors
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if is_jax_task(task):
        if render:
            raise cannot_be_drawn(task)
        return jax_module("host", task).make(task, without_limits(config), num_envs)
    if is_tensor_task(task):
        make = torch_module("host", task).make
        return make(task, without_limits(config), num_envs, render=render, training=training)
    if task in BUILT_IN:
        module, name = BUILT_IN[task]
        return _build(getattr(importlib.import_module(module), name), task, config, num_envs, render)
    # Imported here because it takes 0.2 s, which built-in tasks do not need.
    from lockstep.envs import gymnasium, pettingzoo

    if pettingzoo.is_task(task):
        return pettingzoo.make(task, config, num_envs, render=render)
    if ":" not in task:
        return gymnasium.make(task, config, num_envs, render=render, training=training)
    return _make_of_module(task, config, num_envs, render=render, training=training)


def _make_of_module(task: str, config: EnvConfig, num_envs: int, *, render: bool, training: bool) -> VectorEnv:
    """The environments of `module:Class` or `module:Id-v0`."""
    from lockstep.envs import gymnasium, pettingzoo

    location, _, name = task.rpartition(":")
    module = load_module(location, f"task={task}")
    found = getattr(module, name, None)
    if found is None:
        if name in gymnasium.known_tasks():
            return gymnasium.make(name, config, num_envs, render=render, training=training)
        own = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"task={task}: {location} has no {name}{near(name, [*own, *gymnasium.suggested_tasks()])}")
    if not inspect.isclass(found):
        registered = f'gymnasium.register("My-v0", entry_point={name})'
        function = f" (a function goes with {registered} in {location}, and the task {location}:My-v0)"
        raise ConfigError(
            f"task={task} is not a class; name a gymnasium.Env, a pettingzoo.ParallelEnv or a class that follows "
            f"lockstep's VectorEnv{function if inspect.isfunction(found) else ''}"
        )
    if pettingzoo.is_parallel_env(found):
        return pettingzoo.adapt(found, task, config, num_envs, render=render)
    adapted = gymnasium.adapt_class(found, task, config, num_envs, render=render)
    return _build(found, task, config, num_envs, render) if adapted is None else adapted


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of `task`.

    Makes one environment and closes it, so that tasks that cannot be made are refused before a run starts.
    """
    if is_jax_task(task) or is_tensor_task(task):
        _check(config, 1)
        if is_jax_task(task):
            spec: EnvSpec = jax_module("subprocess_spec", task).device_env_spec(task, config)
        else:
            spec = torch_module("make", task).tensor_env_spec(task, config)
        return spec if config.frame_stack == 1 else stacked_spec(spec, config.frame_stack, task)
    env = make_vector_env(task, config, 1)
    try:
        return env.spec
    finally:
        env.close()


def is_jax_task(task: str) -> bool:
    """Whether environments of `task` are written in JAX: `JAX_PREFIXES`, and classes with `on_device = True`."""
    return task.partition("/")[0] in JAX_PREFIXES if ":" not in task else _class_flag(task, "on_device")


def is_tensor_task(task: str) -> bool:
    """Whether environments of `task` are on torch tensors: `TENSOR_PREFIXES`, and classes with `on_tensors = True`."""
    if isaac.is_isaac(task) and not isaac.is_installed():
        raise isaac.refusal(task)
    return task.startswith(TENSOR_PREFIXES) if ":" not in task else _class_flag(task, "on_tensors")


def takes_groups(task: str) -> bool:
    """Whether environments of `task` are on torch tensors and take `env.policy_keys` and `env.critic_keys`.

    Those of Isaac Lab and mjlab do, and a class whose `__init__` names both.
    """
    if not is_tensor_task(task):
        return False
    if ":" not in task:
        return not task.startswith("envpool/")
    return set(GROUPS) <= inspect.signature(_class_of(task)).parameters.keys()


def stays_on_device(task: str, config: EnvConfig, framework: Literal["torch", "jax"], *, preferred: bool) -> bool:
    """Whether a learner in `framework` steps the environments of `task` on the learner's device; see `env.placement`.

    False for torch tensors that a learner in JAX reads through DLPack; see `reads_tensors`.

    Args:
        task: its name.
        config: of the environments.
        framework: of the learner.
        preferred: `auto` for tasks that are both on the host and on the device.
    """
    native = is_jax_task(task) if framework == "jax" else is_tensor_task(task)
    if framework == "jax" and reads_tensors(task, config):
        return False
    if config.placement == "device" and not native and task not in TASKS_OF_BOTH:
        kind = "JAX" if framework == "jax" else "torch tensors"
        raise ConfigError(f"env.placement=device: task={task} is not written for {kind}; use auto or host")
    if config.frame_stack > 1:
        if config.placement == "device" or (config.placement == "auto" and native):
            raise ConfigError(
                f"env.frame_stack={config.frame_stack} is for environments on the host; use env.placement=host, or "
                "for PPO network.recurrent=gru instead"
            )
        return False
    if config.placement != "auto":
        return config.placement == "device"
    return native or (task in TASKS_OF_BOTH and preferred)


def reads_tensors(task: str, config: EnvConfig) -> bool:
    """Whether PPO in JAX reads the torch tensors of `task` through DLPack, instead of copies on the host."""
    return is_tensor_task(task) and config.placement != "host" and config.frame_stack == 1


def unsavable_text(task: str) -> str:
    """The warning that environments of `task` cannot be saved, with the way out."""
    from lockstep.envs.atari import is_game_id

    way_out = "give the class the methods state() and restore(state), as docs/environments.md shows"
    if is_game_id(task):  # its single emulators, which wrappers need
        way_out = "games are saved with env.vectorization=auto and without env.wrappers"
    return f"{UNSAVABLE}; {way_out}"


def _class_flag(task: str, name: str) -> bool:
    """An attribute of the class that `task=module:Class` names; false if there is none."""
    return bool(getattr(_class_of(task), name, False))


def _class_of(task: str) -> Any:
    """What `task=module:Class` names, or None."""
    location, _, name = task.rpartition(":")
    return getattr(load_module(location, f"task={task}"), name, None)


def jax_module(name: str, task: str) -> Any:
    """Import a module of `lockstep.jax.envs`, which needs JAX."""
    return _framework_module("jax", "JAX", name, task, ("jax", "jaxlib"))


def torch_module(name: str, task: str) -> Any:
    """Import a module of `lockstep.torch.envs`, which needs PyTorch."""
    return _framework_module("torch", "PyTorch", name, task, ("torch",))


def _framework_module(folder: str, framework: str, name: str, task: str, packages: tuple[str, ...]) -> Any:
    try:
        return importlib.import_module(f"lockstep.{folder}.envs.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise ConfigError(
            f"task={task} is written in {framework}, which is not installed: pip install 'lockstep-rl[{folder}]'"
        ) from error


def _check(config: EnvConfig, num_envs: int) -> None:
    """Refuse settings that are invalid for every task."""
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs} must be at least 1")
    refuse_taken_kwargs(config)


def cannot_be_drawn(task: str) -> ConfigError:
    """The error for a task without pictures."""
    return ConfigError(
        f"task={task} cannot be rendered; only tasks of Gymnasium, PettingZoo, mjlab and Isaac Lab, "
        "lockstep/PixelPong-v0, and vector environments with a method render can be"
    )


def _build(cls: type, task: str, config: EnvConfig, num_envs: int, render: bool) -> VectorEnv:
    """Make an instance of a class that follows `VectorEnv`."""
    if render and not callable(getattr(cls, "render", None)):
        raise cannot_be_drawn(task)
    refuse_single_env_settings(config, f"{task} is vectorized itself")
    kwargs = kwargs_of(config)
    _refuse_single(cls, task)
    refuse_unknown_kwargs(cls, config, task, settings=True)
    try:
        env = cls(num_envs=num_envs, **kwargs)
    except ConfigError as error:
        raise ConfigError(f"task={task}: {error}") from error
    except Exception as error:
        raise not_made_error(task, error) from error
    lacking = [name for name in ("reset", "step", "close") if not callable(getattr(env, name, None))]
    if not isinstance(getattr(env, "spec", None), EnvSpec):
        lacking.append("spec (an EnvSpec)")
    if getattr(env, "num_envs", None) != num_envs:
        lacking.append(f"num_envs == {num_envs}")
    if lacking:
        raise ConfigError(
            f"task={task} is neither a gymnasium.Env nor follows lockstep's VectorEnv: it lacks {', '.join(lacking)}"
        )
    refuse_numbers_of_actions(env.spec, task)
    return cast(VectorEnv, env)


def _refuse_single(cls: type, task: str) -> None:
    """Refuse a class of single environments that is not a `gymnasium.Env`."""
    name = cls.__name__
    if any(base.__module__.partition(".")[0] == "gym" for base in cls.__mro__):
        raise ConfigError(
            f"task={task} is of the old package gym; derive it from gymnasium.Env (step then returns 5 values, reset 2)"
        )
    if any(base.__module__.partition(".")[0] == "pettingzoo" for base in cls.__mro__):
        raise ConfigError(
            f"task={task} is no pettingzoo.ParallelEnv, in which all agents act at once; convert it, such as by "
            "pettingzoo.utils.conversions.aec_to_parallel"
        )
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):  # no signature available; the call itself will fail
        return
    if "num_envs" not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        raise ConfigError(
            f"task={task} is no gymnasium.Env, and __init__ takes no num_envs; write class {name}(gymnasium.Env), or "
            "follow lockstep's VectorEnv (examples/my_env.py has both)"
        )
