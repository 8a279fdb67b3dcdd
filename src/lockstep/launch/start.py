"""One start of all ranks of a command: from fresh variables to the last process gone."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.launch.failure_report import ATTEMPT_PREFIX, log_path, merge_failures
from lockstep.launch.rank_environment import rank_environments
from lockstep.launch.rank_placement import RankPlacement
from lockstep.launch.supervise import Bounds, Failure, RankGroup
from lockstep.record.failure import archive_failure
from lockstep.record.partial_files import remove_partial_files


class Others(Protocol):
    """The other machines of a run, as the start on this one asks them."""

    def look(self) -> Failure | None:
        """What ends this start although the ranks of this machine go on; asked all the time."""
        ...

    def judge(self, failure: Failure) -> Failure:
        """Tell the others of the first failure here; returns what holds for all. The ranks are stopped afterwards."""
        ...


class _Alone:
    """No other machines."""

    def look(self) -> None:
        return None

    def judge(self, failure: Failure) -> Failure:
        return failure


ALONE = _Alone()


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
    place: RankPlacement | None = None
    """Of these ranks among those of several machines; None: there are no others."""
    ml_framework: str = "torch"
    """Selects the variables of the ranks: `jax` for `JAX_*`, else those of torchrun."""

    def run(
        self,
        caught: list[int],
        bounds: Bounds,
        *,
        timeout_s: float | None = None,
        since: float | None = None,
        others: Others = ALONE,
    ) -> tuple[Failure | None, list[int]]:
        """Start all ranks and wait until none is left.

        Args:
            caught: signals that this process received, filled by `caught_signals` meanwhile.
            bounds: how long ranks may take to end.
            timeout_s: bound on the whole run, if any.
            since: when the run began (monotonic seconds); default: now.
            others: the other machines of the run.

        Returns:
            Why it failed, None if all ranks succeeded; and the ranks that had to be killed after an interruption.
        """
        environments = rank_environments(
            self.ranks,
            self.cores,
            self.environment,
            restarts=self.restarts,
            place=self.place,
            ml_framework=self.ml_framework,
        )
        if self.run_dir is not None:
            (self.run_dir / "logs").mkdir(parents=True, exist_ok=True)
            archive_failure(self.run_dir)
        try:
            first = 0 if self.place is None else self.place.first_rank
            with RankGroup(bounds, self.run_dir, first_rank=first) as group:
                for rank, environment in enumerate(environments, first):
                    self._start_rank(group, rank, environment)
                failure = group.wait(timeout_s=timeout_s, since=since, caught=caught, elsewhere=others.look)
                if failure is None:
                    return None, []
                if self.run_dir is not None:
                    failure = merge_failures(failure, group.ended, self.run_dir)
                failure = others.judge(failure)
                if failure.interrupted is None:
                    group.stop(signal.SIGTERM, bounds.stop_s, lambda: signal.SIGINT in caught)
                    return failure, []  # being killed is no news after a failure
                return failure, group.stop(failure.interrupted, bounds.interrupt_s, lambda: signal.SIGINT in caught[1:])
        finally:
            if self.run_dir is not None:
                remove_partial_files(self.run_dir)

    def _start_rank(self, group: RankGroup, rank: int, environment: dict[str, str]) -> None:
        if self.run_dir is None:
            group.start(self.command, environment, output=None)
            return
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(log_path(self.run_dir, rank), "ab"))
            if log.tell():
                log.write(f"{ATTEMPT_PREFIX}{self.title}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
                log.flush()
            terminal: list[int] = []
            if rank == 0:
                with contextlib.suppress(OSError):  # our own stdout is closed
                    terminal.append(os.dup(1))
                    stack.callback(os.close, terminal[0])
                    environment = {**environment, "LOCKSTEP_TERMINAL_FD": str(terminal[0])}
            group.start(self.command, environment, output=log.fileno(), pass_fds=terminal)
