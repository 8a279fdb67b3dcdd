"""Signals that ask a launcher to end."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType


class Interrupted(Exception):  # noqa: N818  # requested by the user
    """A signal, the argument, ended what a command was doing."""


@contextlib.contextmanager
def caught_signals() -> Generator[list[int], None, None]:
    """A list that fills with the termination signals this process receives instead of ending it."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        caught.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # Python allows handlers in the main thread only
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def signal_name(number: int) -> str:
    """`SIGKILL (signal 9)`."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
