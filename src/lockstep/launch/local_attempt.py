"""One attempt to run all ranks of a command on this node: start, wait, stop."""

import contextlib
import os
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lockstep.errors import RunError
from lockstep.launch.failure_report import ATTEMPT_PREFIX, log_path, merge_failures, with_failure_while_stopping
from lockstep.launch.rank_environment import RankPlacement, rank_environments
from lockstep.launch.supervise import Bounds, Failure, RankGroup, wait_for_ranks
from lockstep.record.console import terminal_variable
from lockstep.record.failure import archive_failure
from lockstep.record.partial_files import remove_partial_files


@contextlib.contextmanager
def _written(path: Path) -> Generator[None]:
    """Raise `RunError` where a file of the logs cannot be made."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}); free its disk, or choose another") from error


class RemoteNodes(Protocol):
    """The other nodes of a run."""

    def poll(self) -> Failure | None:
        """A failure on another node, which ends the ranks of this one; polled while they run."""
        ...

    def report(self, failure: Failure) -> Failure:
        """Report this node's first failure; returns the failure of all nodes. The ranks are stopped afterwards."""
        ...

    def run_dir(self) -> Path | None:
        """The run directory of our own training that ends now, where this node knows it; None if it is to restart."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttempt:
    """One attempt to run the ranks of this node."""

    command: list[str]
    ranks: int
    cores: int
    """Usable ones, shared among the ranks."""
    log_dir: Path | None
    """Holds `logs/rank_R.log`; None: ranks print to our output."""
    environment: dict[str, str]
    """Variables that override this process's own."""
    run_dir: Path | None = None
    """The run directory of our own training, in which partial files of killed ranks are removed; None: a command of the
    user's, whose files are never touched."""
    restarts: int = 0
    """Number of earlier attempts."""
    title: str = "new start"
    """Separates this attempt from earlier ones in a log."""
    placement: RankPlacement | None = None
    """Of these ranks in a world of several nodes; None: there is one node."""
    ml_framework: str = "torch"
    """Selects the variables of the ranks: `jax` for `JAX_*`, else those of torchrun."""

    def run(
        self,
        caught: list[int],
        bounds: Bounds,
        *,
        timeout_s: float | None = None,
        since: float | None = None,
        remote: RemoteNodes | None = None,
    ) -> tuple[Failure | None, list[int]]:
        """Start all ranks and wait until none is left; arguments as `wait_for_ranks`.

        Returns:
            Why it failed, None if all ranks succeeded; and the ranks that had to be killed after an interruption.
        """
        environments = rank_environments(
            self.ranks,
            self.cores,
            self.environment,
            restarts=self.restarts,
            placement=self.placement,
            ml_framework=self.ml_framework,
        )
        if self.log_dir is not None:
            with _written(self.log_dir / "logs"):
                (self.log_dir / "logs").mkdir(parents=True, exist_ok=True)
            archive_failure(self.log_dir)
        try:
            first = 0 if self.placement is None else self.placement.first_rank
            with RankGroup(bounds, self.run_dir, first_rank=first) as group:
                for rank, environment in enumerate(environments, first):
                    self._start_rank(group, rank, environment)
                elsewhere = remote.poll if remote is not None else lambda: None
                failure = wait_for_ranks(
                    group, bounds, timeout_s=timeout_s, since=since, caught=caught, elsewhere=elsewhere
                )
                if failure is None:
                    return None, []
                if self.log_dir is not None:
                    failure = merge_failures(failure, group.ended, self.log_dir)
                if remote is not None:
                    failure = remote.report(failure)
                if failure.interrupted is None:
                    group.stop(signal.SIGTERM, bounds.stop_s, lambda: signal.SIGINT in caught)
                    return failure, []
                late = group.stop(failure.interrupted, bounds.grace_s, lambda: signal.SIGINT in caught[1:])
                run_dir = self.run_dir if remote is None else remote.run_dir()
                if run_dir is not None:
                    failure = with_failure_while_stopping(failure, group.ended, run_dir)
                return failure, late
        finally:
            if self.run_dir is not None:
                remove_partial_files(self.run_dir)

    def restarted(self, command: list[str], title: str) -> "LocalAttempt":
        """The next attempt: `command`, with `title` in the logs."""
        return replace(self, command=command, restarts=self.restarts + 1, title=title)

    def _start_rank(self, group: RankGroup, rank: int, environment: dict[str, str]) -> None:
        if self.log_dir is None:
            group.start(self.command, environment, output=None)
            return
        with contextlib.ExitStack() as stack:
            path = log_path(self.log_dir, rank)
            with _written(path):
                log = stack.enter_context(open(path, "ab", buffering=0))
            if log.tell():
                with contextlib.suppress(OSError):  # a full disk: the rank reports it where it needs the space
                    log.write(f"{ATTEMPT_PREFIX}{self.title}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            terminal: list[int] = []
            if rank == 0:
                with contextlib.suppress(OSError):  # our own stdout is closed
                    terminal.append(os.dup(1))
                    stack.callback(os.close, terminal[0])
                    environment = {**environment, **terminal_variable(terminal[0])}
            group.start(self.command, environment, output=log.fileno(), pass_fds=terminal)
