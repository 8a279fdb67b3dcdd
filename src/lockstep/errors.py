"""Errors of Lockstep, their exit codes, and how a command reports them."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

WHAT_SHARDS_ARE = "shards: equal parts of a run, one per rank unless num_shards is set"
"""Definition of the term, for messages."""
PEER_DELAY_S = 1.5
"""Delay before a rank exits because another one failed, so that the launcher sees the original failure first."""


class ConfigError(ValueError):
    """A setting or argument cannot work; raised before training starts.

    The message names the setting, its value and what to use instead.
    """

    exit_code = 2


class RunError(RuntimeError):
    """A run failed after its start; the message names the rank and what it was doing."""

    exit_code = 1


class PeerError(RunError):
    """Another rank died, stalled or took a different step.

    Attributes:
        rank: the rank at fault; None if unknown.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class MismatchError(RunError):
    """The tensors of the ranks differ; raised on all ranks.

    Attributes:
        ranks: those that differ from the majority; all ranks if there is no majority.
        rank: the rank at fault, if it is a single one.
        tensors: the names of all tensors that differ, in name order.
    """

    def __init__(self, message: str, ranks: list[int], tensors: list[str]) -> None:
        super().__init__(message)
        self.ranks, self.tensors = ranks, tensors
        self.rank = ranks[0] if len(ranks) == 1 else None


@contextmanager
def exits_are_errors(what: str) -> Generator[None]:
    """Raise `RunError` where user code in `what` ends the process with code 0, which would pass for success."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
        raise RunError(
            f"sys.exit({end.code}) was called during {what}, by the environment or other code of yours"
        ) from end


_INTERRUPTED = 130


def exit_code_of(command: Callable[[], int], *, debug: Callable[[], bool] = lambda: False) -> int:
    """Run a command and return its exit code; an expected error is printed on stderr as one line.

    Args:
        command: returns the exit code.
        debug: whether to print tracebacks, too; asked after an error.
    """
    try:
        return command()
    except (ConfigError, RunError) as error:
        if debug():
            import traceback

            traceback.print_exc()
        line, _, table = str(error).partition("\n\n")
        print(f"lockstep: error: {' '.join(line.split())}", file=sys.stderr)
        if table:
            print(table, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "jax") or debug():
            raise
        line = f"this command needs the package {package}: pip install 'lockstep-rl[{package}]'"
        print(f"lockstep: error: {line}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        print("lockstep: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # `lockstep recipe cartpole | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
