"""Prefetch in threads: numpy and polars release the interpreter lock while they compute."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


_MOST = 4
"""Prefetched items: readers yield in bursts, since all rows of a row group are decoded at once."""


def prefetch(items: Iterable[_In]) -> Generator[_In]:
    """Iterate over items; a thread computes the next few while one is used."""
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
    """Map `work` over items with several threads, in order; the number of waiting results is bounded."""
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
