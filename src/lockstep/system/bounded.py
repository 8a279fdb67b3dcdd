"""Calls that cannot be interrupted, with a bound."""

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_S = 0.05


def bounded(call: Callable[[], T], seconds: float = math.inf, meanwhile: Callable[[], None] = lambda: None) -> T:
    """The result of a call that may never return; `TimeoutError` then. The call goes on in a thread of its own.

    Args:
        call: made once.
        seconds: how long to wait for it.
        meanwhile: called while waiting; may raise, which ends the waiting.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="lockstep-bounded")
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        thread.join(_LOOK_S)
        meanwhile()
    if errors:
        raise errors[0]
    return results[0]
