"""Facts about the tasks of a suite that take a start of its simulator or long imports to find, kept on disk."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lockstep.config.env import EnvConfig
from lockstep.envs.package_folders import package_folders, plugin_folders
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import kwargs_of
from lockstep.errors import ConfigError
from lockstep.system.files import write_atomically
from lockstep.torch.envs.interface import TensorVectorEnv

_TASK_MODULES = {"isaaclab": ("isaaclab_tasks", "isaaclab_assets"), "mjlab": ("mjlab",)}
"""Modules with the tasks of a suite, which users edit without a change of its version; besides those of plugins, which
mjlab finds by their entry points."""


def cached(package: str, question: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer from the cache, or from `find`, which is then kept.

    Args:
        package: the suite; another version of it, or edited tasks, have other answers.
        question: plain values that the answer depends on.
        find: returns the answer as a tree of plain values.

    Raises:
        ConfigError: the package is not installed.
    """
    key = json.dumps([package, _version(package), _sources(package), question], sort_keys=True)
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    try:
        kept = json.loads(path.read_text())
        if kept["key"] == key:
            return kept["answer"]
    except (OSError, ValueError, TypeError, KeyError):
        pass  # nothing there yet, or a damaged file
    answer = find()
    with suppress(OSError):  # without a home, or with a full disk, the answer is found anew each time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"key": key, "answer": answer}))
    return answer


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ConfigError(
            f"the task needs the Python package {package}: pip install 'lockstep-rl[{package}]'"
        ) from None


def _sources(package: str) -> str:
    """Digest of names, sizes and times of the files that answers come from: our adapters and the tasks."""
    folders = [folder for module in _TASK_MODULES.get(package, ()) for folder in package_folders(module)]
    digest = hashlib.sha256()
    ours = Path(__file__).parents[2]
    for folder in (ours / "envs", ours / "torch" / "envs", *folders, *plugin_folders(package)):
        for path, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name != "__pycache__")
            for name in sorted(names):
                with suppress(FileNotFoundError):  # editors hold locks as links to nowhere, and files may be deleted
                    file = os.stat(os.path.join(path, name))
                    digest.update(f"{path}/{name} {file.st_size} {file.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def cached_spec(package: str, task: str, config: EnvConfig, make: Callable[[], TensorVectorEnv]) -> EnvSpec:
    """The spec of `task` from the cache, or from an environment that `make` returns and that is closed then."""

    def find() -> dict[str, Any]:
        env = make()
        env.close()
        return env.spec.to_dict()

    return EnvSpec.from_dict(cached(package, {"spec": task, "kwargs": kwargs_of(config)}, find))


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep" / "tasks"
