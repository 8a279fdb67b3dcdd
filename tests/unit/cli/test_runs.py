"""`lockstep runs`: a line per run, from the ends of its files."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.cli import main as cli
from lockstep.cli.report.runs import find_runs, found_run, read_run
from lockstep.cli.runs import _print_table, age, list_run
from lockstep.record.run_dir import RunDir, lock_run_dir
from lockstep.run import OfflineRun, Run, override

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
    make("own_loop", updates=7)
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
        "own_loop": "finished",
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
    assert list(listed(capsys, "runs/old", "runs/new")) == ["new", "old"]


@pytest.mark.usefixtures("here")
def test_evaluation_may_have_episodes_without_a_return(capsys):
    with make("one") as run:
        run.write_evaluation(5000, [3.0, float("nan"), 5.0], [1, 1, 1])
    found = listed(capsys)["one"]
    assert (found["last_return"], found["return_from"]) == (4.0, "evaluation")


@pytest.mark.usefixtures("here")
def test_last_evaluation_with_a_return_counts_as_in_reports(capsys):
    with make("one") as run:
        for step, value in ((3000, 60.0), (4000, 77.0), (5000, float("nan"))):
            run.write_evaluation(step, [value] * 2, [1, 1])
    found, reported = listed(capsys)["one"], read_run(run.path)
    assert (found["last_return"], found["return_from"]) == (77.0, "evaluation")
    assert (reported.last_return, reported.return_from) == (77.0, "evaluation")
    with make("none") as run:
        run.write_evaluation(5000, [float("nan")], [1])
    found, reported = listed(capsys)["none"], read_run(run.path)
    assert (found["last_return"], found["return_from"]) == (7.0, "training")
    assert (reported.last_return, reported.return_from) == (7.0, "training")


@pytest.mark.usefixtures("here")
def test_long_path_of_logged_data_is_whole_though_yaml_folds_it(capsys):
    data = "/home/me/customer data of the autumn campaign/logs from the warehouse/prepared\n\ndata v2: new"
    make("logged", OfflineRun(data=data, seed=3))
    run = listed(capsys)["logged"]
    assert (run["task"], run["algo"], run["seed"]) == (data, "dqn", 3)


@pytest.mark.usefixtures("here")
def test_each_device_of_a_process_is_a_rank(capsys):
    run = make("one", override(RUN, {"ml_framework": "jax", "devices_per_process": 2}))
    (run.path / "preflight.json").write_text(json.dumps({"world_size": 3}))
    assert listed(capsys)["one"]["ranks"] == 6


@pytest.mark.usefixtures("here")
def test_start_stays_when_settings_are_changed_by_a_resumption(capsys):
    run = make("one", written_at=1_000_000_000)
    assert listed(capsys)["one"]["started"] == "2001-09-09T01:46:40+00:00"
    (run.path / "tensorboard").mkdir(exist_ok=True)
    (run.path / "tensorboard" / "events.out.tfevents.1000000005.node.7.0").touch()
    (run.path / "tensorboard" / "events.out.tfevents.1000009999.node.8.0").touch()
    os.utime(run.path / "run.yaml")
    assert listed(capsys)["one"]["started"] == "2001-09-09T01:46:45+00:00"


@pytest.mark.usefixtures("here")
def test_narrow_terminal_gets_lines_with_whole_names():
    name = "a-run-with-a-long-name-20261122-200639"
    make(name, Run(task="my_environments/walkers.py:WalkerOnUnevenGround"))
    (run,) = [list_run(path) for path in find_runs([Path("runs")])]
    file = io.StringIO()
    _print_table([run], Console(file=file, width=80, force_terminal=True, color_system=None))
    first, *others = file.getvalue().splitlines()
    assert first == f"runs/{name}  cut short"
    text = " ".join(others)
    assert "task my_environments/walkers.py:WalkerOnUnevenGround" in text and "framework torch" in text
    assert max(map(len, others[:-1])) <= 80 and "return 7.000*" in text


@pytest.mark.usefixtures("here")
def test_damaged_and_foreign_files_end_no_listing(capsys):
    good = make("good", status="finished")
    make("odd", status="solved", env_steps="abc", seed=[1]).path.joinpath("metrics.jsonl").write_text(
        '{"time_s": NaN}\n'
    )
    with make("large") as large:
        large.write_evaluation(1, [1e308, 1e308], [1, 1])
    make("broken").path.joinpath("metrics.jsonl").write_text('{"step": 1' + "0" * 400 + "}\n")
    found = listed(capsys)
    assert {name: run["status"] for name, run in found.items()} == {
        **{"good": "finished", "odd": "solved", "large": "cut short", "broken": "cut short"},
    }
    assert found["odd"]["steps"] == 0 and found["large"]["last_return"] == pytest.approx(1e308)
    assert good.path.is_dir()


@pytest.mark.usefixtures("here")
def test_unexpected_error_of_one_run_is_a_damaged_row(capsys, monkeypatch):
    for name in ("good", "bad"):
        make(name, status="finished")
    monkeypatch.setattr("lockstep.cli.runs.list_run", broken_for("bad", list_run))
    monkeypatch.setattr("lockstep.cli.report.runs.found_run", broken_for("bad", found_run))
    assert {name: run["status"] for name, run in listed(capsys).items()} == {"good": "finished", "bad": "damaged"}
    for command in (["runs"], ["report"]):
        assert cli.main(command) == 0
        printed = capsys.readouterr().out
        assert "runs/bad is damaged: KeyError: 'odd'" in printed and "finished" in printed


def broken_for(name, read):
    def reads(path, *more):
        if path.name == name:
            raise KeyError("odd")
        return read(path, *more)

    return reads


@pytest.mark.usefixtures("here")
def test_runs_at_any_depth_are_found_once_and_links_in_a_circle_end(capsys):
    make("a/b/c/d/e/f/deep")
    make("a/b/c/d/e/f/deep/inner")
    os.symlink("..", "runs/a/b/up")
    os.symlink("self", "runs/a/self")
    assert list(listed(capsys)) == ["a/b/c/d/e/f/deep"]


@pytest.mark.usefixtures("here")
def test_names_that_are_not_utf8_are_listed(monkeypatch):
    make("plain", status="finished").path.rename(os.fsdecode(b"runs/caf\xe9"))
    for command in (["runs"], ["report"]):
        printed = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, "utf-8", write_through=True))
        assert cli.main(command) == 0
        assert b"runs/caf?" in printed.getvalue()


@pytest.mark.usefixtures("here")
def test_directory_without_runs_is_refused(capsys):
    assert cli.main(["runs"]) == 2
    assert "there is no runs/ here" in capsys.readouterr().err


def test_age_has_one_unit():
    assert [age(seconds) for seconds in (5.9, 60, 7300, 200_000)] == ["5 s", "1 min", "2 h", "2 d"]
