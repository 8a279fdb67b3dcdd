"""A timeout for calls that cannot be interrupted."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.05


def bounded(call: Callable[[], T], seconds: float = math.inf, meanwhile: Callable[[], None] = lambda: None) -> T:
    """The result of a call that may never return, made in a daemon thread, which continues after a `TimeoutError`.

    `meanwhile` is called repeatedly while waiting; an exception of it ends the wait.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="lockstep-bounded").start()
    deadline = time.monotonic() + seconds
    while not future.done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        wait([future], _POLL_S)
        meanwhile()
    return future.result()
