"""Call a tracker from a thread with a bounded queue: it can be down, slow, or raise, and the run continues."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import psutil

Call = Callable[[], object]

QUEUE_SIZE = 1000
"""Calls that may wait; later ones are dropped until there is room."""
CLOSE_TIMEOUT_S = 15.0
"""How long the end of a run waits for the calls that are left."""
_FAILING_TIMEOUT_S = 3.0
"""The same if the last call failed."""
_EXIT_TIMEOUT_S = 3.0


class BackgroundCalls:
    """Runs calls in order in a daemon thread. The first error and the first dropped call print one warning each.

    A failed call does not end the thread: a server may come back.

    Args:
        name: of the tracker, for warnings.
        first: the first call; after it has failed nothing else is called.
        warn: prints a warning for the user; called from any thread.
    """

    def __init__(self, name: str, first: Call, warn: Callable[[str], None]) -> None:
        self._name = name
        self._warn = warn
        self._calls: deque[Call] = deque([first])
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._dropped = 0
        self._failing = False
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Queue a call, or drop it if the queue is full or the tracker did not start; never waits."""
        with self._changed:
            if self._closed:
                return
            full = len(self._calls) >= QUEUE_SIZE
            if not full:
                self._calls.append(call)
                self._changed.notify()
            self._dropped += full
            first = full and self._dropped == 1
        if first:
            self._warn(f"trackers={self._name} is too slow; entries are left out there, and metrics.jsonl has them all")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all calls are done, at most `timeout_s`, and end the thread; returns whether they are done."""
        with self._changed:
            if self._failing:
                timeout_s = min(timeout_s, _FAILING_TIMEOUT_S)
            until = time.monotonic() + timeout_s
            while (self._calls or self._busy) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            waiting = len(self._calls) + self._busy
            self._closed = True
            self._calls.clear()
            self._changed.notify_all()
        if waiting and not self._warned:
            self._warn(
                f"trackers={self._name}: {waiting} entries were not sent within {timeout_s:g} s of the run's end; "
                "metrics.jsonl has them all"
            )
        return not waiting

    def _run(self) -> None:
        first = True
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._calls and not self._closed:
                    self._changed.wait()
                if not self._calls:
                    return
                call, self._busy = self._calls.popleft(), True
            try:
                call()
                self._failing = False
            except Exception as error:
                self._failing = True
                self._report(error)
                if first:
                    self._stop()
                    return
            first = False

    def _stop(self) -> None:
        with self._changed:
            self._closed, self._busy = True, False
            self._calls.clear()
            self._changed.notify_all()

    def _report(self, error: Exception) -> None:
        if not self._warned and not self._closed:
            self._warned = True
            reason = " ".join(str(error).split()) or type(error).__name__
            self._warn(
                f"trackers={self._name} failed ({reason[:300]}); training continues, and metrics.jsonl has all numbers"
            )


def kill_at_exit(name: str) -> None:
    """Kill child processes of this name some seconds after this process begins to exit.

    For a library whose exit handler waits for such a child without a bound.
    """
    ending = threading.Event()
    atexit.register(ending.set)

    def kill() -> None:
        ending.wait()
        time.sleep(_EXIT_TIMEOUT_S)
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if child.name() == name:
                    child.kill()  # it may ignore SIGTERM while it shuts down

    threading.Thread(target=kill, daemon=True).start()
