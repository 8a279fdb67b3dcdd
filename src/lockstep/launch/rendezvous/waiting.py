"""Waiting that ends: said on stderr, bounded, and given up when asked to."""

import time
from collections.abc import Callable

from lockstep.errors import ConfigError
from lockstep.launch.verdict import say

_FIRST_SAID_S = 2.0
_SAID_S = 10.0


class Cancelled(Exception):  # noqa: N818 - it is what was asked for
    """This node was asked to give up waiting."""


class Waiting:
    """Call it often, with what is waited for.

    Attributes:
        deadline: `time.monotonic()` at which it is over.
    """

    def __init__(self, cancelled: Callable[[], bool], timeout_s: float) -> None:
        self._cancelled, self.timeout_s = cancelled, timeout_s
        began = time.monotonic()
        self.deadline, self._say_at = began + timeout_s, began + _FIRST_SAID_S

    def __call__(self, awaited: str, cure: str = "") -> None:
        """Go on waiting.

        Args:
            awaited: what for, in words.
            cure: what the user can do about it if it does not come.

        Raises:
            Cancelled: as asked.
            ConfigError: the time is over.
        """
        if self._cancelled():
            raise Cancelled
        now = time.monotonic()
        if now > self.deadline:
            way_out = f"; {cure}" if cure else ""
            raise ConfigError(f"--join-timeout {self.timeout_s:g} s is over while waiting for {awaited}{way_out}")
        if now > self._say_at:
            self._say_at = now + _SAID_S
            say(f"lockstep: waiting for {awaited}")
