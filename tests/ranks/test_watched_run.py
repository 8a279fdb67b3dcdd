"""What a run on 2 ranks leaves for its user: trackers of rank 0, complete phases, and a trace of all ranks."""

import gzip
import itertools
import json
from pathlib import Path

import pytest
from running import small

import lockstep
from lockstep.distributed.timers import PHASES
from lockstep.run import override

TRACKERS = Path(__file__).with_name("rank_trackers.py")
SIZES = {"total_steps": 20 * 16 * 8, "log_every": 16 * 8 * 5, "evaluate_episodes": 2, "num_envs": 16}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of 20 updates, of which 2 are profiled, with a tracker that works and one whose disk is full."""
    folder = tmp_path_factory.mktemp("watched")
    run = small("lockstep/Corridor-v0", **SIZES, trackers=[f"{TRACKERS}:Recorder", f"{TRACKERS}:FullDisk"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKED", str(folder / "tracked.jsonl"))
        summary = lockstep.train(run, ranks=2, run_dir=folder / "run", profile=2)
    assert summary["status"] == "finished"
    return folder / "run"


def test_trackers_run_on_rank_0_only(run_dir):
    lines = [json.loads(line) for line in (run_dir.parent / "tracked.jsonl").read_text().splitlines()]
    assert {rank for rank, *_ in lines} == {"0"}
    assert [call for _, call, *_ in lines].count("start") == 1
    assert [step for _, call, step, *_ in lines if call == "metrics"] == [640, 1280, 1920, 2560]
    assert lines[-1][1:] == ["finish", "finished"]


def test_tracker_on_a_full_disk_costs_a_warning_and_not_the_run(run_dir):
    logs = [(run_dir / "logs" / f"rank_{rank}.log").read_text() for rank in range(2)]
    assert "FullDisk" in logs[0] and "No space left on device" in logs[0]
    assert "FullDisk" not in logs[1]
    assert json.loads((run_dir / "summary.json").read_text())["error"] is None
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 4


def test_phases_of_each_rank_sum_to_the_time_of_training(run_dir):
    entries = [json.loads(line) for line in (run_dir / "ranks.jsonl").read_text().splitlines()]
    assert len(entries) == 4
    for entry in entries:
        sums = [sum(seconds) for seconds in zip(*(entry["phases_s"][phase] for phase in PHASES), strict=True)]
        # `time_s` is the largest of the ranks' clocks, which are read when each comes to its log line.
        assert max(sums) == pytest.approx(entry["time_s"], rel=0.02)


def check_profile(run_dir, updates):
    trace = json.loads(gzip.decompress((run_dir / "profile.json.gz").read_bytes()))
    events = trace["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1"}
    spans = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0
    for rank in range(2):
        phases = [event for event in spans if event["pid"] == rank and event["tid"] == 0]
        assert {event["name"] for event in phases} >= {"env", "act", "learn", "sync", "wait"}
        assert sum(event["name"] == "act" for event in phases) == updates * 8  # one for each step of a rollout
        for before, after in itertools.pairwise(phases):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.01)
        of_framework = [event for event in spans if event["pid"] == rank and event["tid"] > 0]
        start, end = phases[0]["ts"], phases[-1]["ts"] + phases[-1]["dur"]
        # On a common clock: the framework's events lie within the phases, but for those around start and stop.
        inside = [event for event in of_framework if start - 1e4 <= event["ts"] <= end + 1e4]
        assert len(inside) > 0.9 * len(of_framework) > 0
    return spans


def test_profile_has_a_process_for_each_rank_with_its_phases_and_operations(run_dir):
    spans = check_profile(run_dir, updates=2)
    assert "profile of 2 updates" in (run_dir / "logs" / "rank_0.log").read_text()
    multiplied = [event for event in spans if event["name"] in ("aten::addmm", "aten::mm", "aten::linear")]
    assert {event["pid"] for event in multiplied} == {0, 1}


@pytest.mark.slow
def test_profile_in_jax(tmp_path):
    run = override(small("lockstep/Corridor-v0", **SIZES), {"ml_framework": "jax"})
    lockstep.train(run, ranks=2, run_dir=tmp_path / "run", profile=2)
    check_profile(tmp_path / "run", updates=2)
