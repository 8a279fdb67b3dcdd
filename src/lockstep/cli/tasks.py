"""`lockstep tasks`: the tasks that can run here, by source, and what to install for the rest."""

import argparse
import contextlib
import fnmatch
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lockstep.envs.extras import install_line
from lockstep.envs.load import near
from lockstep.envs.package_folders import package_folders, plugin_folders

_SHOWN = 12
"""Names of a source that are printed without a pattern."""
_WIDTH = 110
_MJLAB = re.compile(r"""\btask_id\s*=\s*["'](Mjlab-[\w-]+)""")
_NEEDS = {"mujoco": "mujoco", "box2d": "Box2D"}
"""Module that Gymnasium's tasks need, by the folder of their classes."""
_PARALLEL = {"pettingzoo": "PettingZoo", "mpe2": "MPE2"}
"""Titles of the packages whose tasks have several agents."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where tasks come from."""

    name: str
    module: str
    """Module that must be installed."""
    install: str
    """How to install it."""
    find: Callable[[], list[str]]
    """Returns the ids; imports the module."""


def tasks_command(args: argparse.Namespace) -> int:
    """Print the tasks whose id matches the pattern."""
    found, missing = _search(args.pattern)
    if args.json:
        print(json.dumps({"tasks": found, "missing": missing}, indent=2))
        return 0
    for name, ids in found.items():
        if ids:
            print(_paragraph(name, ids, whole=args.pattern is not None))
    if not any(found.values()):
        known = [task for ids in _search(None)[0].values() for task in ids]
        print(f"no task that can run here matches {args.pattern}{near(args.pattern, known)}")
    _print_missing(missing, args.pattern)
    return 0


def _print_missing(missing: Mapping[str, str], pattern: str | None) -> None:
    """Print how to install what is missing; with a pattern, of the sources that it names, else only their names."""
    named = {name: line for name, line in missing.items() if set(_words(name)).intersection(_words(pattern or ""))}
    if missing and pattern is not None and not named:
        print(f"\nnot installed: {', '.join(missing)}; `lockstep tasks` says how to install them")
    elif missing:
        print("\nnot installed:")
        for name, line in (named or missing).items():
            short = named or len(line) <= _WIDTH
            print(f"  {name}: {line if short else f'`lockstep tasks {_words(name)[0]}` says how'}")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _search(pattern: str | None) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The matching ids by source, and what would install the sources that are missing."""
    found: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for source in _sources():
        if find_spec(source.module) is None:
            missing[source.name] = source.install
        else:
            found[source.name] = _matching(_quietly(source.find), pattern)
    for name, module in _NEEDS.items():
        if find_spec(module) is None:
            missing[f"Gymnasium's {name} tasks"] = install_line(module)
    return found, missing


def _sources() -> list[Source]:
    from lockstep.envs import isaac, pettingzoo
    from lockstep.envs.vector import BUILT_IN

    envpool = _listed("envpool", "envpool", lambda module: sorted(module.list_all_envs()))
    gymnax = _listed("gymnax", "gymnax", lambda module: module.registered_envs)
    brax = _listed("brax", "brax.envs", lambda module: module._envs)  # Brax has no public list
    playground = _listed("playground", "mujoco_playground", lambda module: module.registry.ALL_ENVS)
    return [
        Source("built in", "numpy", "", lambda: list(BUILT_IN)),
        Source("Gymnasium", "gymnasium", "", _gymnasium_tasks),
        Source("Atari", "ale_py", "pip install 'lockstep-rl[atari]'", _atari_tasks),
        *(
            Source(_PARALLEL[name], name, install, partial(pettingzoo.task_ids, name))
            for name, install in pettingzoo.PACKAGES.items()
        ),
        Source("Isaac Lab", "isaaclab", isaac.install_lines(), lambda: list(isaac.task_ids())),
        Source("mjlab", "mjlab", "pip install 'lockstep-rl[mjlab]'", _mjlab_tasks),
        Source("EnvPool", "envpool", "pip install 'lockstep-rl[envpool]'", envpool),
        Source("JAX", "jax", "pip install 'lockstep-rl[jax]'", lambda: ["jax/CartPole-v1"]),
        Source("gymnax", "gymnax", "pip install 'lockstep-rl[jax,gymnax]'", gymnax),
        Source("Brax", "brax", "pip install 'lockstep-rl[jax,brax]'", brax),
        Source("MuJoCo Playground", "mujoco_playground", "pip install 'lockstep-rl[jax,playground]'", playground),
    ]


def _gymnasium_tasks() -> list[str]:
    """The newest version of each of Gymnasium's own tasks whose package is installed."""
    import gymnasium

    newest: dict[str, int] = {}
    for spec in gymnasium.registry.values():
        entry_point = str(spec.entry_point)
        lacks = any(f".{folder}" in entry_point and find_spec(module) is None for folder, module in _NEEDS.items())
        if spec.namespace is None and entry_point.startswith("gymnasium.") and not lacks:
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    return [f"{name}-v{version}" for name, version in newest.items()]


def _atari_tasks() -> list[str]:
    import gymnasium

    from lockstep.envs import atari

    atari.register()
    return [name for name in gymnasium.registry if name.startswith("ALE/")]


def _mjlab_tasks() -> list[str]:
    """Read from the sources, of its plugins too: importing mjlab takes ten seconds."""
    folders = [folder / "tasks" for folder in package_folders("mjlab")] + plugin_folders("mjlab")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return sorted({task for file in files for task in _MJLAB.findall(file.read_text(encoding="utf-8"))})


def _listed(prefix: str, module: str, names: Callable[[Any], Iterable[str]]) -> Callable[[], list[str]]:
    """Returns the names that a package lists, each with the prefix of its tasks."""
    return lambda: [f"{prefix}/{name}" for name in names(import_module(module))]


def _quietly(find: Callable[[], list[str]]) -> list[str]:
    """The ids, without what packages print while they are imported."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return find()


def _matching(ids: Sequence[str], pattern: str | None) -> list[str]:
    """The ids that contain the pattern, or match it if it has `*` or `?`; upper and lower case are the same."""
    if pattern is None:
        return list(ids)
    wildcard = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    return [name for name in ids if fnmatch.fnmatch(name.lower(), wildcard.lower())]


def _paragraph(source: str, ids: Sequence[str], *, whole: bool) -> str:
    """The ids of a source under its name; without a pattern only the first of many."""
    shown = list(ids) if whole or len(ids) <= _SHOWN else list(ids[:_SHOWN])
    body = textwrap.fill("  ".join(shown), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    rest = len(ids) - len(shown)
    more = f"\n  ... and {rest} more: lockstep tasks PATTERN" if rest else ""
    return f"{source} ({len(ids)})\n{body}{more}"
