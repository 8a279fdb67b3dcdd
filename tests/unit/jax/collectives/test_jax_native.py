"""Sums in C, in one process: two ranks' memory, one of them played by the test."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.distributed.shared_memory import Segment
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import LEARN, PHASE, SYNC, WAIT, Timers
from lockstep.distributed.tree import owned_nodes, tree_sum
from lockstep.jax.collectives import native
from lockstep.jax.collectives.callback import Callback
from lockstep.world import World

WORLDS = [(shards, size) for shards in (1, 2, 5, 8, 13, 40) for size in range(1, 9) if size <= shards]
# Without one there is nothing here to test: Python makes the sums, which tests/ranks/test_jax_comm.py tries on any
# machine. The command is looked for, not the library: C code that no longer compiles must fail, not skip.
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.mark.parametrize(("num_shards", "size"), WORLDS)
def test_the_program_of_a_tree_adds_what_the_tree_adds(num_shards, size):
    ranks = [World(rank=rank, size=size, num_shards=num_shards).shards for rank in range(size)]
    rows = [node for shards in ranks for node in owned_nodes(shards, num_shards)]
    steps, stack = native.program(rows, (0, num_shards)), []
    for step in steps:
        if step >= 0:
            stack.append(f"{rows[step]}")
        else:
            right = stack.pop() if step == -1 else f"{rows[-2 - step]}"
            stack[-1] = f"({stack[-1]} + {right})"
        assert len(stack) <= native.depth(steps)
    assert stack == [tree_sum({row: f"{row}" for row in rows}, (0, num_shards), lambda a, b: f"({a} + {b})")]


class Pair:
    """Two ranks of a host with 5 shards: rank 0 by C code, rank 1 by hand."""

    def __init__(self, length, size=1 << 16):
        self.rank, self.other = Segment.create(0, 2), None
        self.other = Segment.attach(self.rank.address, 1, 2)
        self.rank.create_slots(2 * size)
        self.other.attach_slots(2 * size)
        self.timers = Timers()
        self.timers.publish(self.rank.row(0))
        own, theirs = owned_nodes(range(3), 5), owned_nodes(range(3, 5), 5)
        self.rows, self.num_own, self.length, self.size = own + theirs, len(own), length, size
        self.native = native.NativeSums(self.rank, self.timers.totals_ns, self.rows, own)
        self.asked, self.called = [], []
        self.callback = Callback("pair", lambda value, out: self.called.append((value.copy(), out.fill(7.0))))
        self.callback.use_native(lambda *h: self.native.use(length, 5, "learn", *h), self.wait)
        self.late = None
        self.sum = jax.jit(lambda value: self.callback(value, (length,)))

    def wait(self):
        self.asked.append(self.rank.tag(0))
        if self.late is None:
            raise TimeoutError("nobody came")
        self.arrive(*self.late)

    def arrive(self, parts, tag="learn", kind="float32"):
        """Rank 1 writes its parts and arrives."""
        turn = self.other.turn_slots()
        table = np.frombuffer(self.other.slots, np.float32, len(self.rows) * self.length, turn * self.size)
        table.reshape(-1, self.length)[self.num_own :] = parts
        self.other.arrive(tag, message_signature(4 * self.length, kind))

    def parts(self, seed):
        rows = np.random.default_rng(seed).normal(size=(len(self.rows), self.length)).astype(np.float32)
        return rows, rows[: self.num_own], rows[self.num_own :]

    def expected(self, rows):
        return tree_sum(dict(zip(self.rows, rows, strict=True)), (0, 5), np.add)


@needs_compiler
@pytest.mark.parametrize("length", [1, 511, 512, 1300])
def test_a_sum_has_the_bits_of_the_tree_time_after_time(length):
    pair = Pair(length)
    for seed in range(5):
        rows, own, theirs = pair.parts(seed)
        pair.arrive(theirs)
        np.testing.assert_array_equal(np.asarray(pair.sum(own)), pair.expected(rows))
    assert (pair.asked, pair.called, pair.callback.take_native_calls(), pair.callback.take_native_calls()) == (
        [],
        [],
        5,
        0,
    )
    assert (pair.rank.tag(0), pair.rank.entered(0), pair.rank.ranks_elsewhere()) == ("learn", 5, [])


@needs_compiler
def test_who_waits_long_waits_in_python_and_the_clock_knows():
    pair = Pair(300)
    pair.timers.enter(LEARN)
    rows, own, theirs = pair.parts(0)
    pair.late = (theirs,)
    np.testing.assert_array_equal(np.asarray(pair.sum(own)), pair.expected(rows))
    assert pair.asked == ["learn"]
    assert pair.timers.row[PHASE] == LEARN
    assert pair.timers.totals_ns[SYNC] > 0 and pair.timers.totals_ns[WAIT] > 0


@needs_compiler
@pytest.mark.parametrize(("tag", "kind"), [("log", "float32"), ("learn", "int32")])
def test_another_collective_of_a_rank_is_a_matter_for_python(tag, kind):
    pair = Pair(300)
    _, own, theirs = pair.parts(0)
    pair.arrive(theirs, tag, kind)
    with pytest.raises(jax.errors.JaxRuntimeError, match="TimeoutError: nobody came"):
        jax.block_until_ready(pair.sum(own))
    assert isinstance(pair.callback.error, TimeoutError)
    assert pair.rank.ranks_elsewhere() == [(1, tag, message_signature(1200, kind))]


@needs_compiler
def test_memory_that_is_too_small_is_a_matter_for_python():
    """Rows of all nodes and one more are what Python's table has: both have to grow it at the same sum."""
    length = 300
    pair = Pair(length, size=4 * length * 4)
    assert len(pair.rows) == 3
    rows, own, theirs = pair.parts(0)
    pair.arrive(theirs)
    np.testing.assert_array_equal(np.asarray(pair.sum(own)), pair.expected(rows))
    smaller = Pair(length, size=4 * length * 4 - 4)
    assert np.asarray(smaller.sum(own)).tolist() == [7.0] * length
    np.testing.assert_array_equal(smaller.called[0][0], own)
    assert (smaller.callback.take_native_calls(), smaller.rank.turn_slots()) == (0, 1)


def test_without_a_compiler_there_is_no_c_and_no_error(tmp_path):
    code = "from lockstep.jax.collectives import native; print(native.library())"
    for compiler in ("no-such-compiler", "false"):
        environment = os.environ | {"CC": compiler, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("None\n", "")


@needs_compiler
def test_the_code_is_compiled_once_without_a_warning(tmp_path):
    code = "from lockstep.jax.collectives import native; print(native.library() is not None)"
    environment = os.environ | {"CC": "cc -Wall -Wextra -Werror", "TMPDIR": str(tmp_path)}
    stamps = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"
        (made,) = tmp_path.glob("lockstep-*/exchange-*")
        stamps.append(made.stat().st_mtime_ns)
    assert stamps[0] == stamps[1]
