"""Waiting for other nodes: reported on stderr, bounded by --join-timeout, and cancellable."""

import time
from collections.abc import Callable

from lockstep.errors import ConfigError
from lockstep.launch.failure_report import log

_FIRST_REPORT_S = 2.0
_REPORT_EVERY_S = 10.0


class Cancelled(Exception):  # noqa: N818 - no error: it was requested
    """Waiting was cancelled."""


class Waiting:
    """Call it repeatedly while waiting.

    Attributes:
        deadline: `time.monotonic()` at which the timeout is over.
    """

    def __init__(self, cancelled: Callable[[], bool], timeout_s: float) -> None:
        self._cancelled = cancelled
        self._timeout_s = timeout_s
        now = time.monotonic()
        self.deadline = now + timeout_s
        self._report_at = now + _FIRST_REPORT_S

    def __call__(self, awaited: str, advice: str = "") -> None:
        """Report what is awaited, now and then; `advice` is the remedy if it does not come.

        Raises:
            Cancelled: as requested.
            ConfigError: the timeout is over.
        """
        if self._cancelled():
            raise Cancelled
        now = time.monotonic()
        if now > self.deadline:
            way_out = f"; {advice}" if advice else ""
            raise ConfigError(f"--join-timeout {self._timeout_s:g} s is over while waiting for {awaited}{way_out}")
        if now > self._report_at:
            self._report_at = now + _REPORT_EVERY_S
            log(f"lockstep: waiting for {awaited}")
