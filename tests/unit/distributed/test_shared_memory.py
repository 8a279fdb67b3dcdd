"""Shared memory of a host's ranks; mostly two segments within one process."""

import os
import subprocess
import sys
import threading
import time

import pytest

from lockstep.distributed.shared_memory import Segment, ordered, supported
from lockstep.distributed.timers import ENV, PHASE, PHASES, PID, SINCE_NS, UPDATES, Timers

pytestmark = pytest.mark.skipif(not (supported() and ordered()), reason="no ordered shared memory here")


@pytest.fixture
def pair():
    first = Segment.create(0, 2)
    second = Segment.attach(first.address, 1, 2)
    yield first, second
    second.close()
    first.close()


def never(index):
    raise AssertionError(f"nobody should wait for {index}")


def test_writes_are_visible_to_both(pair):
    first, second = pair
    timers = Timers()
    timers.publish(second.row(1))
    timers.enter(ENV)
    timers.updated(7)
    seen = first.row(1)
    assert (PHASES[seen[PHASE]], seen[UPDATES], seen[PID]) == ("env", 7, os.getpid())
    assert 0 <= time.monotonic_ns() - seen[SINCE_NS] < 1e9


def test_turns_alternate_and_a_wait_ends_when_all_arrived(pair):
    first, second = pair
    turns = []
    for _ in range(4):
        turns.append(first.turn())
        first.arrive("average_gradients", 64)
        second.arrive("average_gradients", 64)
        first.wait(never)
        second.wait(never)
        assert first.ranks_elsewhere() == second.ranks_elsewhere() == []
    assert turns == [1, 0, 1, 0]


def test_on_wait_is_called_until_the_other_arrives(pair):
    first, second = pair
    asked = []
    first.arrive("moments", 8)
    late = threading.Timer(0.35, second.arrive, ("moments", 8))
    late.start()
    first.wait(asked.append)
    late.join()
    assert set(asked) == {1}
    assert 1 <= len(asked) <= 4


def test_an_exception_of_on_wait_ends_the_wait(pair):
    first, _ = pair
    first.arrive("moments", 8)
    with pytest.raises(AssertionError, match="wait for 1"):
        first.wait(never)


@pytest.mark.parametrize(("tag", "size"), [("log", 64), ("moments", 32)])
def test_another_tag_or_size_is_reported(pair, tag, size):
    first, second = pair
    first.arrive("moments", 64)
    second.arrive(tag, size)
    assert first.ranks_elsewhere() == [(1, tag, size)]
    assert second.ranks_elsewhere() == [(0, "moments", 64)]


def test_the_board_shows_the_collective_a_rank_entered(pair):
    """Also before it arrives, and if the numbers are not exchanged through the slots."""
    first, second = pair
    assert (first.tag(1), first.entered(1)) == ("", 0)
    for number, tag in enumerate(["moments", "average_gradients", "é" * 100], 1):
        second.enter(tag)
        assert (first.tag(1), first.entered(1)) == (tag.replace("é", "?")[:64], number)
        second.arrive("moments", 8)
    assert (first.tag(0), first.entered(0)) == ("", 0)
    assert second.row(1)[0] == 0, "the phase was written over"


def test_tags_that_are_long_or_not_ascii_are_cut(pair):
    first, second = pair
    first.arrive("é" * 100, 8)
    second.arrive("x", 8)
    assert first.ranks_elsewhere() == [(1, "x", 8)]
    assert len(second.ranks_elsewhere()[0][1]) == 64
    assert PHASES[first.row(1)[PHASE]] == "env"  # untouched: 0


def test_slots_are_shared(pair):
    first, second = pair
    first.create_slots(4096)
    second.attach_slots(4096)
    first.slots[10:15] = b"hello"
    assert second.slots[10:15] == b"hello"


def test_an_ended_process_is_dead_and_a_sleeping_one_alive():
    first = Segment.create(0, 2)  # not the pair: there, this process itself is rank 1
    code = f"""
import sys, time
from lockstep.distributed.shared_memory import Segment
segment = Segment.attach({first.address!r}, 1, 2)
print("here", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"here\n"
        assert first.alive(1)
        child.kill()
        deadline = time.monotonic() + 2
        while first.alive(1) and time.monotonic() < deadline:  # not waited for: a zombie is dead too
            time.sleep(0.01)
        assert not first.alive(1)
        assert first.alive(0)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        first.close()


def test_the_memory_has_no_name_in_the_file_system(pair):
    assert pair[0].address.startswith(f"/proc/{os.getpid()}/fd/")
    assert not [name for name in os.listdir("/dev/shm") if "lockstep" in name]


def test_others_wait_until_the_first_has_published_the_rows_of_other_hosts(pair):
    first, second = pair
    for _ in range(3):
        first.arrive("moments", 8)
        second.arrive("moments", 8)
        with pytest.raises(AssertionError, match="wait for 0"):
            second.wait_for_first(never)
        first.publish_from_hosts()
        second.wait_for_first(never)


def test_the_failure_of_the_first_is_read_by_all_whatever_its_length(pair):
    first, second = pair
    assert second.failure() == ""
    first.announce_failure("host béta left")
    assert second.failure() == first.failure() == "host béta left"
    first.announce_failure("x" * 5000)
    assert 400 < len(second.failure()) < 1000
    assert second.tag(1) == "", "the next rank's record was written over"


@pytest.mark.parametrize("size", [9, 1 << 16])
def test_a_file_that_is_not_the_memory_is_left_alone(tmp_path, size):
    file = tmp_path / "log.txt"
    file.write_bytes(b"x" * size)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="this is another file"):
        Segment.attach(str(file), 1, 2)
    assert file.read_bytes() == b"x" * size
    assert len(os.listdir("/proc/self/fd")) == descriptors
