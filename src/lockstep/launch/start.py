"""One start of all ranks of a command: from fresh variables to the last process gone."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.supervise import Bounds, Failure, RankGroup
from lockstep.launch.variables import variables
from lockstep.launch.verdict import MARK, agree, log_path
from lockstep.record.failure import keep_failure
from lockstep.record.leftovers import remove_half_written


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start, and which start it is."""

    command: list[str]
    ranks: int
    cores: int
    """Usable ones, shared among the ranks."""
    run_dir: Path | None
    environment: dict[str, str]
    """Variables that go before this process's own."""
    restarts: int = 0
    """How many starts came before."""
    title: str = "new start"
    """For logs that hold earlier starts too."""

    def run(
        self, caught: list[int], bounds: Bounds, *, timeout_s: float | None, since: float
    ) -> tuple[Failure | None, list[int]]:
        """Start all ranks and wait until none is left.

        Args:
            caught: signals that this process received, filled by `caught_signals` meanwhile.
            bounds: how long ranks may take to end.
            timeout_s: bound on the whole run, if any.
            since: when the run began (monotonic seconds).

        Returns:
            Why it failed, None if all ranks succeeded; and the ranks that had to be killed after an interruption.
        """
        environments = variables(self.ranks, self.cores, self.environment, restarts=self.restarts)
        if self.run_dir is not None:
            (self.run_dir / "logs").mkdir(parents=True, exist_ok=True)
            keep_failure(self.run_dir)
        try:
            with RankGroup(bounds, self.run_dir) as group:
                for environment in environments:
                    self._start_rank(group, environment)
                failure = group.wait(timeout_s=timeout_s, since=since, caught=caught)
                if failure is None:
                    return None, []
                if self.run_dir is not None:
                    failure = agree(failure, group.ended, self.run_dir)
                if failure.interrupted is None:
                    group.stop(signal.SIGTERM, bounds.stop_s, lambda: signal.SIGINT in caught)
                    return failure, []  # being killed is no news after a failure
                return failure, group.stop(failure.interrupted, bounds.interrupt_s, lambda: signal.SIGINT in caught[1:])
        finally:
            if self.run_dir is not None:
                remove_half_written(self.run_dir)

    def _start_rank(self, group: RankGroup, environment: dict[str, str]) -> None:
        if self.run_dir is None:
            group.start(self.command, environment, output=None)
            return
        rank = int(environment["RANK"])
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(log_path(self.run_dir, rank), "ab"))
            if log.tell():
                log.write(f"{MARK}{self.title}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
                log.flush()
            terminal: list[int] = []
            if rank == 0:
                with contextlib.suppress(OSError):  # our own stdout is closed
                    terminal.append(os.dup(1))
                    stack.callback(os.close, terminal[0])
                    environment = {**environment, "LOCKSTEP_TERMINAL_FD": str(terminal[0])}
            group.start(self.command, environment, output=log.fileno(), pass_fds=terminal)
