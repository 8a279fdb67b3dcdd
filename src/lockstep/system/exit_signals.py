"""Clean up when a signal ends this process, also while its main thread is in native code."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import NoReturn

from lockstep.system import fork_signals

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # SIGINT raises KeyboardInterrupt


@contextlib.contextmanager
def exit_on_signal() -> Generator[None]:
    """Have SIGTERM, SIGUSR1 and SIGHUP raise `SystemExit(128 + n)` in the main thread, so that `finally` blocks run.

    Signals that already have a handler are not changed; outside the main thread this does nothing.
    """

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    with _handled(_unhandled() if is_main else [], leave):
        yield


@contextlib.contextmanager
def cleanup_on_signal(cleanup: Callable[[int], None]) -> Generator[None]:
    """Call `cleanup` with n before SIGTERM, SIGUSR1 or SIGHUP ends this process; the exit code is then 128 + n.

    Runs in a thread: a Python handler only runs when the main thread returns from native code, where a rendezvous may
    wait for minutes. Signals that already have a handler are not changed; outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = _unhandled()
    received, wakeup = os.pipe()
    os.set_blocking(wakeup, False)

    def wait() -> None:
        while byte := os.read(received, 1):
            if byte[0] in numbers:
                cleanup(byte[0])
                os._exit(128 + byte[0])
        os.close(received)

    def join(_number: int, _frame: FrameType | None) -> None:
        thread.join()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    previous = fork_signals.open_wakeup(wakeup)
    try:
        with _handled(numbers, join):  # the wakeup descriptor reports only signals that have a handler
            yield
    finally:
        fork_signals.close_wakeup(wakeup, previous)
        os.close(wakeup)


def _unhandled() -> list[signal.Signals]:
    """The signals that would end this process at once."""
    return [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]


@contextlib.contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Handle these signals for a while; their default action is restored at the end, and SIGTERM's in forks."""
    fork_signals.only_in_this_process(handler)
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        fork_signals.forget(handler)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
