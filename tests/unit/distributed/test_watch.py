"""Stall detection, and its report."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from lockstep.distributed.timers import ENV, LEARN, OTHER, ROW, SYNC, WAIT, Timers
from lockstep.distributed.watch import Observed, observed, process_state, report, stuck


def rank(index, phase=ENV, seconds=0.0, updates=5, **more):
    return Observed(index, more.pop("state", "running"), phase, seconds, updates, **more)


def test_the_rank_longest_in_a_phase_is_stuck():
    ranks = [rank(0, WAIT, 50), rank(1, ENV, 42), rank(2, LEARN, 45), rank(3, ENV, 1)]
    assert stuck(ranks, 40, 300).rank == 2
    assert stuck(ranks, 60, 300) is None


def test_a_rank_that_waits_or_has_ended_is_not_stuck():
    assert stuck([rank(0, WAIT, 500), rank(1, ENV, 500, state="ended")], 1, 1) is None


def test_a_rank_that_sleeps_in_a_collective_is_stuck():
    assert stuck([rank(0, WAIT, 50), rank(1, SYNC, 50)], 40, 300).rank == 1


@pytest.mark.parametrize("state", ["stopped", "traced"])
def test_a_stopped_rank_is_stuck_whatever_it_was_doing(state):
    assert stuck([rank(0, ENV, 60), rank(1, WAIT, 45, state=state)], 40, 300).rank == 1
    assert stuck([rank(0, WAIT, 60), rank(1, WAIT, 39, state=state)], 40, 300) is None, "it may go on yet"
    assert stuck([rank(0, WAIT, 60), rank(1, WAIT, 99, state=state, updates=0)], 40, 300) is None


def test_the_rank_with_the_fewest_collectives_is_stuck():
    """On a GPU the rank that is ahead waits for its device, which does not count as waiting for others."""
    ahead = rank(0, LEARN, 50, entered=8)
    assert stuck([ahead, rank(1, ENV, 45, entered=7)], 40, 300).rank == 1
    assert stuck([ahead, rank(1, ENV, 3, entered=7)], 40, 300).rank == 1
    assert stuck([ahead, rank(1, ENV, 3, entered=8)], 40, 300).rank == 0
    assert stuck([ahead, rank(1, ENV, 3, entered=7, state="ended")], 40, 300).rank == 0


def test_before_the_first_update_the_startup_timeout_applies():
    slow = [rank(0, OTHER, 100, updates=0)]
    resumed = [rank(0, OTHER, 100, updates=7, behind=7)]
    assert stuck(resumed, 40, 300) is None
    assert stuck([rank(0, OTHER, 100, updates=8, behind=7)], 40, 300) is not None
    assert stuck(slow, 40, 300) is None
    assert stuck(slow, 40, 90).rank == 0


def test_the_report_names_rank_phase_time_and_what_the_others_wait_in():
    others = [rank(i, WAIT, 42, updates=117, tag="average_gradients") for i in range(3)]
    culprit = rank(3, ENV, 42, updates=117)
    assert report(culprit, [*others, culprit]) == (
        "rank 3 has been in env.step, update 118 for 42 s; ranks 0-2 wait in average_gradients, update 118"
    )
    mixed = [
        rank(0, WAIT, 1, tag="log"),
        rank(1, LEARN, 1),
        rank(2, state="ended"),
        culprit,
        rank(4, WAIT, 1, tag="log"),
        rank(5, state="stopped"),
    ]
    assert report(culprit, mixed).split("; ")[1:] == [
        "ranks 0, 4 wait in log, update 6",
        "rank 1 is in the update, update 6",
        "rank 2 has ended",
        "rank 5 is stopped",
    ]


def test_the_report_names_the_collective_that_a_rank_sleeps_in():
    assert report(rank(1, SYNC, 7, tag="average_gradients"), []) == (
        "rank 1 has been in average_gradients, update 6 for 7 s"
    )


def test_the_report_says_how_to_continue_a_stopped_rank():
    stopped = rank(1, WAIT, 7, 11, tag="average_gradients", state="stopped", pid=4711)
    assert report(stopped, [stopped, rank(0, WAIT, 7, 11, tag="average_gradients")]) == (
        "rank 1 is stopped (SIGSTOP) in average_gradients, update 12, for 7 s; continue it with `kill -CONT 4711`; "
        "rank 0 waits in average_gradients, update 12"
    )
    assert "held by a debugger in env.step" in report(rank(1, ENV, 7, state="traced"), [])


def test_a_row_is_read_as_it_was_written():
    timers = Timers()
    timers.updated(3)
    timers.enter(LEARN)
    time.sleep(0.05)
    seen = observed(1, timers.row, alive=True, tag="log", entered=4)
    assert (seen.rank, seen.phase, seen.updates, seen.tag, seen.entered) == (1, LEARN, 3, "log", 4)
    assert (seen.state, seen.pid) == ("running", os.getpid())
    assert 0.05 <= seen.seconds < 1
    empty = observed(0, memoryview(bytearray(8 * ROW)).cast("q"), alive=True, tag="")
    assert (empty.seconds, empty.updates, empty.state) == (0.0, 0, "running")
    assert observed(1, timers.row, alive=False, tag="").state == "ended"


def test_a_stopped_process_is_recognized():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert process_state(child.pid) == "running"
        for number, state in ((signal.SIGSTOP, "stopped"), (signal.SIGCONT, "running")):
            child.send_signal(number)
            deadline = time.monotonic() + 5
            while process_state(child.pid) != state and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process_state(child.pid) == state
    finally:
        child.kill()
        child.wait()


CODE = """
import sys, time
from pathlib import Path
from lockstep.distributed import stacks
from lockstep.distributed.timers import CHECKPOINT, ENV, WAIT, Timers
from lockstep.distributed.watch import Watch, observed
timers = Timers()
timers.updated(1)
signalled = {signalled}
logs = Path(sys.argv[1])
tag = ""

