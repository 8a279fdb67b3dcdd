"""Keeps XLA from leaving the work of one of several CPU devices of a process lying.

XLA hands each device's part of a computation to a pool of threads, where the parts wait for each other. The pool is
Eigen's. It wakes no thread for a new task while another one is looking for work, and one that has just found some
counts as looking until it begins. Where it is interrupted in between, the next part may come, wake nobody, and lie
there, while the first waits for it: "may be stuck. Expected 2 threads to join the rendezvous" (jaxlib 0.10.2). Whatever
task comes next wakes the pool, so one comes every second.
"""

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_EVERY_S = 1.0


class Waker:
    """A thread that copies a number from one device to another now and then; none for one device, nor for GPUs.

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
        """Give the pool a task, and do not wait for it: the copy."""
        return jax.device_put(self._number, self._other)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self.wake()
