"""Flags of all commands: add them to a parser, convert their values, and take them out of a command line."""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lockstep.errors import ConfigError

_LARGEST_PORT = 65535


def add_flag(
    parser: argparse._ArgumentGroup | argparse.ArgumentParser,  # pyright: ignore[reportPrivateUsage]
    flag: str,
    metavar: str | None,
    text: str,
    *aliases: str,
) -> None:
    """Add one flag, spelled with hyphens and with underscores, and its aliases; without `metavar` it takes no value."""
    names = dict.fromkeys([flag, "--" + flag[2:].replace("-", "_"), *aliases])
    kind = {"action": "store_true"} if metavar is None else {"metavar": metavar}
    parser.add_argument(*names, help=text, **kind)  # pyright: ignore[reportArgumentType]


def without_flags(
    words: Sequence[str],
    *flags: str,
    switches: Sequence[str] = (),
    parents: Sequence[argparse.ArgumentParser] = (),
) -> list[str]:
    """Arguments without some flags and their values, `switches`, which take none, and the flags of `parents`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, parents=parents)
    for flag in flags:
        parser.add_argument(flag)
    for flag in switches:
        parser.add_argument(flag, action="store_true")
    return parser.parse_known_args(list(words))[1]


class OneLineParser(argparse.ArgumentParser):
    """Raises errors as `ConfigError`, which commands print as one line."""

    def error(self, message: str) -> NoReturn:
        """Raise a usage error instead of exiting, with flags that are similar to an unknown one."""
        word = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        flags = [flag for action in self._actions for flag in action.option_strings if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(word, flags, n=2, cutoff=0.7) if word.startswith("--") else []
        way_out = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help"
        raise ConfigError(f"{message}; {way_out}")


def directory(text: str) -> str:
    """The value of `--run-dir`. A script's unset variable would make it empty, which names no directory."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a directory, or leave it out")
    return text


def number(text: str, flag: str, expected: str = "a number", least: int = 1) -> int:
    """The whole number that was typed for a flag. Raises `ConfigError` for anything else, and below `least`."""
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{flag} {text} must be {expected}, at least {least}")
    return int(text)


def positive(text: str, flag: str, expected: str = "a number") -> float:
    """The number above 0 that was typed for a flag. Raises `ConfigError` for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{flag} {text} must be {expected} greater than 0")
    return value


def seconds_of(text: str, flag: str) -> float:
    """The duration that was typed for a flag."""
    return positive(text, flag, "a number of seconds,")


def port_of(text: str, flag: str) -> int:
    """The port that was typed for a flag."""
    port = number(text, flag, "a port")
    if port > _LARGEST_PORT:
        raise ConfigError(f"{flag} {port} must be a port, at most {_LARGEST_PORT}")
    return port


def split_address(text: str, flag: str) -> tuple[str, str]:
    """Host and port of HOST:PORT as typed with `flag`; the port is empty where none is."""
    if text.startswith("["):  # [fd00::1]:5555
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        raise ConfigError(f"{flag} {text}: write an IPv6 address in brackets, [fd00::1]:5555")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigError(f"{flag} {text} has no host; write HOST:PORT, with an address of the main node")
    return host, port


def policy_source(text: str | None) -> Path | None:
    """The path of `--init-from`. Raises `ConfigError` if no policy can be read there."""
    if text is None:
        return None
    path = Path(text)
    if not path.exists():
        raise ConfigError(f"--init-from {text} does not exist; give a run directory or a policy file")
    from lockstep.session.which_policy import read_policy

    try:
        read_policy(path)
    except ConfigError as error:
        raise ConfigError(f"--init-from {text}: {error}") from error
    return path
