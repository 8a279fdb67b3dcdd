"""Two things at a time: numpy and polars let other threads run while they compute."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


_MOST = 4
"""Items made ahead: they come in bursts (all rows of a row group are decoded at once), and are used steadily."""


def prefetch(items: Iterable[_In]) -> Generator[_In]:
    """The same items; a thread makes the next few while the last one is used."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(next, iterator, None) for _ in range(_MOST))
        try:
            while (item := coming.popleft().result()) is not None:
                coming.append(thread.submit(next, iterator, None))
                yield item
        finally:
            for one in coming:
                one.cancel()


def in_order(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Generator[_Out]:
    """What `work` makes of each item, in their order, by several threads; few results wait at a time."""
    running = deque[Future[_Out]]()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                running.append(pool.submit(work, item))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for one in running:
                one.cancel()
