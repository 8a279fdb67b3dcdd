"""Error messages for unknown arguments: suggest a flag, a setting, or our name for one of another library."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from lockstep.cli.parser import did_you_mean
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.run import AnyRun


def unknown_argument(
    word: str, given: Sequence[str], top: argparse.ArgumentParser, typed: Sequence[str] | None = None
) -> str:
    """The error message for `word`, the first of the `given` arguments that the parser of `lockstep` did not take.

    `typed` are these arguments as the user wrote them, with underscores.
    """
    args, _ = top.parse_known_args(given)
    command = " ".join(name for name in (args.command, getattr(args, "part", None)) if name)
    see = f"see lockstep {command} --help"
    takes_settings = hasattr(args, "set") and command != "offline prepare"
    if not word.startswith("-"):
        at = given.index(word)
        before, after = given[:at][-2:], given[at + 1 :][:1]
        value = "".join(after) if word == "=" else word.removeprefix("=")
        setting = f"{before[1]}={value}" if before[:1] == ["--set"] and "=" not in before[1] else word
        hint = f"did you mean --set {setting}?" if takes_settings and "=" in setting else see
        return f"unexpected argument {word}; {hint}"
    shown = (typed or given)[given.index(word)]
    name, shown_name = word.partition("=")[0], shown.partition("=")[0]
    flags = [flag for flag in _flags(top, command) if flag.startswith("--") and "_" not in flag]
    if name in flags and args.command is not None:  # before the command, where only `lockstep` itself takes flags
        return f"{word} belongs to the command: write it after {command}"
    settings: Mapping[str, Any] = {}
    if takes_settings:
        from lockstep.cli.request import has_task_defaults
        from lockstep.config.renamed import known_settings, renaming_error
        from lockstep.run import Run

        value, others = _split_argument(word, given)
        described, _ = top.parse_known_args(others)
        run = run_of(described, task_defaults=False)
        settings = known_settings(run)
        answer = renaming_error(shown_name, value, settings, "flag", flags)
        # A name of another library: what to type instead may depend on the task's defaults, which need an environment.
        if answer is not None and isinstance(run, Run) and has_task_defaults(described, run):
            answer = renaming_error(shown_name, value, known_settings(run_of(described)), "flag", flags)
        if answer is not None:
            return answer
    names = {f"--{setting.replace('_', '-')}": setting for setting in settings}
    near = difflib.get_close_matches(name, flags, n=3, cutoff=0.7)
    near = near or [f"--set {names[flag]}=VALUE" for flag in difflib.get_close_matches(name, names, n=2, cutoff=0.7)]
    return f"unknown argument {shown}; {did_you_mean(near) or see}"


def _split_argument(word: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """The value of a flag, empty if it has none, and all other arguments."""
    name, equals, value = word.partition("=")
    before, after = list(given[: given.index(word)]), list(given[given.index(word) + 1 :])
    if equals or not after or (after[0].startswith("-") and not after[0][1:2].isdigit()):
        return value, before + after
    if _is_switch(name) and after[0].lower() not in ("true", "false"):
        return "", before + after
    return after[0], before + after[1:]


def _is_switch(flag: str) -> bool:
    from lockstep.algorithms.all import ALGORITHMS
    from lockstep.config.renamed import is_switch, known_settings
    from lockstep.run import Run

    known: dict[str, Any] = {}
    for algo in ALGORITHMS:
        known |= known_settings(Run(task="any", algo=cast(Any, algo)))
    return is_switch(flag, known)


def run_of(args: argparse.Namespace, *, task_defaults: bool = True) -> "AnyRun":
    """The run that the arguments describe; one with default settings if they describe none.

    Args:
        args: of the command line.
        task_defaults: as of `requested_run`, which makes an environment for them.
    """
    from lockstep.algorithms.all import ALGORITHMS, OFFLINE_ALGORITHMS
    from lockstep.cli.request import requested_run
    from lockstep.run import OfflineRun, Run

    if getattr(args, "part", None) is not None:
        return OfflineRun(data="any", algo=args.algo if args.algo in OFFLINE_ALGORITHMS else "dqn")
    with suppress(ConfigError):
        return requested_run(args, task_defaults=task_defaults)
    return Run(task="any", algo=args.algo if args.algo in ALGORITHMS else "ppo")


def _flags(top: argparse.ArgumentParser, command: str) -> list[str]:
    parser = top
    for name in command.split():
        parser = _commands(parser)[name]
    return [flag for action in parser._actions for flag in action.option_strings]  # pyright: ignore[reportPrivateUsage]


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return cast(Mapping[str, argparse.ArgumentParser], action.choices)
    return {}
