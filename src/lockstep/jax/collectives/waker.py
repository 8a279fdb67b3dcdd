"""A workaround for lost wake-ups in XLA's thread pool when a process has several CPU devices.

XLA runs each device's part of a computation in Eigen's thread pool, where the parts wait for each other. The pool wakes
no thread for a new task while another thread is looking for work, and a thread that has just found a task counts as
looking until it starts it. If it is interrupted in between, the next part can be queued without a thread being woken,
while the first waits for it: "may be stuck. Expected 2 threads to join the rendezvous" (jaxlib 0.10.2). Any later task
wakes the pool, so one is submitted every second.
"""

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_EVERY_S = 1.0


class Waker:
    """A thread that copies a number between two devices every second; no thread for one device or for GPUs.

    Args:
        devices: of this process.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self._closed, self._thread = threading.Event(), None
        if len(devices) > 1 and devices[0].platform == "cpu":
            self._number, self._other = jax.device_put(np.zeros(1, np.float32), devices[0]), devices[1]
            self._thread = threading.Thread(target=self._run, name="lockstep-waker", daemon=True)
            self._thread.start()

    def wake(self) -> Any:
        """Submit the copy without waiting for it."""
        return jax.device_put(self._number, self._other)

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self.wake()
