"""`lockstep report RUN RUN...`: what runs of any state tell beside each other, in a table, in lines and as JSON."""

import io
import json
import os

import pytest
from rich.console import Console

from lockstep.cli import main as cli
from lockstep.cli.report import table
from lockstep.cli.report.runs import find_runs, read_run
from lockstep.cli.report.table import as_json, differing, print_tables
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RunDir, lock_run_dir, mark_failed
from lockstep.record.summary import empty_summary
from lockstep.run import OfflineRun, Run, override

RUN = Run(task="CartPole-v1")


def made(path, run=RUN, returns=(), training=(), status=None, **told):
    """A run directory as a run leaves it; without status, as one that was killed does."""
    with RunDir.create(path, run) as run_dir:
        for i, mean in enumerate(training, 1):
            run_dir.write_metrics(1000 * i, 2.0 * i, {"episode/return_mean_100": mean})
        for i, mean in enumerate(returns, 1):
            run_dir.write_evaluation(1000 * i, [mean - 1, mean + 1], [1, 1])
        if status is not None:
            run_dir.write_summary(empty_summary(run) | {"status": status, "world_size": 1} | told)
    return path


def shown(*paths, width=400, terminal=False):
    file = io.StringIO()
    print_tables(
        [read_run(path) for path in find_runs(paths)], Console(file=file, width=width, force_terminal=terminal)
    )
    return file.getvalue()


@pytest.fixture
def runs(here):
    made("runs/one", returns=(10, 300, 200), status="finished", env_steps=3000, steps_per_second=500.0)
    other = override(RUN, {"seed": 7, "learning_rate": 1e-3, "hidden": [32], "env.kwargs.sutton_barto_reward": True})
    made("runs/two", other, training=(20.0, 50.0, 40.0))
    return here


def test_table_shows_differing_settings_and_results(runs, capsys):
    assert cli.main(["report", "runs/one", "runs/two"]) == 0
    title, head, one, two = capsys.readouterr().out.splitlines()[:4]
    assert title == "2 runs of CartPole-v1 with ppo"
    words = ["run", "status", "learning_rate", "hidden", "sutton_barto_reward", "ranks", "seed", "last return"]
    assert [word.strip() for word in head.split("  ") if word] == [*words, "best return", "steps", "steps/s"]
    row = [word.strip() for word in one.split("  ") if word.strip()]
    assert row == ["runs/one", "finished", "0.00025", "[64, 64]", "-", "1", "0", "200.0", "300.0", "3 000", "500"]
    row = [word.strip() for word in two.split("  ") if word.strip()]
    assert row[:7] == ["runs/two", "cut short", "0.001", "[32]", "true", "-", "7"]
    assert row[7:] == ["40.00*", "50.00*", "3 000 (1%)", "500"]


def test_default_path_is_runs(runs, capsys):
    made("runs/sweep/three", returns=(1,), status="failed", error="rank 1: disk\nfull")
    assert cli.main(["report"]) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()[2:5]] == ["runs/one", "runs/sweep/three", "runs/two"]
    assert "runs/sweep/three failed: rank 1: disk full" in told
    assert "runs/two ended without a result; it left no checkpoint" in told
    assert "* mean return of the last 100 training episodes" in told
    assert find_runs([(runs / "runs"), (runs / "runs" / "one")]) == find_runs([runs / "runs"])


@pytest.mark.parametrize("more", [{}, {"algo": "mine"}])
def test_run_of_a_loop_of_ones_own_is_left_to_its_script(here, capsys, more):
    with RunDir.create("runs/mine", {"lr": 0.5, "task": "CartPole-v1", **more}) as run_dir:
        run_dir.write_metrics(1, 1.0, {"loss": 0.5})
    (here / "runs/mine/checkpoints/step_1").mkdir(parents=True)
    assert cli.main(["report", "runs/mine"]) == 0
    told = capsys.readouterr().out
    assert "runs/mine ended without a result; its script can continue from its newest checkpoint" in told
    commands = (["train", "--resume", "runs/mine"], ["evaluate", "runs/mine"], ["export", "runs/mine"])
    for command in commands:
        assert cli.main(command) == 2
        assert "runs/mine is the run of a loop of its own (RunDir), which" in capsys.readouterr().err


def test_where_there_are_no_runs(here, capsys):
    assert cli.main(["report"]) == 2
    assert "there is no runs/ here; name run directories" in capsys.readouterr().err
    assert cli.main(["report", "nothing"]) == 2
    assert "nothing does not exist; give run directories" in capsys.readouterr().err
    (here / "empty").mkdir()
    assert cli.main(["report", "empty"]) == 2
    assert "empty holds no run (no run.yaml)" in capsys.readouterr().err


def test_locked_run_is_running_after_a_restart_too(runs):
    mark_failed(runs / "runs/two", "rank 0 was killed")
    assert read_run(runs / "runs/two").status == "failed"
    held = lock_run_dir(runs / "runs/two")
    found = read_run(runs / "runs/two")
    assert (found.status, found.error, found.steps) == ("running", None, 3000)
    os.close(held)
    assert read_run(runs / "runs/two").status == "failed"


