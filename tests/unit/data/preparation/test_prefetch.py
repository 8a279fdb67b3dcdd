"""Threads that work ahead: the order stays, errors arrive, nothing runs on."""

import threading
import time

import pytest

from lockstep.data.preparation.prefetch import in_order, prefetch


def failing():
    yield 1
    raise ValueError("the second is bad")


def test_items_come_in_order_and_then_the_error():
    found = []
    with pytest.raises(ValueError, match="the second is bad"):
        found.extend(prefetch(failing()))
    assert list(prefetch(range(1, 100))) == list(range(1, 100))


def test_the_next_four_items_are_made_while_one_is_used_and_no_more():
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


def test_results_keep_the_order_of_their_items_whoever_is_first():
    meeting = threading.Barrier(2, timeout=10)

    def work(item):
        meeting.wait()  # two of them run at a time, or this breaks
        time.sleep(0.02 * (item % 2 == 0))
        return 10 * item

    assert list(in_order(work, range(6), 2)) == [0, 10, 20, 30, 40, 50]


def test_the_first_error_in_order_counts_and_ends_the_rest():
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
