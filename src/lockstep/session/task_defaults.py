"""The run of a task that is named alone: default settings by the kind of task, and of single tasks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from lockstep.algorithms.task_defaults import BY_ALGORITHM, BY_TASK, Kind, Settings
from lockstep.config.env import EnvConfig
from lockstep.config.settings import parse
from lockstep.envs.make import env_spec, is_jax_task, is_tensor_task
from lockstep.envs.spec import EnvSpec
from lockstep.run import Run, override

_ENV_SETTINGS = frozenset(item.name for item in fields(EnvConfig))
_SECTIONS = ("env", "network", "algorithm")
_LIGHT = ("jax/", "gymnax/", "envpool/")
"""Prefixes of tasks that are quick on CPUs too: thousands of environments at a time would learn more slowly there."""
_RULED_OUT: Mapping[str, str] = {"recurrent": "num_minibatches", "learning_rate": "critic_learning_rate"}
"""Defaults that are left out where the user gives another setting: minibatches of a recurrent policy consist of whole
sequences, so that 64 rows would be only a few; a learning rate that is given alone is that of the critics, too."""
_OFF = (None, "null", "none")
"""Values that switch such a setting off."""
_TITLES: Mapping[Kind, str] = {
    "discrete": "discrete actions on a vector",
    "continuous": "continuous actions on a vector",
    "pixels": "pixels",
    "device": "environments on a device",
}


def task_defaults(task: str, changes: Mapping[str, Any]) -> Run:
    """The run of `task` with the default settings of its kind, and with its own where it has some.

    Makes one environment to read its spaces.

    Args:
        task: its name.
        changes: settings that the user gives, by name. They are not applied, but the algorithm and the settings of the
            environment among them decide the kind, and defaults that contradict them are left out.

    Raises:
        ConfigError: the task cannot be made.
    """
    changes = _by_leaf(changes)
    deciding = {name: value for name, value in changes.items() if _decides(name)}
    run = override(Run(task=task), deciding)
    if run.algo not in BY_ALGORITHM:
        return Run(task=task)
    spec = env_spec(run.task, run.env)
    named = [name for name, value in changes.items() if value not in _OFF]
    given = {name.rpartition(".")[2] for name in named if not name.startswith("env.")}
    ruled_out = {default for name, default in _RULED_OUT.items() if name in given}
    settings = {name: value for name, value in default_settings(run, spec).items() if name not in ruled_out}
    if spec.num_agents > 1:
        settings["num_envs"] = settings.get("num_envs", Run(task=task).num_envs) * spec.num_agents
    return override(Run(task=task), {"algo": run.algo, **settings})


def _by_leaf(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with those of a whole section, such as `env={placement: device}`, by the names of its settings."""
    found: dict[str, Any] = {}
    for name, value in changes.items():
        inner = parse(value, f"{name}={value}") if name in _SECTIONS and isinstance(value, str) else value
        if name in _SECTIONS and isinstance(inner, Mapping):
            found |= {f"{name}.{key}": one for key, one in cast(Mapping[str, Any], inner).items()}
        else:
            found[name] = value
    return found


def default_settings(run: Run, spec: EnvSpec) -> dict[str, Any]:
    """The default settings by name for the kind of task that `run` has, and those of the task itself."""
    kind, _ = kind_of(run, spec)
    return {**BY_ALGORITHM.get(run.algo, {}).get(kind, {}), **_settings_of_task(run, kind)}


def defaults_note(run: Run, spec: EnvSpec) -> str | None:
    """Which kind of task the defaults of `run` are for, and why; None if there are none for that kind."""
    kind, reason = kind_of(run, spec)
    if kind not in BY_ALGORITHM.get(run.algo, {}):
        return None
    if _settings_of_task(run, kind):
        return f"default {run.algo} settings for {run.task} (tuned for this task by RL Baselines3 Zoo)"
    return f"default {run.algo} settings for {_TITLES[kind]} ({reason})"


def _settings_of_task(run: Run, kind: Kind) -> Settings:
    """The settings of this very task; empty for most. Environments on a device are too many at a time for them."""
    if kind == "device" or run.algo not in BY_TASK:
        return {}
    return BY_TASK[run.algo].get(re.sub(r"-v\d+$", "", run.task), {})


def kind_of(run: Run, spec: EnvSpec) -> tuple[Kind, str]:
    """The kind of a run's task, and the properties that decide it; the same for torch and JAX."""
    action = spec.action
    if spec.image is not None:
        return "pixels", f"observations are {_product(spec.image)} images"
    if run.env.placement == "device":
        return "device", "env.placement is device"
    if run.env.placement == "auto" and _is_simulator(run.task):
        return "device", f"{run.task} is a simulator on {'JAX arrays' if is_jax_task(run.task) else 'torch tensors'}"
    size = spec.observation_size
    seen = f"{size} number{'s' * (size != 1)}{' with images among them' * bool(spec.image_parts)}"
    if action.kind == "continuous":
        actions = f"{action.width} real number{'s' * (action.width != 1)}"
        return "continuous", f"actions are {actions}, observations {seen}"
    choices = f"{_product(action.sizes)} choice{'s' * (action.sizes != (1,))}"
    return "discrete", f"actions are {choices}, observations {seen}"


def _product(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _is_simulator(task: str) -> bool:
    """Whether a task is one of a suite for accelerators, or the user's own on torch tensors."""
    if task.startswith(_LIGHT):
        return False
    return is_tensor_task(task) or (":" not in task and is_jax_task(task))


def _decides(name: str) -> bool:
    """Whether a setting decides the kind of the task or which algorithm's table applies."""
    return name == "algo" or name.removeprefix("env.").partition(".")[0] in _ENV_SETTINGS
