"""What rank 0 does before the ranks have met: it makes the run directory and tells the user what starts."""

import contextlib
import threading
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.record.console import Console
from lockstep.record.run_dir import RunDir
from lockstep.run import AnyRun
from lockstep.system.exit_signals import cleanup_on_signal

_REPORT_AFTER_S = 2.0  # what takes longer than this is named


class PendingRun:
    """The time from the command to the journal of a run, on one rank.

    Args:
        path: the run directory; None: a new one below `runs/`.
        joined: our launcher made the directory and told the user; what this process prints goes to its log.

    Attributes:
        path: the run directory, as far as it is known.
        printed: what was shown before there was a log to keep it.
    """

    def __init__(self, path: Path | None = None, *, joined: bool = False) -> None:
        self.path, self.joined = path, joined
        self.printed: list[str] = []
        self._made: RunDir | None = None
        self._error: ConfigError | None = None
        self._timer: threading.Timer | None = None
        self._signals = contextlib.ExitStack()

    @classmethod
    def resolve(cls, given: "Path | PendingRun | None", joined: bool, earlier: Path | None) -> "PendingRun":
        """What was given, or its beginning.

        Args:
            given: where to write, or what was made of it already.
            joined: of a new one.
            earlier: the directory of the run that goes on; then `given` has no say.
        """
        pending = given if isinstance(given, PendingRun) else cls(given, joined=joined)
        if earlier is not None:
            pending.discard()
            pending.path = earlier
        return pending

    def make(self, run: AnyRun, *, alone: bool) -> bool:
        """Make the run directory before the ranks meet, so that the user learns its name at once.

        Args:
            run: the config.
            alone: there are no other ranks. Otherwise they have to learn of a refusal, too: `run_dir` raises it later.

        Returns:
            Whether it was made.
        """
        try:
            self._made = RunDir.create(self.path, run)
        except ConfigError as error:
            if alone:
                raise
            self._error = error
            return False
        self.path = self._made.path
        # A launcher sends SIGTERM to all ranks when one of them refuses to start.
        self._signals.enter_context(cleanup_on_signal(self._made.discard))
        return True

    def announce(self, line: str) -> None:
        """Show the first line, or write it to the log where our launcher has shown it."""
        if self.joined:
            print(line, flush=True)
        else:
            self._print(line)

    def start_phase(self, what: str) -> None:
        """From here on `what` is done; the user is told if it takes long."""
        self.end_phase()
        self._timer = threading.Timer(_REPORT_AFTER_S, self._print, [f"{what} ..."])
        self._timer.daemon = True
        self._timer.start()

    def end_phase(self) -> None:
        """Nothing more is done before the run begins."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_dir(self, run: AnyRun) -> RunDir:
        """The new run directory, for its writer; raises `ConfigError` where there cannot be one."""
        if self._error is not None:
            raise self._error
        made, self._made = self._made, None
        return made or RunDir.create(self.path, run)

    def release_signals(self) -> None:
        """Give signals back: from here on one that ends this process leaves the directory."""
        self._signals.close()

    def discard(self) -> None:
        """Leave nothing behind of a run that did not begin; does nothing once `run_dir` was asked for."""
        self.end_phase()
        self.release_signals()
        if self._made is not None:
            self._made.discard()
            self._made = None

    def _print(self, line: str) -> None:
        console = Console()
        console.line(line)
        console.close()
        if not self.joined:
            self.printed.append(line)