def stuck_here():
    time.sleep(20)

with stacks.dumps_on_request(logs, 0):
    watch = Watch(lambda: [observed(0, timers.row, alive=True, tag=tag)], lambda culprit, text: print(text),
                  lambda: signalled, timeout_s={timeout_s}, startup_timeout_s=60, logs=logs if {logs} else None)
    timers.enter(ENV)
    {body}
    watch.close()
print("closed")
"""


@pytest.fixture
def start(tmp_path):
    def run(body, timeout_s=0.4, signalled="None", logs=False):
        code = CODE.format(body=body.replace("\n", "\n    "), timeout_s=timeout_s, signalled=signalled, logs=logs)
        command = [sys.executable, "-c", code, str(tmp_path / "logs")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return run


@pytest.fixture
def watched(start):
    def run(*args, **kwargs):
        with start(*args, **kwargs) as process:
            out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    return run


def test_a_stuck_process_reports_and_exits_with_1(watched, tmp_path):
    code, out, err = watched("stuck_here()")
    assert (code, err) == (1, "")
    assert re.fullmatch(r"rank 0 has been in env.step, update 2 for \d s\n", out)
    assert not (tmp_path / "logs" / "stall.txt").exists()


def test_the_report_has_the_stack_and_stays_in_the_run_directory(watched, tmp_path):
    logs = tmp_path / "logs"
    for earlier in range(2):  # a second start of the run adds its own
        code, out, err = watched("stuck_here()", logs=True)
        assert (code, err) == (1, "")
        first, second, third, *_ = out.splitlines()
        assert first.startswith("rank 0 has been in env.step")
        assert second == "  rank 0, innermost call first (all: logs/rank_0.stack):"
        assert re.fullmatch(r'    File "<string>", line \d+ in stuck_here', third)
        assert (logs / "stall.txt").read_text().count(" rank 0 has been in env.step") == earlier + 1
        assert (logs / "stall.txt").read_text().endswith(out)
        assert (logs / "rank_0.stack").read_text().count("in stuck_here") == earlier + 1


def test_a_report_is_printed_where_the_directory_cannot_be_written(watched, tmp_path):
    (tmp_path / "logs").write_text("not a directory")
    code, out, err = watched("stuck_here()", logs=True)
    assert (code, err) == (1, "")
    assert out.splitlines()[1] == "  its Python stack could not be read within 1 s"


def test_a_process_that_makes_progress_is_not_stopped(watched, tmp_path):
    assert watched("for _ in range(20):\n    time.sleep(0.05)\n    timers.enter(ENV)", logs=True)[:2] == (0, "closed\n")
    assert not list((tmp_path / "logs").iterdir()), "files without a word in them"


def test_time_in_which_the_whole_job_was_stopped_does_not_count(start):
    ready = "print('ready', flush=True)\nfor _ in range(60):\n    time.sleep(0.02)\nprint('on', flush=True)"
    with start(ready, timeout_s=2.0) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=30) == ("on\nclosed\n", "")


def test_a_signal_that_is_not_handled_ends_the_process(watched):
    assert watched("time.sleep(20)", timeout_s=60, signalled="(time.monotonic() - 100, 2)") == (130, "", "")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("for _ in range(30):\n    time.sleep(0.05)\n    timers.enter(ENV)", 0),
        ("time.sleep(20)", 143),
    ],
    ids=["makes progress", "is stuck"],
)
def test_an_update_may_take_longer_than_the_time_for_a_signal(watched, body, code):
    """The training loop handles a signal after the update: it counts whether a rank stays in a phase."""
    shorter = "from lockstep.distributed import watch as module\nmodule._SIGNAL_GRACE_S = 0.3\n"
    assert watched(shorter + body, timeout_s=60, signalled="(time.monotonic() - 100, 15)")[0] == code


@pytest.mark.parametrize("phase", ["CHECKPOINT", "WAIT"])
def test_a_signalled_process_may_finish_its_checkpoint(watched, phase):
    """Its own, or one that it waits for; the time after that counts anew."""
    body = f"tag = 'checkpoint'\ntimers.enter({phase})\ntime.sleep(1)\ntag = ''\ntimers.enter(ENV)\ntime.sleep(1)"
    late = "(time.monotonic() - 100, 15)"
    # The signal is old when the watch begins: the phase is entered before it looks for the first time.
    assert watched(body, timeout_s=4, signalled=late)[:2] == (0, "closed\n")
