"""The agent configurations that Isaac Lab and mjlab publish for a task, as plain values.

Reading them imports the suite with all its tasks, which takes seconds; a subprocess does it, once.
"""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from lockstep.config.agents.settings import LIBRARIES
from lockstep.envs import isaac
from lockstep.errors import RunError
from lockstep.torch.envs.isaac_launch import start_app
from lockstep.torch.envs.spec_cache import cached

_SUFFIX = "_cfg_entry_point"


@dataclass(frozen=True, slots=True)
class PublishedAgents:
    """What a suite publishes for training on a task."""

    num_envs: int
    """Environments of the task's own configuration."""
    configs: Mapping[str, Mapping[str, Any]]
    """Agent configurations by name: a library's, or a variant such as `rsl_rl_with_symmetry`."""


def published_agents(task: str) -> PublishedAgents:
    """The agent configurations of `task`, an id of the installed version."""
    package = "mjlab" if task.startswith("Mjlab-") else "isaaclab"
    found = cached(package, {"agents": task}, lambda: _run_subprocess(task))
    return PublishedAgents(found["num_envs"], found["configs"])


def _run_subprocess(task: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "lockstep.torch.envs.published_agents", task]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RunError(f"reading the agent configurations of {task} failed: {last[0]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def _read(task: str) -> dict[str, Any]:
    """The answer for `task`; imports the suite."""
    return _read_mjlab(task) if task.startswith("Mjlab-") else _read_isaac_lab(task)


def _read_mjlab(task: str) -> dict[str, Any]:
    importlib.import_module("mjlab.tasks")  # registers the tasks
    registry: Any = importlib.import_module("mjlab.tasks.registry")
    config = _plain(dataclasses.asdict(registry.load_rl_cfg(task)))
    return {"num_envs": registry.load_env_cfg(task).scene.num_envs, "configs": {"rsl_rl": config}}


def _read_isaac_lab(task: str) -> dict[str, Any]:
    import gymnasium

    has_presets = isaac.major_version() != 2
    if not has_presets:
        start_app(task, "cuda:0")
    importlib.import_module("isaaclab_tasks")  # registers the tasks
    utils: Any = importlib.import_module("isaaclab_tasks.utils")

    def load(key: str) -> Any:
        config = utils.load_cfg_from_registry(task, key)
        return utils.resolve_presets(config) if has_presets else config

    configs: dict[str, Any] = {}
    for key in gymnasium.spec(task).kwargs:
        name = key.removesuffix(_SUFFIX)
        if key.endswith(_SUFFIX) and name.startswith(tuple(LIBRARIES)):
            config = load(key)
            configs[name] = _plain(config if isinstance(config, dict) else config.to_dict())
    return {"num_envs": load(f"env{_SUFFIX}").scene.num_envs, "configs": configs}


def _plain(value: Any) -> Any:
    """A tree of values that JSON has; functions become `module:name`."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


if __name__ == "__main__":
    print(json.dumps(_read(sys.argv[1])))
