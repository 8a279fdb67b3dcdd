"""Tab completion of the `lockstep` command in bash, zsh and fish, by argcomplete.

Imported only for a completion request. The settings, whose import takes 0.2 s, are imported only to complete `--set`.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

_CHOICES = re.compile(r"[a-z0-9_]+(\|[a-z0-9_]+)+")
"""A metavar that lists the values: `torch|jax`."""


def completion_command(args: argparse.Namespace) -> int:
    """`lockstep completion`: print the code that a shell has to run."""
    print(shellcode(["lockstep"], shell=args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions that argcomplete's environment variables ask for, and exit."""
    for action in _actions(parser):
        completer = _completer(action)
        if completer is not None:
            cast(Any, action).completer = completer
    argcomplete.autocomplete(parser, always_complete_options=False, validator=str.startswith)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for command in cast("dict[str, argparse.ArgumentParser]", action.choices).values():
                yield from _actions(command)


def _completer(action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """The completer of an argument's values; None: argcomplete's default, files."""
    metavar = str(action.metavar or "")
    if action.dest == "set":
        return _settings
    if "TASK" in metavar:
        return _tasks
    if action.dest == "name" and not action.option_strings:
        return _one_of(_recipes())
    if "RUN" in metavar or action.dest == "resume":
        return _runs
    if metavar == "DIR":
        return DirectoriesCompleter()
    return _one_of(metavar.split("|")) if _CHOICES.fullmatch(metavar) and action.choices is None else None


def _one_of(words: list[str]) -> Callable[..., list[str]]:
    def completer(**_: Any) -> list[str]:
        return words

    return completer


def _recipes() -> list[str]:
    """As `lockstep.recipes.names`, without its imports."""
    found = (path.stem for path in (Path(__file__).parents[1] / "recipes").glob("*.py"))
    return sorted(name for name in found if not name.startswith("_"))


def _tasks(prefix: str, **_: Any) -> list[str]:
    return [*_recipes(), *FilesCompleter(("yaml", "yml", "json", "py"))(prefix)]


def _runs(prefix: str, **_: Any) -> list[str]:
    """Run directories below `runs/`, newest first, and directories elsewhere."""
    found = sorted(Path("runs").glob("*/run.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)
    runs = [str(path.parent) for path in found]
    return [*runs, *(name for name in DirectoriesCompleter()(prefix) if name.rstrip("/") not in runs)]


def _settings(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """`NAME=` for each setting of the run; after it, the values of an enumerated setting."""
    from lockstep.config.settings import hints_of

    hints = {path.rpartition(".")[2]: hint for path, hint in hints_of(_run(parsed_args)).items()}
    name, equals, _value = prefix.partition("=")
    if not equals:
        return [f"{key}=" for key in hints]
    return [f"{name}={value}" for value in _values(hints.get(name.rpartition(".")[2]))]


def _values(hint: Any) -> list[str]:
    """The values of a setting of this type, if they can be enumerated."""
    if hint is bool:
        return ["true", "false"]
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    parts = get_args(hint)
    return ["null", *(value for part in parts for value in _values(part))] if type(None) in parts else []


def _run(args: argparse.Namespace) -> Any:
    """The run that the arguments describe, or the settings of `prepare`; the user's own code is not run."""
    if getattr(args, "part", None) == "prepare":
        from lockstep.data.preparation.identify import NormParams

        return NormParams()
    from lockstep.algorithms.all import ALGORITHMS
    from lockstep.cli.unknown_arguments import run_of
    from lockstep.run import Run

    if ".py" in (getattr(args, "target", None) or ""):
        return Run(task="any", algo=args.algo if args.algo in ALGORITHMS else "ppo")
    return run_of(args, task_defaults=False)
