"""Who is stuck, and what is said about it."""

import subprocess
import sys
import time

from lockstep.record.timers import ENV, LEARN, OTHER, ROW, WAIT, Timers
from lockstep.watch import Observed, observed, report, stuck


def rank(index, phase=ENV, seconds=0.0, updates=5, tag="", alive=True):
    return Observed(index, alive, phase, seconds, updates, tag)


def test_the_longest_in_a_phase_of_its_own_is_stuck():
    ranks = [rank(0, WAIT, 50), rank(1, ENV, 42), rank(2, LEARN, 45), rank(3, ENV, 1)]
    assert stuck(ranks, 40, 300).rank == 2
    assert stuck(ranks, 60, 300) is None


def test_who_waits_or_has_ended_is_not_stuck():
    assert stuck([rank(0, WAIT, 500), rank(1, ENV, 500, alive=False)], 1, 1) is None


def test_before_the_first_update_the_longer_bound_holds():
    slow = [rank(0, OTHER, 100, updates=0)]
    assert stuck(slow, 40, 300) is None
    assert stuck(slow, 40, 90).rank == 0


def test_the_report_names_rank_phase_time_and_what_the_others_wait_in():
    others = [rank(i, WAIT, 42, updates=117, tag="average_gradients") for i in range(3)]
    culprit = rank(3, ENV, 42, updates=117)
    assert report(culprit, [*others, culprit]) == (
        "rank 3 has been in env.step, update 118 for 42 s; ranks 0-2 wait in average_gradients, update 118"
    )
    mixed = [rank(0, WAIT, 1, tag="log"), rank(1, LEARN, 1), rank(2, alive=False), culprit, rank(4, WAIT, 1, tag="log")]
    assert report(culprit, mixed).split("; ")[1:] == [
        "ranks 0, 4 wait in log, update 6",
        "rank 1 is in the update, update 6",
        "rank 2 has ended",
    ]


def test_a_row_is_read_as_it_was_written():
    timers = Timers()
    timers.updated(3)
    timers.enter(LEARN)
    time.sleep(0.05)
    seen = observed(1, timers.row, alive=True, tag="log")
    assert (seen.rank, seen.phase, seen.updates, seen.tag) == (1, LEARN, 3, "log")
    assert 0.05 <= seen.seconds < 1
    empty = observed(0, memoryview(bytearray(8 * ROW)).cast("q"), alive=True, tag="")
    assert (empty.seconds, empty.updates) == (0.0, 0)


CODE = """
import sys, time
from lockstep.record.timers import ENV, Timers
from lockstep.watch import Watch, observed
timers = Timers()
timers.updated(1)
signalled = {signalled}
watch = Watch(lambda: [observed(0, timers.row, alive=True, tag="")], lambda culprit, text: print(text),
              lambda: signalled, timeout_s={timeout_s}, startup_timeout_s=60)
timers.enter(ENV)
{body}
watch.close()
print("closed")
"""


def watched(body, timeout_s=0.4, signalled="None"):
    code = CODE.format(body=body, timeout_s=timeout_s, signalled=signalled)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


def test_a_stuck_process_reports_and_leaves_with_1():
    done = watched("time.sleep(20)")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("rank 0 has been in env.step, update 2 for 0 s")


def test_a_process_that_goes_on_is_left_alone():
    done = watched("for _ in range(20):\n    time.sleep(0.05)\n    timers.enter(ENV)")
    assert (done.returncode, done.stdout) == (0, "closed\n")


def test_a_signal_that_is_not_heeded_ends_the_process():
    done = watched("time.sleep(20)", timeout_s=60, signalled="(time.monotonic() - 100, 2)")
    assert (done.returncode, done.stdout) == (130, "")