def test_damaged_files_are_skipped(here):
    made("torn", returns=(5,), training=(3.0,))
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (here / "torn" / name).open("a") as file:
            file.write('{"step": 99999, "ret')
    (here / "torn" / "summary.json").write_text('{"status": "fini')
    found = read_run(here / "torn")
    assert (found.status, found.steps, found.last_return) == ("cut short", 1000, 5.0)
    (here / "torn" / "run.yaml").write_text("task: [")
    (here / "torn" / "metrics.jsonl").write_bytes(b"\xff\xfe[1]\n7\n")
    found = read_run(here / "torn")
    assert (dict(found.settings), found.steps, found.steps_per_second) == ({}, 0, None)
    assert "1 run\n" in shown(here / "torn")


def test_a_run_that_has_just_been_made(here):
    made("young")
    assert "young" in shown(here / "young")
    assert read_run(here / "young").return_from is None


def test_settings_of_an_earlier_version_or_of_another_loop_are_shown_as_they_are(here):
    for name, config in (("a", {"lr": 0.1}), ("b", {"lr": 0.2, "old_name": 3})):
        RunDir.create(here / name, config).close()
    found = [read_run(here / name) for name in "ab"]
    assert differing(found) == ["lr", "old_name"]


def test_settings_that_only_one_algorithm_has_are_no_difference(here):
    made("ppo", status="finished")
    made("dqn", Run(task="CartPole-v1", algo="dqn"), status="finished")
    names = differing([read_run(here / name) for name in ("ppo", "dqn")])
    assert {"algo", "algorithm.learning_rate", "algorithm.num_steps"} <= {*names}
    assert "algorithm.capacity" not in names


def test_a_log_that_earned_nothing_is_compared_with(here):
    with RunDir.join(made("zero", OfflineRun(data="data"), status="finished", env_steps=400)) as run_dir:
        run_dir.write_metrics(300, 0.5, {"estimate/logged": 0.0, "estimate/weighted_sequential_dr": 0.5})
        run_dir.write_metrics(400, 1.0, {"loss/value": 1.0})
    found = read_run(here / "zero")
    assert found.logged == 0.0 and found.estimate == (0.5, None, None)
    assert "logged: mean discounted return of the log" in shown(here / "zero")


def test_logged_data_has_a_table_of_its_own_with_estimates(runs):
    one = {"value": 7.2, "low": 4.1, "high": 9.9}
    estimates = {"estimates": {"reward": {"weighted_sequential_dr": one}}}
    made("runs/log", OfflineRun(data="data"), status="finished", env_steps=400, estimates=estimates)
    with RunDir.join("runs/log") as run_dir:
        run_dir.write_metrics(400, 1.0, {"estimate/logged": 20.5})
    text = shown(runs / "runs/one", runs / "runs/log")
    assert "1 run of CartPole-v1 with ppo" in text
    assert "1 run from data with dqn" in text
    assert "7.200 [4.100, 9.900]" in text and "? not reliable" not in text
    assert "logged: mean discounted return of the log; last and best return are not discounted" in text
    assert "20.50" in text
    assert "lockstep offline evaluate RUN says what to think of it" in text
    estimates["verdict"] = {"trajectory": None}
    made("runs/doubted", OfflineRun(data="data"), status="finished", env_steps=400, estimates=estimates)
    text = shown(runs / "runs/doubted")
    assert "7.200? [4.100, 9.900]" in text and "? not reliable: lockstep offline evaluate RUN says why" in text
    assert json.loads(as_json([read_run(runs / "runs/doubted")]))["runs"][0]["estimate"]["reliable"] is False
    (runs / "runs/log/summary.json").unlink()  # one that still learns tells of its last line
    with RunDir.join("runs/log") as run_dir:
        run_dir.write_metrics(800, 2.0, {"estimate/weighted_sequential_dr": 6.0})
        run_dir.write_metrics(900, 3.0, {"loss/value": 1.0})
    assert read_run(runs / "runs/log").estimate == (6.0, None, None)


def test_a_narrow_terminal_gets_lines_that_fit(runs):
    narrow = shown(runs / "runs/one", runs / "runs/two", width=60, terminal=True)
    assert "learning_rate 0.001, hidden [32]" in narrow
    assert all(len(line) <= 60 for line in narrow.splitlines() if line.startswith("  "))
    wide = shown(runs / "runs/one", runs / "runs/two", width=400, terminal=True)
    assert "learning_rate 0.001" not in wide
    assert "0.001" in wide


def test_settings_are_compared_once_for_all_runs(runs, monkeypatch):
    compared = []
    monkeypatch.setattr(table, "differing", lambda runs: compared.append(runs) or differing(runs))
    assert "learning_rate" in shown(runs / "runs/one", runs / "runs/two")
    assert len(compared) == 1


def test_json(runs, capsys):
    assert cli.main(["report", "--json", "runs"]) == 0
    one, two = json.loads(capsys.readouterr().out)["runs"]
    assert (one["last_return"], one["best_return"], one["return_from"]) == (200.0, 300.0, "evaluation")
    assert (two["status"], two["seed"], two["return_from"]) == ("cut short", 7, "training")
    assert two["settings"]["algorithm.learning_rate"] == 1e-3
    assert one["settings"]["env.kwargs.sutton_barto_reward"] is None


def test_a_path_is_refused_before_anything_is_printed(runs):
    with pytest.raises(ConfigError, match="nothing does not exist"):
        find_runs([runs / "runs", runs / "nothing"])
