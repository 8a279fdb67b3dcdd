"""A run before the rendezvous of its ranks: rank 0 makes the run directory and shows the first line."""

import contextlib
import os
import threading
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.record.console import Console
from lockstep.record.run_dir import RunDir, lock_run_dir
from lockstep.run import AnyRun
from lockstep.system.exit_signals import cleanup_on_signal

_REPORT_AFTER_S = 2.0  # a phase that takes longer is shown


class PendingRun:
    """The time from the command to the journal of a run, on one rank.

    Args:
        path: the run directory; None: a new one below `runs/`.
        started_by_lockstep: our own launcher started this process. It has made and locked the directory and printed the
            first line, and it writes the output of this process to a log.
        init_from: the policy that the run starts from, if any.

    Attributes:
        path: the run directory, as far as it is known.
        printed: lines that were shown before there was a log.
    """

    def __init__(
        self, path: Path | None = None, *, started_by_lockstep: bool = False, init_from: Path | None = None
    ) -> None:
        self.path, self.started_by_lockstep = path, started_by_lockstep
        self._init_from = init_from
        self.printed: list[str] = []
        self._made: RunDir | None = None
        self._lock: int | None = None
        self._error: ConfigError | None = None
        self._timer: threading.Timer | None = None
        self._signals = contextlib.ExitStack()

    @classmethod
    def resolve(
        cls, given: "Path | PendingRun | None", started_by_lockstep: bool, earlier: Path | None, init_from: Path | None
    ) -> "PendingRun":
        """`given`, or a new one; `earlier` is the directory of a resumed run, which replaces the given one."""
        pending = given
        if not isinstance(pending, PendingRun):
            pending = cls(pending, started_by_lockstep=started_by_lockstep, init_from=init_from)
        if earlier is not None:
            pending.discard()
            pending.path = earlier
        return pending

    def make(self, run: AnyRun, *, alone: bool) -> bool:
        """Make the run directory before the rendezvous, so that the user sees its name at once; returns whether it was.

        Unless this rank is `alone`, an error is kept for `run_dir`, which raises it on all ranks.
        """
        try:
            made = RunDir.create(self.path, run, init_from=self._init_from)
            self._lock = lock_run_dir(made.path)  # readers see that the run is in progress while it imports
        except ConfigError as error:
            if alone:
                raise
            self._error = error
            return False
        self._made, self.path = made, made.path  # of another run that began at the same moment nothing is removed
        # A launcher sends SIGTERM to all ranks when one of them refuses to start.
        self._signals.enter_context(cleanup_on_signal(lambda _: made.discard()))
        return True

    def announce(self, line: str) -> None:
        """Show the first line, or write it to the log if our launcher has shown it."""
        if self.started_by_lockstep:
            print(line, flush=True)
        else:
            self._print(line)

    def start_phase(self, what: str) -> None:
        """Start a phase of the start-up; it is shown if it takes long."""
        self.end_phase()
        self._timer = threading.Timer(_REPORT_AFTER_S, self._print, [f"{what} ..."])
        self._timer.daemon = True
        self._timer.start()

    def end_phase(self) -> None:
        """End the current phase, if any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_dir(self, run: AnyRun) -> RunDir:
        """The new run directory, for its writer; raises `ConfigError` if it cannot be made."""
        if self._error is not None:
            raise self._error
        made, self._made = self._made, None
        return made or RunDir.create(self.path, run, init_from=self._init_from)

    def take_lock(self, run_dir: Path) -> int:
        """The lock of the run, for its writer: that of `make`, else a new one; raises `ConfigError` if it is taken."""
        lock, self._lock = self._lock, None
        return lock_run_dir(run_dir) if lock is None else lock

    def release_signals(self) -> None:
        """Restore the signal handlers: from here on a signal leaves the directory."""
        self._signals.close()

    def discard(self) -> None:
        """Remove the directory of a run that did not begin; does nothing after `run_dir`."""
        self.end_phase()
        self.release_signals()
        if self._made is not None:
            self._made.discard()
            self._made = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _print(self, line: str) -> None:
        console = Console()
        console.line(line)
        console.close()
        if not self.started_by_lockstep:
            self.printed.append(line)
