"""Signals in forks of this process, which inherit its handlers: SIGTERM ends a fork, as `multiprocessing` expects.

`Process.terminate()`, `Pool` and the end of a daemon send SIGTERM. A handler that only sets a flag would have them wait
for ever, and one that wakes a thread by a pipe would wake that of the parent, because both share the pipe.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_handlers: list[Handler] = []
_wakeups: list[int] = []
_blocked = threading.local()


def only_in_this_process(handler: Handler) -> None:
    """Give SIGTERM its default action in forks that are made while `handler` handles it here.

    SIGINT, SIGUSR1 and SIGHUP stay with the handler there: a terminal or a scheduler sends them to all processes at
    once, and this one may need a forked helper until it has saved.
    """
    _handlers.append(handler)


def forget(handler: Handler) -> None:
    """Undo `only_in_this_process`, if it was called."""
    with contextlib.suppress(ValueError):
        _handlers.remove(handler)


def open_wakeup(descriptor: int) -> int:
    """`signal.set_wakeup_fd(descriptor)`, in this process alone; returns the previous descriptor."""
    _wakeups.append(descriptor)
    return signal.set_wakeup_fd(descriptor)


def close_wakeup(descriptor: int, previous: int) -> None:
    """Undo `open_wakeup`."""
    signal.set_wakeup_fd(previous)
    _wakeups.remove(descriptor)


def _before_fork() -> None:
    # A signal that the child gets before it has forgotten the handlers would still be the parent's.
    if _handlers or _wakeups:
        _blocked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _in_child() -> None:
    if signal.getsignal(signal.SIGTERM) in _handlers:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _wakeups:
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor not in _wakeups:
            signal.set_wakeup_fd(descriptor)
    _after_fork()


def _after_fork() -> None:
    mask = _blocked.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


os.register_at_fork(before=_before_fork, after_in_child=_in_child, after_in_parent=_after_fork)
