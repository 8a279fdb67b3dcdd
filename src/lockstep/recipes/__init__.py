"""Runs with tested settings: each module has one function `recipe()` that returns a complete `Run`.

A recipe of your own is a Python file with such a function; `lockstep recipe cartpole > mine.py` writes one to edit.
"""

import ast
import importlib
import inspect
import math
import pkgutil
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lockstep.envs.load import environments_in, load_module, load_object, near
from lockstep.errors import ConfigError
from lockstep.run import AnyRun, OfflineRun, Run, from_dict, to_dict
from lockstep.run import load as read


def names() -> list[str]:
    """The recipes that come with Lockstep."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Run:
    """The run of a recipe that comes with Lockstep. Raises `ConfigError` if there is none of this name."""
    if name not in names():
        raise ConfigError(f"there is no recipe {name}{near(str(name), names())}; recipes: {', '.join(names())}")
    run = _returned_run(_module(name).recipe, name)
    assert isinstance(run, Run)
    return run


def description(name: str) -> str:
    """The first line of a recipe's documentation."""
    return (_module(name).__doc__ or "").strip().splitlines()[0]


def named(target: str) -> AnyRun:
    """The run that the target of `lockstep train` names.

    A recipe, a config or run directory, a recipe file, else a task, which then has no settings of its own.
    """
    if target.replace("-", "_") in names():
        return load(target.replace("-", "_"))
    if Path(target).suffix in (".yaml", ".yml", ".json"):
        return read(Path(target))
    if Path(target).is_dir() and (Path(target) / "run.yaml").exists():
        return read(Path(target) / "run.yaml")
    if (Path(target) / "dataset.json").exists():
        raise ConfigError(f"{target} is prepared data; lockstep offline train {shlex.quote(target)} learns from it")
    if target.endswith(".py") or ".py:" in target:
        return load_file(target)
    return Run(task=target)


def load_file(target: str) -> AnyRun:
    """The run of `path/to/file.py:function`; without `:function`, of its function `recipe`.

    The file can import from its own directory, as a script. If the name is a class, or an id that the file registers,
    it is the task of the run.
    """
    path, colon, name = target.rpartition(":") if ".py:" in target else (target, "", "recipe")
    module = load_module(path, target)  # which may be a task, too
    if not colon and not hasattr(module, name):
        environments = " or ".join(f"{path}:{found}" for found in environments_in(module))
        hint = f"did you mean {environments}?" if environments else f"name one of its own: {path}:FUNCTION"
        raise ConfigError(f"{path} has no function recipe; {hint}")
    if re.search(r"-v\d+$", name):
        return Run(task=target)
    found = load_object(f"{path}:{name}", "recipe")
    return Run(task=target) if isinstance(found, type) and colon else _returned_run(found, f"{path}:{name}")


def source(name: str) -> str:
    """A recipe as a Python file with every setting of the run spelled out, to be edited."""
    run = load(name)
    about = textwrap.indent(inspect.getdoc(_module(name).recipe) or "", "    ").lstrip()
    if "\n" in about:
        about += "\n    "
    text = f'''"""{description(name)}

Written by `lockstep recipe {name}`; every setting is here to be edited. Counts are global: over all ranks.
Run it with

    lockstep train my_{name}.py:recipe --ranks 2
    python my_{name}.py --ranks 2
{_launchers(run, name)}
"""

import sys

{_imports(run)}
from lockstep.train import main


def recipe() -> Run:
    """{about}"""
    return {_spelled_out(run, 1)}


if __name__ == "__main__":
    sys.exit(main([f"{{__file__}}:recipe", *sys.argv[1:]]))
'''
    return text


def _launchers(run: Run, name: str) -> str:
    """The commands with which launchers of the run's framework start the file of a recipe."""
    if run.ml_framework == "jax":  # there may be no torch
        return f"    python -m lockstep.launch.jax --nproc_per_node=2 my_{name}.py"
    return (
        f"    torchrun --nproc_per_node=2 my_{name}.py\n"
        f"    python -m torch.distributed.launch --nproc_per_node=2 --master_port=29501 my_{name}.py"
    )


def _imports(run: Run) -> str:
    """The import statement for the classes in a run's tree."""
    used: set[str] = set()
    nodes: list[Any] = [run]
    while nodes:
        node = nodes.pop()
        used.add(type(node).__name__)
        nodes += [value for item in fields(node) if is_dataclass(value := getattr(node, item.name))]
    return f"from lockstep import {', '.join(sorted(used))}"


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def _returned_run(function: Callable[[], object], where: str) -> AnyRun:
    if not callable(function):
        raise ConfigError(f"recipe={where} is not a function")
    try:
        run = function()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"recipe={where} failed: {type(error).__name__}: {error}") from error
    if hasattr(run, "reset") and hasattr(run, "step"):
        file, _, name = where.rpartition(":")
        raise ConfigError(
            f"{where} returns an environment, and a task is a class or a registered id: add gymnasium.register("
            f'"My-v0", entry_point={name}) to {file}, and train {file}:My-v0'
        )
    if not isinstance(run, Run | OfflineRun):
        raise ConfigError(f"recipe={where} must return a lockstep.run.Run, not {type(run).__name__}")
    return from_dict(to_dict(run))  # checks the types of the fields


def _spelled_out(node: Any, depth: int) -> str:
    """The source of a call that creates an equal dataclass, one commented argument per line."""
    indent, lines, comments = "    " * (depth + 1), list[str](), _field_docs(type(node))
    for item in fields(node):
        value = getattr(node, item.name)
        lines += textwrap.wrap(
            comments.get(item.name, ""), 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        text = _spelled_out(value, depth + 1) if is_dataclass(value) else _literal(value)
        lines.append(f"{indent}{item.name}={text},")
    return "\n".join([f"{type(node).__name__}(", *lines, "    " * depth + ")"])


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return '"' + repr(value)[1:-1].replace('"', '\\"') + '"' if "'" not in value else repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _field_docs(cls: Any) -> dict[str, str]:
    """The text below each field in the source of a dataclass and of its base classes."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for statement, after in pairwise(body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = inspect.cleandoc(text).replace("`null`", "`None`")
                case _:
                    continue
    return docs
