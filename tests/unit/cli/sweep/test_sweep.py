"""`lockstep sweep` and `lockstep train --seeds` with stand-ins for the runs."""

import io
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from lockstep import recipes
from lockstep.cli.sweep import pool, scores, slots, train_command
from lockstep.cli.sweep.progress import ProgressLines
from lockstep.cli.sweep.slots import Needs, Slot, make_slots
from lockstep.cli.sweep.space import parse_space
from lockstep.cli.sweep.sweep_file import Sweep
from lockstep.cli.sweep.trial import SweepRun, Trial
from lockstep.errors import ConfigError
from lockstep.record.run_dir import lock_run_dir
from quick import others_slow

GRID = """
train: cartpole --set total_steps=300
seeds: 0:2
settings:
  learning_rate: [1e-2, 1e-3]
"""


def intervals(events: list[dict]) -> list[tuple[float, float, list[int]]]:
    """Start, end and cores of each run."""
    starts = {event["run"]: event for event in events if event["event"] == "start"}
    return [
        (starts[event["run"]]["time"], event["time"], starts[event["run"]]["cores"])
        for event in events
        if event["event"] == "end"
    ]


def test_seeds_run_side_by_side_on_cores_of_their_own(sweeps, monkeypatch, capsys):
    monkeypatch.setattr("lockstep.system.cores.usable_cores", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    assert sweeps.run("train", "cartpole", "--seeds", "0:5", "--run-dir", "five") == 0
    spans = intervals(sweeps.events("five"))
    assert len(spans) == 5
    for moment in [start for start, _, _ in spans]:
        running = [cores for start, end, cores in spans if start <= moment < end]
        assert len(running) <= 2 and len({tuple(cores) for cores in running}) == len(running)
    assert {tuple(cores) for _, _, cores in spans} == {(0,), (1,)}
    summary = sweeps.results("five")["trials"][0]["summary"]
    assert summary["count"] == 5 and summary["iqm"] == pytest.approx(1.991) and summary["interval"][0] < 1.99
    out = capsys.readouterr().out
    assert "5 runs of 1 rank, 2 at a time on 1 core each; directory five" in out
    assert "seed_3: done, return 2.991" in out and "IQM" in out


@pytest.mark.real_start  # a process that is forked from another one inherits that one's cores
def test_run_is_bound_to_the_cores_of_its_slot(sweeps):
    cores = sorted(os.sched_getaffinity(0))
    assert sweeps.run("train", "cartpole", "--seeds", "0:2", "--run-dir", "two", "--jobs", "2") == 0
    for event in sweeps.events("two"):
        if event["event"] == "start":
            bound = json.loads((sweeps.path / "two" / event["run"] / "affinity.json").read_text())
            assert bound == sorted(event["cores"]) and len(bound) == max(1, len(cores) // 2)
    assert sorted(os.sched_getaffinity(0)) == cores


def test_runs_have_their_own_config_directory_and_log(sweeps):
    assert sweeps.run("train", "cartpole", "--seeds", "3,7", "--run-dir", "two", "--set", "gamma=0.9") == 0
    for seed in (3, 7):
        text = (sweeps.path / f"two/seed_{seed}/run.yaml").read_text()
        assert f"seed: {seed}\n" in text and "gamma: 0.9\n" in text
        assert (sweeps.path / f"two/logs/seed_{seed}.log").exists()


def test_finished_runs_are_never_started_again(sweeps, capsys):
    words = ("train", "cartpole", "--seeds", "0:2", "--run-dir", "two")
    assert sweeps.run(*words) == 0
    assert sweeps.run(*words) == 0
    assert sweeps.run("sweep", "two") == 0
    assert sweeps.run("train", "--resume", "two") == 0
    assert sweeps.run("train", "cartpole", "--seeds", "0:3", "--run-dir", "two") == 0  # one more seed
    assert sweeps.started("two") == ["seed_0", "seed_1", "seed_2"]
    assert "seed_0: done before, return" in capsys.readouterr().out


def test_failed_run_keeps_its_reason_and_the_others_go_on(sweeps, capsys):
    sweeps.behave({"seed_1": "fail", "seed_2": "refuse"})
    words = ("train", "cartpole", "--seeds", "0:4", "--run-dir", "four")
    assert sweeps.run(*words) == 1
    out = capsys.readouterr().out
    assert "seed_1 failed: rank 0: the simulator ran away\n" in out
    assert "seed_2 failed: num_envs=0 must be at least 1\n" in out
    assert "run failed ones again with: lockstep sweep four --retry-failed" in out
    assert [run["status"] for run in sweeps.results("four")["trials"][0]["runs"]] == [
        "done",
        "failed",
        "failed",
        "done",
    ]
    sweeps.behave({})
    assert sweeps.run(*words) == 1  # not run again unless asked for
    assert "seed_1: failed before, rank 0: the simulator ran away" in capsys.readouterr().out
    assert len(sweeps.started("four")) == 4
    sweeps.behave({"seed_1": "refuse", "seed_2": "refuse"})
    assert sweeps.run("sweep", "four", "--retry-failed") == 1
    assert "seed_1 failed: num_envs=0 must be at least 1\n" in capsys.readouterr().out  # not the earlier reason
    sweeps.behave({})
    assert sweeps.run("sweep", "four", "--retry-failed") == 0
    again = [event for event in sweeps.events("four")[-4:] if event["event"] == "start"]
    assert {(event["run"], event["resumed"]) for event in again} == {("seed_1", True), ("seed_2", False)}


def test_sweep_is_continued_from_anywhere(sweeps, monkeypatch, capsys):
    """Relative paths are those of the first start; names in messages are relative to where the user is."""
    sweeps.behave({"seed_1": "fail"})
    (sweeps.path / "elsewhere").mkdir()
    assert sweeps.run("train", "cartpole", "--seeds", "0:2", "--run-dir", "two") == 1
    sweeps.behave({})
    monkeypatch.chdir(sweeps.path / "elsewhere")
    assert sweeps.run("sweep", "../two", "--retry-failed") == 0
    assert os.getcwd() == str(sweeps.path / "elsewhere") and not os.listdir()
    assert capsys.readouterr().out.rstrip().endswith("directory: ../two")


@pytest.mark.parametrize("number", others_slow([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_signal_ends_all_runs_and_the_next_start_resumes_them(sweeps, capsys, number):
    sweeps.behave({"seed_0": "wait", "seed_1": "wait"})
    words = ("train", "cartpole", "--seeds", "0:3", "--run-dir", "three", "--jobs", "2")
    begun = [sweeps.path / f"three/seed_{seed}/metrics.jsonl" for seed in (0, 1)]
    assert sweeps.run_interrupted(lambda: all(file.exists() for file in begun), number, *words) == 128 + number
    assert "continue with: lockstep sweep three" in capsys.readouterr().out
    ends = {event["run"]: event["status"] for event in sweeps.events("three") if event["event"] == "end"}
    assert ends == {"seed_0": "interrupted", "seed_1": "interrupted"}
    sweeps.behave({})
    assert sweeps.run(*words) == 0
    again = {event["run"]: event["resumed"] for event in sweeps.events("three") if event["event"] == "start"}
    assert again == {"seed_0": True, "seed_1": True, "seed_2": False}


def test_grid_has_a_row_per_combination_the_best_first(sweeps, capsys):
    sweeps.write(GRID)
    assert sweeps.run("sweep", "my.yaml") == 0
    assert sweeps.started("runs/my") == [
        f"learning_rate={rate}/seed_{seed}" for rate in ("0.01", "0.001") for seed in (0, 1)
    ]
    trials = sweeps.results("runs/my")["trials"]
    assert [trial["settings"] for trial in trials] == [{"learning_rate": 0.01}, {"learning_rate": 0.001}]
    assert trials[0]["summary"]["iqm"] == pytest.approx(0.5)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("0.0")]
    assert [row[:3] for row in rows] == [["0.01", "2", "0.5000"], ["0.001", "2", "0.4910"]]


def test_a_minimized_metric_of_the_log_is_the_score(sweeps):
    sweeps.write(GRID.replace("0:2", "0") + "metric: time/steps_per_second\ndirection: minimize\n")
    assert sweeps.run("sweep", "my.yaml") == 0
    assert sweeps.results("runs/my")["trials"][0]["summary"]["iqm"] == 1000.0


def test_runs_without_the_metric_are_named(sweeps, capsys):
    sweeps.write("train: cartpole\nseeds: 0:2\nmetric: policy/kl")
    assert sweeps.run("sweep", "my.yaml") == 0
    assert "\nno policy/kl: seed_0, seed_1\n" in capsys.readouterr().out


@pytest.mark.parametrize(("verdict", "mark"), [(None, "~"), ({"trajectory": None}, "~?")])
def test_estimates_from_logged_data_are_marked(here, verdict, mark):
    """They were shown as returns, also those that their runs do not rely on."""
    estimates = {"estimates": {"reward": {"weighted_sequential_dr": {"value": 7.2}}}, "verdict": verdict}
    (here / "run").mkdir()
    (here / "run/summary.json").write_text(json.dumps({"status": "finished", "estimates": estimates}))
    (here / "run/run.yaml").write_text("data: data\n")
    sweep_run = SweepRun(Trial("", {}), 0, "seed_0", here / "run", status="done")
    file = io.StringIO()
    scores.print_results(scores.results([sweep_run], Sweep()), Sweep(), Console(file=file, width=200))
    assert f" 7.200{mark} " in file.getvalue() and "~ estimate from logged data" in file.getvalue()
    shown = io.StringIO()
    ProgressLines(shown).ended(sweep_run)
    assert shown.getvalue() == "seed_0: done, estimate 7.200\n"


@pytest.mark.parametrize("metric", ["policy/kl", "loss/value"])
def test_what_is_no_number_in_a_file_of_a_run_is_skipped(sweeps, capsys, metric):
    sweeps.behave({"seed_0": "damaged"})
    sweeps.write(f"train: cartpole\nseeds: 0\nmetric: {metric}")
    assert sweeps.run("sweep", "my.yaml") == 0
    assert f"\nno {metric}: seed_0\n" in capsys.readouterr().out


def test_random_search_can_be_extended(sweeps):
    sweeps.write(
        "train: cartpole\nsampler: random\ntrials: 2\nsettings:\n  learning_rate: {low: 1e-4, high: 1e-1, log: true}\n"
    )
    assert sweeps.run("sweep", "my.yaml") == 0
    assert sweeps.run("sweep", "runs/my", "--trials", "3") == 0
    assert sweeps.started("runs/my") == ["trial_000/seed_0", "trial_001/seed_0", "trial_002/seed_0"]


def test_random_combination_that_cannot_work_fails_and_the_others_go_on(sweeps, capsys):
    sweeps.write("train: cartpole\nsampler: random\ntrials: 3\nsettings:\n  num_envs: [32, 0, 64]\n")
    assert sweeps.run("sweep", "my.yaml") == 1
    runs = {trial["settings"]["num_envs"]: trial["runs"][0] for trial in sweeps.results("runs/my")["trials"]}
    assert {value: run["status"] for value, run in runs.items()} == {32: "done", 64: "done", 0: "failed"}
    assert "num_envs=0 must be at least 1" in runs[0]["reason"]
    assert "failed before" not in capsys.readouterr().out
    # It was not tried again where the file now has other settings for it.
    sweeps.write("train: cartpole\nsampler: random\ntrials: 3\nsettings:\n  num_envs: [32, 128, 64]\n")
    assert sweeps.run("sweep", "my.yaml") == 0
    said = capsys.readouterr().out
    assert said.count("done before") == 2 and "failed" not in said


def test_runs_that_have_ended_keep_their_end_where_their_settings_cannot_work_now(sweeps, monkeypatch):
    """Memory, packages or data that the machine lacks when the sweep is continued."""
    sweeps.behave({"trial_001/seed_0": "fail"})
    sweeps.write("train: cartpole\nsampler: random\ntrials: 3\nsettings:\n  num_envs: [16, 32, 64]\n")
    assert sweeps.run("sweep", "my.yaml") == 1
    results, events = sweeps.results("runs/my"), sweeps.events("runs/my")
    works = results["trials"][0]["settings"]
    run_of = train_command.TrainCommand.run_of

    def lacks_memory(self, settings, seed):
        if settings != works:
            raise ConfigError("num_envs need more memory than is free")
        return run_of(self, settings, seed)

    monkeypatch.setattr(train_command.TrainCommand, "run_of", lacks_memory)
    assert sweeps.run("sweep", "runs/my") == 1
    assert sweeps.results("runs/my") == results and sweeps.events("runs/my") == events


def test_last_evaluation_of_a_finished_run_does_not_end_the_runs_of_seeds_that_were_added(sweeps, monkeypatch):
    monkeypatch.setattr("lockstep.cli.sweep.trial.ListedTrials.should_prune", lambda self, trial, step, _: step >= 300)
    words = ("train", "cartpole", "--set", "total_steps=300", "--run-dir", "two", "--seeds")
    assert sweeps.run(*words, "0") == 0
    assert sweeps.run(*words, "0:2") == 0
    assert [run["status"] for run in sweeps.results("two")["trials"][0]["runs"]] == ["done", "done"]


def test_dry_run_lists_the_runs_and_starts_none(sweeps, capsys):
    sweeps.write(GRID)
    assert sweeps.run("sweep", "my.yaml", "--dry-run", "--jobs", "3") == 0
    assert capsys.readouterr().out.splitlines() == [
        "learning_rate=0.01, seeds 0,1",
        "learning_rate=0.001, seeds 0,1",
        "4 runs, 3 at a time, in runs/my",
    ]
    assert not (sweeps.path / "runs").exists()


def test_run_of_a_killed_start_is_waited_for(sweeps, capsys, monkeypatch):
    """A process of the earlier start may still hold the run."""
    sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one")
    (sweeps.path / "one/seed_0/summary.json").unlink()
    locks, waiting = [lock_run_dir(sweeps.path / "one/seed_0")], ProgressLines.waiting

    def end(self, sweep_run):
        waiting(self, sweep_run)
        os.close(locks.pop())

    monkeypatch.setattr(ProgressLines, "waiting", end)
    assert sweeps.run("sweep", "one") == 0
    assert "seed_0: waiting for an earlier process to end" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--seeds", "0:2", "--seed", "1"], "--seed 1 and --seeds 0:2"),
        (["--seeds", "0:2", "--set", "seed=7"], "--set seed=7 and --seeds 0:2"),
        (["--seeds", "2:2"], "first:end"),
        (["--seeds", "5:0"], "5:0 must be first:end"),
        (["--seeds", "1,1"], "seed 1 occurs twice"),
        (["--seeds", "x"], "--seeds x must be a number"),
        (["--seeds", "0:2", "--nnodes", "2"], "error: --nnodes 2: each of several runs has its ranks on this machine"),
        (["--seeds", "0:2", "--set", "num_env=3"], "num_env"),
        (["--seeds", "0:2", "--jobs", "x"], "--jobs x must be a number"),
        (["--seeds", "0:2", "--address", "auto"], "add --on ray"),
        (["--seeds", "0:2", "--standalone"], "--standalone: each of several runs has its ranks on this machine; use"),
        (["--seeds", "0:2", "--profile", "3"], "error: --profile 3 is for a single run"),
        (["--jobs", "2"], "--jobs 2 is for several runs; add --seeds A:B"),
        (["--seeds", "0:2", "--resume", "used"], "--resume used continues one run, and --seeds 0:2 starts new ones"),
        (["--seeds", "0:2", "--run-dir", "used"], "already holds files and no sweep"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(sweeps, capsys, words, wanted):
    (sweeps.path / "used").mkdir()
    (sweeps.path / "used/file").touch()
    assert sweeps.run("train", "cartpole", *words) == 2
    assert wanted in capsys.readouterr().err
    assert sorted(path.name for path in sweeps.path.iterdir()) == ["behaviour.json", "used"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("train: cartpole --resume x", "--resume x is for a single run"),
        ("train: cartpole --bogus", "--bogus"),
        ("seads: 0", "unknown entry seads"),
        ("train: cartpole\nsettings: {learning_rate: {low: 1, high: 2}}", "is a range, and sampler=grid"),
        ("train: cartpole\nsettings: {learning_rat: [1]}", "learning_rate"),
        ("train: cartpole\nsettings: {seed: [1]}", "write seeds"),
        ("train: cartpole\nseeds: -1:2", "seeds -1 must be"),
        ("train: cartpole\nseeds: []", "seeds [] is empty"),
        ("train: cartpole\nseeds: 0\nseeds: 3", "line 3: seeds is there twice"),
        ("train: cartpole\nsettings: {gamma: [0.9, 0.99, 0.9]}", "settings.gamma: 0.9 occurs twice"),
        ("train: cartpole\nsettings: {num_envs: [0, 8]}", "the run with num_envs=0 cannot work"),
        ("train: cartpole\nsampler: random\nsettings: {gamma: [1]}", "needs the number of trials"),
        ("train: cartpole --set seed=7", "--set seed=7: write it beside train, as seeds: 7"),
        ("train: cartpole --seed 7", "--seed 7: write it beside train, as seeds: 7"),
        ("train: cartpole --seeds 0:4", "--seeds 0:4: write it beside train, as seeds: 0:4"),
        ("train: cartpole\nsettings: {hidden: [64, 64]}", "settings.hidden takes lists; write [[64, 64]] for one of"),
        (
            "train: cartpole\nsettings: {network.hidden: 64}",
            "settings.network.hidden takes lists; write [[64]] for one",
        ),
        ("train: cartpole --set gamma=0.9\nsettings: {gamma: [0.8]}", "settings.gamma, but train sets it too"),
        ("train: cartpole\nsettings: {gamma: [0.8], algorithm.gamma: [0.9]}", "give algorithm.gamma two values"),
        ("train: cartpole --num-envs 8\nsettings: {num_envs: [8, 16]}", "--num-envs 8 and --set num_envs=16"),
        ("train: cartpole\nmetric: best", "must be last_return"),
        ("train: cartpole\nmetric: episode/retrn_mean_100", "did you mean episode/return_mean_100"),
        ("train: cartpole_dqn\nmetric: policy/kl", "a metric of a run with algo=dqn"),
        ("train: cartpole\nsampler: random\ntrials: 2\nsettings: {gamma: {low: 0, high: 1, log: true}}", "log needs"),
        ("train: cartpole\nsampler: random\ntrials: 2\nsettings: {gamma: {low: 0, high: .inf}}", "finite numbers"),
        ("train: cartpole\nsampler: random\ntrials: 2\nsettings: {gamma: {low: 0, high: 1, log: nope}}", "log=nope"),
        ("train: cartpole\nsampler: random\ntrials: 2\nsampler_seed: -5\nsettings: {gamma: [1]}", "sampler_seed=-5"),
        ("train: cartpole --master-port 29500", "train: --master-port 29500: each of several runs has"),
        ("train: cartpole --init-file meet", "train: --init-file meet: each of several runs has"),
    ],
)
def test_wrong_sweep_file_is_refused(sweeps, capsys, text, wanted):
    sweeps.write(text)
    assert sweeps.run("sweep", "my.yaml") == 2
    assert wanted in capsys.readouterr().err
    assert not (sweeps.path / "runs").exists()


def test_what_is_no_sweep_is_told_where_an_example_is(sweeps, capsys):
    assert sweeps.run("sweep", "cartpole") == 2
    assert "cartpole is neither a sweep file nor the directory of a sweep; docs/sweeps.md" in capsys.readouterr().err


def test_algorithms_are_compared(sweeps, capsys):
    sweeps.write("train: CartPole-v1\nsettings: {algo: [ppo, dqn]}")
    assert sweeps.run("sweep", "my.yaml", "--dry-run") == 0
    assert capsys.readouterr().out.startswith("algo=ppo, seeds 0\nalgo=dqn, seeds 0\n2 runs")


def test_environment_with_a_fault_is_refused_once(sweeps, capsys):
    (sweeps.path / "my_env.py").write_text(
        "import gymnasium as gym\nimport numpy as np\n"
        "class Env(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (3,))\n    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, seed=None, options=None):\n        return np.zeros(4, np.float32), {}\n"
        "    def step(self, action):\n        return np.zeros(4, np.float32), 0.0, False, False, {}\n"
    )
    assert sweeps.run("train", "my_env.py:Env", "--seeds", "0:3") == 2
    assert capsys.readouterr().err.count("reset returned an observation of shape (4,)") == 1
    assert not (sweeps.path / "runs").exists()


def test_seeds_of_a_sweep_file_are_no_number_of_sixties(sweeps, capsys):
    """YAML 1.1 reads 1:4 as 64."""
    sweeps.write("train: cartpole\nseeds: 1:4")
    assert sweeps.run("sweep", "my.yaml", "--dry-run") == 0
    assert "seeds 1,2,3" in capsys.readouterr().out


def test_runs_of_a_sweep_keep_their_settings(sweeps, capsys):
    assert sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one") == 0
    assert sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one", "--set", "gamma=0.5") == 2
    assert "algorithm.gamma=0.5 instead of 0.99" in capsys.readouterr().err
    assert "gamma" not in (sweeps.path / "one/sweep.yaml").read_text(), "the refused start has changed the sweep"
    assert sweeps.run("train", "--resume", "one") == 0


def test_runs_of_a_sweep_keep_their_settings_where_their_config_files_are_gone(sweeps, capsys):
    assert sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one") == 0
    shutil.rmtree(sweeps.path / "one/configs")
    assert sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one", "--set", "gamma=0.5") == 2
    assert "algorithm.gamma=0.5 instead of 0.99" in capsys.readouterr().err
    assert sweeps.run("train", "--resume", "one") == 0
    assert sweeps.started("one") == ["seed_0"]


def test_other_settings_of_a_started_run_are_refused_before_another_run_starts(sweeps, capsys):
    """Those of a combination that comes behind a new one."""
    sweeps.write("train: cartpole\nsettings: {learning_rate: [1e-3]}")
    assert sweeps.run("sweep", "my.yaml") == 0
    sweeps.write("train: cartpole --set gamma=0.5\nsettings: {learning_rate: [2e-3, 1e-3]}")
    assert sweeps.run("sweep", "my.yaml") == 2
    assert "algorithm.gamma=0.5 instead of 0.99" in capsys.readouterr().err
    assert sweeps.started("runs/my") == ["learning_rate=0.001/seed_0"]
    assert "0.002" not in (sweeps.path / "runs/my/sweep.yaml").read_text()


def test_interrupted_continuation_keeps_the_scores_of_earlier_starts(sweeps):
    sweeps.write("train: cartpole\nsettings: {learning_rate: [1e-3]}")
    assert sweeps.run("sweep", "my.yaml") == 0
    before = {trial["name"]: trial["runs"] for trial in sweeps.results("runs/my")["trials"]}
    sweeps.behave({"seed_0": "wait"})
    sweeps.write("train: cartpole\nsettings: {learning_rate: [2e-3, 1e-3, 3e-3]}")
    begun = sweeps.path / "runs/my/learning_rate=0.002/seed_0/metrics.jsonl"
    assert sweeps.run_interrupted(begun.exists, signal.SIGTERM, "sweep", "my.yaml", "--jobs", "1") == 143
    found = {trial["name"]: trial["runs"] for trial in sweeps.results("runs/my")["trials"]}
    assert before["learning_rate=0.001"] == found["learning_rate=0.001"] and "learning_rate=0.003" not in found


def test_error_of_the_sweep_itself_ends_its_runs(sweeps, monkeypatch):
    sweeps.behave({"seed_0": "wait"})

    def fail(self):
        if (sweeps.path / "one/seed_0/metrics.jsonl").exists():
            raise RuntimeError("the sweep has a fault")

    monkeypatch.setattr(pool.Pool, "_read", fail)
    with pytest.raises(RuntimeError, match="the sweep has a fault"):
        sweeps.run("train", "cartpole", "--seeds", "0", "--run-dir", "one")
    assert [event["event"] for event in sweeps.events("one")] == ["start", "end"]
    assert json.loads((sweeps.path / "one/seed_0/summary.json").read_text())["status"] == "interrupted"


def test_error_of_recording_an_end_leaves_the_other_runs_the_time_to_save(sweeps, monkeypatch):
    """The sweep ended while they saved, and its end kills them."""
    sweeps.behave({"seed_0": "wait", "seed_1": "late"})
    begun = [sweeps.path / f"two/seed_{seed}/metrics.jsonl" for seed in (0, 1)]

    def fail(*_):
        if all(file.exists() for file in begun):
            raise RuntimeError("the sweep has a fault")

    monkeypatch.setattr(pool.Pool, "_read", fail)
    monkeypatch.setattr(pool.ProgressLines, "ended", fail)
    with pytest.raises(RuntimeError, match="the sweep has a fault"):
        sweeps.run("train", "cartpole", "--seeds", "0:2", "--run-dir", "two", "--jobs", "2")
    assert json.loads((sweeps.path / "two/seed_1/summary.json").read_text())["status"] == "finished"


@pytest.fixture
def closed_pipe() -> Generator[TextIO]:
    """The output of `lockstep sweep ... | head`, once `head` has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        yield file


def test_runs_go_on_where_nobody_reads_the_output(sweeps, closed_pipe, monkeypatch):
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    assert sweeps.run("train", "cartpole", "--seeds", "0:2", "--run-dir", "two") == 0
    assert [run["status"] for run in sweeps.results("two")["trials"][0]["runs"]] == ["done", "done"]


def test_table_that_nobody_reads_does_not_change_the_exit_code(sweeps, closed_pipe, monkeypatch):
    """Rich ends the process at a closed pipe."""

    def read_until_the_end(self):
        monkeypatch.setattr(sys, "stdout", closed_pipe)

    monkeypatch.setattr(pool.ProgressLines, "close", read_until_the_end)
    assert sweeps.run("train", "cartpole", "--seeds", "0:2", "--run-dir", "two") == 0


def test_signal_reaches_the_runs_where_the_terminal_is_closed(sweeps, closed_pipe, monkeypatch):
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    sweeps.behave({"seed_0": "wait", "seed_1": "wait"})
    words = ("train", "cartpole", "--seeds", "0:2", "--run-dir", "two", "--jobs", "2")
    begun = [sweeps.path / f"two/seed_{seed}/metrics.jsonl" for seed in (0, 1)]
    assert sweeps.run_interrupted(lambda: all(file.exists() for file in begun), signal.SIGHUP, *words) == 129
    ends = {event["run"]: event["status"] for event in sweeps.events("two") if event["event"] == "end"}
    assert ends == {"seed_0": "interrupted", "seed_1": "interrupted"}


def test_runs_go_on_where_their_ends_cannot_be_recorded(sweeps, capsys):
    words = ("train", "cartpole", "--seeds", "0:2", "--run-dir", "two")
    assert sweeps.run(*words) == 0
    (sweeps.path / "two/events.jsonl").unlink()
    (sweeps.path / "two/events.jsonl").symlink_to(sweeps.path / "unmounted/events.jsonl")
    shutil.rmtree(sweeps.path / "two/seed_1")
    assert sweeps.run("sweep", "two") == 0
    assert "events.jsonl cannot be written (No such file or directory)" in capsys.readouterr().err
    assert [run["status"] for run in sweeps.results("two")["trials"][0]["runs"]] == ["done", "done"]


@pytest.mark.parametrize("threads", ["[1, 2]", "[2, 1]"])
def test_runs_have_what_the_largest_needs(sweeps, monkeypatch, capsys, threads):
    """Not what the first needs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    settings = f"settings:\n  num_shards: [2]\n  shard_threads: {threads}\n  num_envs: [32]\n"
    sweeps.write(f"train: cartpole\n{settings}")
    assert sweeps.run("sweep", "my.yaml", "--dry-run") == 0
    assert "2 runs, 1 at a time" in capsys.readouterr().out


def test_relative_directory_is_that_of_the_first_start(sweeps, monkeypatch):
    (sweeps.path / "data").mkdir()
    (sweeps.path / "data/behaviour.json").write_text("{}")
    sweeps.write("train: cartpole\ndirectory: data")
    assert sweeps.run("sweep", "my.yaml") == 0
    monkeypatch.chdir(sweeps.path / "runs")
    assert sweeps.run("sweep", "my") == 0


def test_draws_of_an_exhausted_space_are_counted(sweeps, capsys):
    sweeps.write("train: cartpole\nsampler: random\ntrials: 20\nsettings: {gamma: [0.9, 0.99]}")
    assert sweeps.run("sweep", "my.yaml", "--dry-run") == 0
    assert "\n2 runs, " in capsys.readouterr().out


def test_settings_of_a_sweep_may_be_infinite_or_any_text(sweeps):
    (sweeps.path / "1:5 😀.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv")
    run = train_command.TrainCommand([]).run_of({"max_grad_norm": math.inf, "task": "1:5 😀.py:CartPoleEnv"}, 0)
    assert run.algorithm.max_grad_norm == math.inf


def test_names_of_the_user_keep_their_hyphens():
    """As with `--set`: an argument of the environment, or an action of the log, may have one."""
    space = parse_space({"env.kwargs.my-name": [1], "reward-boost.turn-left": [0, 1], "num-envs": 8})
    assert list(space) == ["env.kwargs.my-name", "reward_boost.turn-left", "num_envs"]


def test_slots_divide_the_cores_and_gpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("lockstep.system.cores.usable_cores", lambda: 8)
    monkeypatch.setattr(slots, "visible_gpu_names", lambda: ["0", "1", "2", "3"])
    of = [(slot.cores, slot.gpus) for slot in make_slots(Needs(2), 100)]
    assert of == [((0, 1), None), ((2, 3), None), ((4, 5), None), ((6, 7), None)]
    assert [slot.cores for slot in make_slots(Needs(1), 2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert len(make_slots(Needs(16), 100)) == 1
    of_gpus = [(slot.cores, slot.gpus) for slot in make_slots(Needs(2, gpus=2), 100)]
    assert of_gpus == [((0, 1, 2, 3), ("0", "1")), ((4, 5, 6, 7), ("2", "3"))]
    assert [slot.gpus for slot in make_slots(Needs(1, gpus=2), 100, jobs=3)] == [("0", "1"), ("2", "3"), ("0", "1")]
    monkeypatch.setattr("lockstep.system.cores.usable_cores", lambda: 2)  # a quota of the container
    assert [slot.cores for slot in make_slots(Needs(1), 100)] == [(0,), (4,)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_of_a_run_whose_lines_are_damaged_or_without_returns(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    lines = ProgressLines(file)
    sweep_run = SweepRun(Trial("", {}), 0, "seed_0", Path("nowhere"), total_steps=1000)
    line = {"step": 250, "time/steps_per_second": 50.0, "episode/return_mean_100": 7.0}
    for metrics, returns, wanted in (
        (line, [4.0, None, 6.0], "250 / 1 000 steps (25 %)  50 steps/s  return 5.000"),
        (line, [None], "return 7.000"),
        ({"time/steps_per_second": "fast"}, 3, "0 / 1 000 steps (0 %)"),
    ):
        lines.update(sweep_run, [metrics], [{"step": 250, "returns": returns}])
        assert wanted in lines._texts["seed_0"]
    lines.draw()
    lines.close()
    assert "seed_0: 250 / 1 000 steps" in file.getvalue() and "\x1b" not in file.getvalue(), "a terminal without cursor"


def test_no_eta_of_a_run_while_its_replay_is_filled():
    lines = ProgressLines(io.StringIO())
    sweep_run = SweepRun(Trial("", {}), 0, "seed_0", Path("nowhere"), total_steps=1000, has_replay=True)
    filling = {"step": 250, "time/steps_per_second": 50.0}
    lines.update(sweep_run, [filling], [])
    assert "50 steps/s" in lines._texts["seed_0"] and "ETA" not in lines._texts["seed_0"]
    learning = filling | {"optim/learning_rate": 1e-3}
    lines.update(sweep_run, [filling, learning], [])
    assert "ETA" not in lines._texts["seed_0"], "some of these steps only filled the replay"
    lines.update(sweep_run, [filling, learning, learning], [])
    assert "ETA 15 s" in lines._texts["seed_0"]
    pool._note_config(sweep_run, recipes.load("cartpole"))
    assert not sweep_run.has_replay
    pool._note_config(sweep_run, recipes.load("cartpole_dqn"))
    assert sweep_run.has_replay


def test_terminal_has_a_line_per_run_as_far_as_it_is_high(monkeypatch):
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    lines = ProgressLines(file)
    runs = [SweepRun(Trial("", {}), seed, f"seed_{seed}", Path("nowhere"), total_steps=1000) for seed in range(20)]
    for sweep_run in runs:
        lines.add(sweep_run)
    for sweep_run in runs[10:12]:
        sweep_run.status = "running"
        lines.started(sweep_run, resumed=False, slot=Slot(0, (0,)))
    lines.update(runs[10], [{"step": 250, "time/steps_per_second": 50.0, "episode/return_mean_100": 7.0}], [])
    runs[3].status, runs[3].reason = "failed", "rank 0: out of memory"
    lines.ended(runs[3])
    file.truncate(0)
    lines.draw()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines.close()
    assert "seed_10  running  250 / 1 000 steps (25 %)  50 steps/s  return 7.000  ETA 15 s" in shown
    assert "seed_11  running  starts on core 0" in shown and "seed_3   failed   rank 0: out of memory" in shown
    assert "17 queued, 1 failed, 2 running" in shown and "seed_15" not in shown
