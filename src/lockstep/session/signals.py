"""Stop signals set a flag; the ranks exchange it with their next message and stop together."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from lockstep.system import fork_signals

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class StopSignals:
    """Handles SIGINT, SIGTERM, SIGUSR1 and SIGHUP while open. A second SIGINT raises KeyboardInterrupt at once.

    SIGHUP, which a terminal sends when it closes, stays ignored where it is, as under nohup. SIGTERM ends processes
    that the environment forks meanwhile, also while this one ends and waits for them.

    Attributes:
        received: monotonic time and number of the first signal; None for none.
    """

    def __init__(self) -> None:
        self.received: tuple[float, int] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers; no effect outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            ignored = signal.SIGHUP if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else None
            fork_signals.only_in_this_process(self._on_signal)
            self._before = {n: signal.signal(n, self._on_signal) for n in WATCHED if n != ignored}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        fork_signals.forget(self._on_signal)

    def flags(self) -> list[float]:
        """1 for the received signal, else 0, in the order of `WATCHED`."""
        return [float(self.received is not None and self.received[1] == number) for number in WATCHED]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = (time.monotonic(), number)
