"""`lockstep runs`: a line per run, from the ends of its files."""

import json
import os

import pytest

from lockstep.cli import main as cli
from lockstep.cli.runs import age
from lockstep.record.run_dir import RunDir, lock_run_dir
from lockstep.run import OfflineRun, Run

RUN = Run(task="CartPole-v1", total_steps=10_000, seed=4)


def make(name, run=RUN, written_at=None, **summary):
    made = RunDir.create(f"runs/{name}", run)
    made.write_metrics(5000, 2.0, {"episode/return_mean_100": 7.0})
    if summary:
        made.write_summary({"world_size": 2, "env_steps": 10_000, **summary})
    made.close()
    if written_at is not None:
        for path in made.path.iterdir():
            os.utime(path, (written_at, written_at))
    return made


def listed(capsys, *words):
    assert cli.main(["runs", "--json", *words]) == 0
    return {run["run"].removeprefix("runs/"): run for run in json.loads(capsys.readouterr().out)["runs"]}


@pytest.mark.usefixtures("here")
def test_status_of_each_kind_of_run(capsys):
    done = make("done", status="solved", written_at=1_000_000)
    done.write_evaluation(10_000, [400.0, 500.0], [400, 500])
    done.close()
    make("failed", status="failed", error="rank 1 died")
    make("killed")
    make("killed_with_summary", status="running")
    make("sweep/lr=1/seed_0", status="finished")
    make("logged", OfflineRun(data="/data/log"))
    lock = lock_run_dir(make("alive").path)
    runs = listed(capsys)
    os.close(lock)
    assert {name: run["status"] for name, run in runs.items()} == {
        "done": "solved",
        "failed": "failed",
        "killed": "cut short",
        "killed_with_summary": "cut short",
        "sweep/lr=1/seed_0": "finished",
        "logged": "cut short",
        "alive": "running",
    }
    one = runs["done"]
    assert (one["task"], one["algo"], one["ml_framework"], one["ranks"], one["seed"]) == (
        "CartPole-v1",
        "ppo",
        "torch",
        2,
        4,
    )
    assert (one["last_return"], one["return_from"], one["steps"]) == (450.0, "evaluation", 10_000)
    assert (runs["alive"]["last_return"], runs["alive"]["return_from"]) == (7.0, "training")
    assert (runs["alive"]["steps"], runs["alive"]["total_steps"]) == (5000, 10_000)
    assert runs["failed"]["error"] == "rank 1 died" and runs["logged"]["task"] == "/data/log"
    assert runs["alive"]["age_s"] < 60 and runs["alive"]["started"].endswith("+00:00")


@pytest.mark.usefixtures("here")
def test_table_has_the_newest_first(capsys):
    make("old", status="finished", written_at=1_000_000)
    make("new")
    assert cli.main(["runs"]) == 0
    head, new, old, note = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "task", "algo", "framework", "ranks", "seed", "return", "steps", "age"]
    assert new.split()[:4] == ["runs/new", "cut", "short", "CartPole-v1"] and "7.000*" in new and "(50%)" in new
    assert old.split()[0] == "runs/old" and "10 000 " in old
    assert note.startswith("* mean return of the last 100 training episodes")
    assert list(listed(capsys, "runs/old")) == ["old"]


@pytest.mark.usefixtures("here")
def test_directory_without_runs_is_refused(capsys):
    assert cli.main(["runs"]) == 2
    assert "there is no runs/ here" in capsys.readouterr().err


def test_age_has_one_unit():
    assert [age(seconds) for seconds in (5.9, 60, 7300, 200_000)] == ["5 s", "1 min", "2 h", "2 d"]
