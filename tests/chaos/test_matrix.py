"""Every fault on 2 and on 4 ranks: the run ends in time and names who and where, or it recovers and loses nothing."""

import json
import re
import time

import pytest
from chaos_runs import BATCH, TIMEOUT_S, folder_for, resume, small, timeless, train

from lockstep.cli.chaos.faults import INJECTED_FILE, InjectedFault

pytestmark = pytest.mark.chaos

AT = 10  # updates; checkpoints are taken after 4 and 8
QUICK_S = 3.0  # until the end of a process is noticed, on a busy machine
# What each fault does to a run without restarts: the exit code, what is said about rank N, and how soon.
ENDS = {
    "kill": (137, r"rank N was killed by SIGKILL", QUICK_S),
    "raise": (1, r"rank N failed in env\.step of shard \d \(environments \d+ to \d+\): RuntimeError", QUICK_S),
    "exit": (1, r"rank N exited early with code 0", QUICK_S),
    "stall": (1, r"rank N has been in env\.step, update U for \d+ s; rank.* moments", TIMEOUT_S + 3),
    "collective": (1, r"rank N has been in \w+, update U for \d+ s; rank.* in \w+, update U", TIMEOUT_S + 3),
    "stop": (1, r"rank N is stopped \(SIGSTOP\) in env\.step, update U", TIMEOUT_S + 3),
    "nan": (1, r"environment \d+ .*reward.* rank N", QUICK_S),
    "weight": (1, r"rank.* N.* policy\.", 20.0),
}


def noted(start):
    """What was written when the fault was injected."""
    return json.loads((start.run_dir / INJECTED_FILE).read_text())


def detected_s(start, number):
    """Seconds between the fault and the record of its detection."""
    name = "failure.json" if number is None else f"failure_{number}.json"
    return (start.run_dir / "logs" / name).stat().st_mtime - noted(start)["time_s"]


def check_named(start, fault, number=None):
    """The right rank and place are named, in time, on stderr and in the file."""
    _, words, bound = ENDS[fault.fault]
    pattern = words.replace("N", str(fault.rank)).replace("U", str(noted(start)["at"] + 1))
    failure = start.failure(number)
    assert str(fault.rank) in failure["message"], failure
    assert re.search(pattern, start.errors, re.DOTALL), start.errors
    if fault.fault != "weight":  # between two ranks nobody knows whose weight is the right one
        assert failure["rank"] == fault.rank, failure
    waited = detected_s(start, number)
    assert waited < bound, f"noticed after {waited:.1f} s"
    if fault.fault in ("stall", "collective", "stop"):
        assert waited > TIMEOUT_S - 1, f"noticed after {waited:.1f} s already: a slow rank is no stuck one"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ENDS)
def test_a_fault_ends_the_run_and_is_named(tmp_path, kind, ranks):
    fault = InjectedFault(kind, ranks - 1, AT)
    start = train(folder_for(tmp_path, small()), ranks, fault=fault)
    assert start.wait() == ENDS[kind][0], start.said
    start.check_clean()
    check_named(start, fault)
    summary = start.summary
    assert summary["status"] == "failed"
    assert summary["world_size"] == ranks
    assert summary["error"].splitlines()[0] in start.errors
    if kind in ("stall", "collective"):
        report = (start.run_dir / "logs" / "stall.txt").read_text()
        assert "innermost call first" in start.errors, "the report shows where the rank is"
        assert "faults.py" in start.errors
        assert start.failure()["message"] in report, "the report outlives the launcher"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ENDS)
