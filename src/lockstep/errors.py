"""The two ways Lockstep says no, each with its exit code, and what a caller may want to know of them."""

import os
import sys
import traceback
from collections.abc import Callable

SHARDS = "shards: equal parts of a run, one per rank unless num_shards is set"
"""Explains the word in messages."""
PEER_DELAY_S = 1.5
"""How long a rank that fails only because another one did waits before it leaves: the other must be seen first."""


class ConfigError(ValueError):
    """The user asked for something that cannot be: exit code 2, one line, before anything starts.

    The message names the setting, its value and the way out.
    """

    exit_code = 2


class RunError(RuntimeError):
    """A run that started could not go on: exit code 1, one line that names the rank and what it was doing."""

    exit_code = 1


class PeerError(RunError):
    """This rank is well, but another one died, stalled or took a different step.

    Attributes:
        rank: the rank at fault, if it is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class MismatchError(RunError):
    """Ranks no longer hold the same tensors; raised on all of them.

    Attributes:
        ranks: those that differ from most; all of them where no version has the most holders.
        rank: the one at fault, if it is one.
        tensors: the names of all tensors that differ, in name order.
    """

    def __init__(self, message: str, ranks: list[int], tensors: list[str]) -> None:
        super().__init__(message)
        self.ranks, self.tensors = ranks, tensors
        self.rank = ranks[0] if len(ranks) == 1 else None


_INTERRUPTED = 130


def exit_code_of(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit code of a command; what goes wrong is told on stderr, in one line where it is no defect of ours."""
    try:
        return command()
    except (ConfigError, RunError) as error:
        if debug:
            traceback.print_exc()
        line, _, table = str(error).partition("\n\n")
        print(f"lockstep: error: {' '.join(line.split())}", file=sys.stderr)
        if table:
            print(table, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "jax") or debug:
            raise
        line = f"this command needs the package {package}: pip install 'lockstep-rl[{package}]'"
        print(f"lockstep: error: {line}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `lockstep recipe cartpole | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
