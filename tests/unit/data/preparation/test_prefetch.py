"""Prefetching: order is kept, errors are raised, no thread is left running."""

import threading
import time

import pytest

from lockstep.data.preparation.prefetch import in_order, prefetch


def failing():
    yield 1
    raise ValueError("the second is bad")


def test_prefetch_yields_items_in_order_then_raises():
    found = []
    with pytest.raises(ValueError, match="the second is bad"):
        found.extend(prefetch(failing()))
    assert list(prefetch(range(1, 100))) == list(range(1, 100))


def test_prefetch_is_bounded_to_four_items():
    made = []

    def items():
        for i in range(1, 10):
            made.append(i)
            yield i

    for item in prefetch(items()):
        most = min(item + 4, 9)
        for _ in range(100):
            if len(made) >= most:
                break
            time.sleep(0.01)
        time.sleep(0.01)  # for one too many
        assert len(made) == most


def test_in_order_keeps_the_order_of_items():
    meeting = threading.Barrier(2, timeout=10)

    def work(item):
        meeting.wait()  # two of them run at a time, or this breaks
        time.sleep(0.02 * (item % 2 == 0))
        return 10 * item

    assert list(in_order(work, range(6), 2)) == [0, 10, 20, 30, 40, 50]


def test_in_order_raises_the_first_error_and_stops():
    begun = []

    def work(item):
        begun.append(item)
        if item == 1:
            time.sleep(0.05)
        if item:
            raise ValueError(f"item {item} is bad")
        return item

    found = []
    with pytest.raises(ValueError, match="item 1 is bad"):
        found.extend(in_order(work, range(1000), 2))
    assert found == [0] or not found
    assert len(begun) < 10
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]
