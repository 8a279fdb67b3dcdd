"""Signals that ask a run to stop set a flag; the ranks agree on it with their next message and stop together."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Catches SIGINT, SIGTERM and SIGUSR1 while open. A second SIGINT is a KeyboardInterrupt at once.

    Attributes:
        received: when (monotonic seconds) the first signal came and which; None while none did.
    """

    def __init__(self) -> None:
        self.received: tuple[float, int] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Start catching; only the main thread may, elsewhere nothing changes."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def flags(self) -> list[float]:
        """1 for the signal received, in the order of `WATCHED`."""
        return [float(self.received is not None and self.received[1] == number) for number in WATCHED]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = (time.monotonic(), number)