def test_a_fault_is_recovered_from_and_costs_nothing_but_steps(undisturbed, tmp_path, kind, ranks):
    fault = InjectedFault(kind, ranks // 2, AT, saved=True)
    start = train(folder_for(tmp_path, small()), ranks, "--max-restarts", "1", fault=fault)
    assert start.wait() == 0, start.said
    start.check_clean()
    check_named(start, fault, number=1)
    assert "restart 1 of 1 from step" in start.errors, start.errors
    check_nothing_lost(start, undisturbed, restarts=1)


def check_nothing_lost(start, undisturbed, *, restarts, resumed=True):
    """The run ended as if nothing had happened."""
    summary = start.summary
    expected = json.loads((undisturbed / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["restarts"] == restarts
    assert summary["params_fingerprint"] == expected["params_fingerprint"]
    same = ("env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean")
    assert [summary[key] for key in same] == [expected[key] for key in same]
    assert timeless(start.folder) == timeless(undisturbed)
    if resumed:
        assert int(summary["resumed_from"].rpartition("_")[2]) >= BATCH * 4


@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (4, 0), (4, 1), (4, 3)])
def test_any_rank_may_be_killed(undisturbed, tmp_path, ranks, rank):
    fault = InjectedFault("kill", rank, AT, saved=True)
    start = train(folder_for(tmp_path, small()), ranks, "--max-restarts", "1", fault=fault)
    assert start.wait() == 0, start.said
    start.check_clean()
    check_named(start, fault, number=1)
    check_nothing_lost(start, undisturbed, restarts=1)


def test_a_fault_before_the_first_checkpoint_starts_the_run_anew(undisturbed, tmp_path):
    start = train(folder_for(tmp_path, small()), 2, "--max-restarts", "1", fault=InjectedFault("kill", 1, 2))
    assert start.wait() == 0, start.said
    start.check_clean()
    assert "restart 1 of 1 from the start" in start.errors
    check_nothing_lost(start, undisturbed, restarts=1, resumed=False)


def test_a_run_resumed_by_hand_keeps_the_failure_before(tmp_path):
    start = train(folder_for(tmp_path, small()), 2, fault=InjectedFault("kill", 1, AT))
    assert start.wait() == 137, start.said
    again = resume(tmp_path, 2, fault=InjectedFault("raise", 0, AT + 2))
    assert again.wait() == 1, again.said
    assert "rank 0 failed in env.step" in again.errors
    again.check_clean()
    assert start.failure(1)["rank"] == 1, "the failure of the start before is kept"


BROKEN = '''
import os

from gymnasium.envs.classic_control import CartPoleEnv


class Broken(CartPoleEnv):
    """Breaks on a rank, in step 200 of its life: in the 25th update of a start. The check before a run has no rank."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 200 and "RANK" in os.environ:
            raise ValueError("worn out")
        return super().step(action)
'''


def test_a_fault_that_comes_again_uses_the_restarts_up(tmp_path):
    """The environment itself is broken: every start fails alike."""
    (tmp_path / "envs.py").write_text(BROKEN)
    run = small(task=f"{tmp_path}/envs.py:Broken", total_steps=80 * BATCH)
    start = train(folder_for(tmp_path, run), 2, "--max-restarts", "1")
    assert start.wait() == 1, start.said
    start.check_clean()
    assert start.errors.count("restart 1 of 1 from step") == 1, start.errors
    assert "this was start 2" in start.errors, start.errors
    for number in (1, None):
        assert "worn out" in start.failure(number)["message"]
    summary = start.summary
    assert (summary["status"], summary["restarts"]) == ("failed", 1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_end_with_a_launcher_that_is_killed_and_the_run_goes_on(undisturbed, tmp_path, ranks):
    start = train(folder_for(tmp_path, small()), ranks, fault=InjectedFault("launcher", ranks - 1, AT))
    assert start.wait() == -9, start.said
    deadline = time.monotonic() + TIMEOUT_S / 2
    while start.ranks() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert start.ranks() == [], "the ranks end with their launcher, not for each other's silence"
    start.check_clean()
    again = resume(tmp_path, ranks)
    assert again.wait() == 0, again.said
    again.check_clean()
    check_nothing_lost(again, undisturbed, restarts=0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_is_used(undisturbed, tmp_path, ranks):
    start = train(folder_for(tmp_path, small()), ranks, "--max-restarts", "1", fault=InjectedFault("corrupt", 1, AT))
    assert start.wait() == 0, start.said
    start.check_clean()
    assert re.search(r"step_\d+ is damaged and skipped: .*SHA-256", start.said), start.said
    check_nothing_lost(start, undisturbed, restarts=1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_disk_that_is_full_for_a_while_costs_one_warning(undisturbed, tmp_path, ranks):
    start = train(folder_for(tmp_path, small()), ranks, fault=InjectedFault("diskfull", ranks - 1, AT))
    assert start.wait() == 0, start.said
    start.check_clean()
    assert (start.run_dir / INJECTED_FILE).exists(), "the fault was not injected"
    assert start.said.count("could not be written") == 1, start.said
    assert "No space left on device" in start.said
    assert start.latest == 40 * BATCH, "it was tried again"
    check_nothing_lost(start, undisturbed, restarts=0, resumed=False)
