"""`lockstep sweep --sampler optuna`, with Optuna itself and its SQLite storage."""

import signal
import sys

import pytest

from lockstep.cli.sweep import pool
from lockstep.cli.sweep.optuna_trials import OptunaTrials
from lockstep.cli.sweep.sweep_file import Sweep

optuna = pytest.importorskip("optuna")

SEARCH = """
train: cartpole
seeds: 0
sampler: optuna
trials: 6
settings:
  learning_rate: {low: 1e-4, high: 1e-1, log: true}
  num_epochs: {low: 2, high: 8, step: 2}
  hidden: [[16], [32, 32]]
"""


def study_of(path):
    return optuna.load_study(study_name="lockstep", storage=f"sqlite:///{path / 'optuna.db'}")


def test_killed_search_goes_on_with_the_same_trials(sweeps):
    """The second of two trials at a time is interrupted; it is resumed, not proposed again, and told once."""
    sweeps.write(SEARCH.replace("trials: 6", "trials: 3"))
    sweeps.behave({"trial_001/seed_0": "wait"})
    folder = sweeps.path / "runs/my"
    events = folder / "events.jsonl"

    def two_are_done():
        return events.exists() and events.read_text().count('"done"') >= 2

    assert sweeps.run_interrupted(two_are_done, signal.SIGTERM, "sweep", "my.yaml", "--jobs", "2") == 143
    states = [trial.state.name for trial in study_of(folder).trials]
    assert states == ["COMPLETE", "RUNNING", "COMPLETE"]
    before = study_of(folder).trials[1].params
    sweeps.behave({})
    assert sweeps.run("sweep", "my.yaml") == 0
    trials = study_of(folder).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3 and trials[1].params == before
    assert sorted(sweeps.started("runs/my")) == [f"trial_00{i}/seed_0" for i in (0, 1, 1, 2)]
    found = {trial["name"]: trial for trial in sweeps.results("runs/my")["trials"]}
    for trial in trials:
        one = found[f"trial_00{trial.number}"]
        assert one["settings"]["learning_rate"] == trial.params["learning_rate"]
        assert one["settings"]["hidden"] == [[16], [32, 32]][trial.params["hidden"]]
        assert one["summary"]["iqm"] == trial.value == pytest.approx(-abs(trial.params["learning_rate"] - 0.01))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[[16], [32, 32]]", "[[16], [32, 32], [8]]", "settings.hidden of the sweep has changed"),
        ("trials: 2", "trials: 2\ndirection: minimize", "direction of the sweep has changed"),
    ],
)
def test_another_space_is_refused(sweeps, capsys, old, new, named):
    text = SEARCH.replace("trials: 6", "trials: 2")
    sweeps.write(text)
    assert sweeps.run("sweep", "my.yaml") == 0
    sweeps.write(text.replace(old, new).replace("trials: 2", "trials: 3"))
    assert sweeps.run("sweep", "my.yaml", "--run-dir", "runs/my") == 2
    assert named in capsys.readouterr().err
    assert (sweeps.path / "runs/my/sweep.yaml").read_text().count("[8]") == 0


@pytest.mark.parametrize("copied", [0, 1])
def test_a_study_that_lacks_trials_of_the_sweep_is_refused(sweeps, capsys, copied):
    """It is gone, or an older copy: new trials would get the runs, and the scores, of others."""
    folder = sweeps.path / "runs/my"
    text = SEARCH.replace("trials: 6", "trials: 1")
    sweeps.write(text)
    assert sweeps.run("sweep", "my.yaml") == 0
    copy = (folder / "optuna.db").read_bytes()
    assert sweeps.run("sweep", "runs/my", "--trials", "2") == 0
    results, now = sweeps.results("runs/my"), (folder / "optuna.db").read_bytes()
    (folder / "optuna.db").unlink()
    if copied:
        (folder / "optuna.db").write_bytes(copy)
    for _ in range(2):
        assert sweeps.run("sweep", "runs/my", "--trials", "3") == 2
        assert f"has trial_00{copied}, which optuna.db" in capsys.readouterr().err
    assert (folder / "optuna.db").exists() == bool(copied) and sweeps.results("runs/my") == results
    (folder / "optuna.db").write_bytes(now)
    assert sweeps.run("sweep", "runs/my", "--trials", "3") == 0
    assert len(sweeps.started("runs/my")) == 3


@pytest.mark.slow
def test_trial_below_the_median_is_pruned(sweeps, capsys):
    sweeps.write(SEARCH.replace("seeds: 0", "seeds: 0:2"))
    sweeps.behave({"trial_005/seed_0": "poor"})
    assert sweeps.run("sweep", "my.yaml", "--jobs", "1") == 0
    trials = study_of(sweeps.path / "runs/my").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 5 + ["PRUNED"]
    assert [run["status"] for run in sweeps.results("runs/my")["trials"][-1]["runs"]] == ["pruned", "pruned"]
    assert "trial_005/seed_1" not in sweeps.started("runs/my")
    assert sweeps.run("sweep", "runs/my") == 0  # a pruned run is not started again
    assert len(sweeps.started("runs/my")) == 11
    assert "trial_005/seed_0: pruned before" in capsys.readouterr().out


def test_the_best_return_so_far_is_compared_with_complete_trials_once_there_are_five(tmp_path):
    sweep = Sweep(settings={"num_epochs": [2, 4, 6, 8]}, sampler="optuna", trials=10)
    trials = OptunaTrials(sweep, tmp_path)

    def pruned(first, second, status="done"):
        trial = trials.next()
        found = [trials.should_prune(trial, 1000, first), trials.should_prune(trial, 2000, second)]
        trials.complete(trial, [second], status)
        return found

    assert [pruned(10.0, 100.0) for _ in range(4)] == [[False, False]] * 4
    assert pruned(1.0, 1.0, "pruned") == [False, False]  # four are complete
    assert pruned(1.0, 1.0, "failed") == [False, False]
    assert pruned(10.0, 100.0) == [False, False]
    assert pruned(150.0, 5.0) == [False, False]  # its best return was above the median of 100
    assert pruned(5.0, 99.0) == [True, True]


def never_read(monkeypatch):
    """As of runs that end before the sweep reads their files."""
    monkeypatch.setattr(pool, "_READ_EVERY_S", 1e9)


def check_reported(trial):
    assert trial.state.name == "COMPLETE"
    assert trial.intermediate_values == {50: 0.0, 300: trial.value}


def test_evaluations_of_short_runs_are_reported(sweeps, monkeypatch):
    never_read(monkeypatch)
    sweeps.write(SEARCH.replace("trials: 6", "trials: 2"))
    assert sweeps.run("sweep", "my.yaml", "--jobs", "1") == 0
    for trial in study_of(sweeps.path / "runs/my").trials:
        check_reported(trial)


def test_evaluations_are_reported_that_a_killed_sweep_did_not(sweeps, monkeypatch):
    """The run ended while nobody looked."""
    sweeps.write(SEARCH.replace("trials: 6", "trials: 1"))
    with monkeypatch.context() as killed:
        killed.setattr(OptunaTrials, "should_prune", lambda *_: False)
        killed.setattr(OptunaTrials, "complete", lambda *_: None)
        assert sweeps.run("sweep", "my.yaml") == 0
    (trial,) = study_of(sweeps.path / "runs/my").trials
    assert trial.state.name == "RUNNING" and not trial.intermediate_values
    assert sweeps.run("sweep", "my.yaml") == 0
    assert len(sweeps.started("runs/my")) == 1
    (trial,) = study_of(sweeps.path / "runs/my").trials
    check_reported(trial)
    assert sweeps.run("sweep", "my.yaml") == 0  # the end of the trial is known


@pytest.mark.parametrize(("seeds", "state"), [("0", "COMPLETE"), ("0:2", "PRUNED")])
def test_a_poor_trial_whose_runs_have_ended_stays_complete(sweeps, monkeypatch, seeds, state):
    """With runs that are left, it is pruned."""
    never_read(monkeypatch)
    monkeypatch.setattr(OptunaTrials, "should_prune", lambda *_: True)
    sweeps.write(SEARCH.replace("trials: 6", "trials: 1").replace("seeds: 0", f"seeds: {seeds}"))
    assert sweeps.run("sweep", "my.yaml", "--jobs", "1") == 0
    assert [trial.state.name for trial in study_of(sweeps.path / "runs/my").trials] == [state]
    assert sweeps.started("runs/my") == ["trial_000/seed_0"]
    assert [run["status"] for run in sweeps.results("runs/my")["trials"][0]["runs"]][1:] == ["pruned"] * (
        len(seeds) > 1
    )


def test_a_run_that_ends_by_itself_while_its_trial_is_pruned_is_complete(sweeps, monkeypatch):
    monkeypatch.setattr(OptunaTrials, "should_prune", lambda *_: True)
    sweeps.write(SEARCH.replace("trials: 6", "trials: 1"))
    sweeps.behave({"trial_000/seed_0": "late"})
    assert sweeps.run("sweep", "my.yaml") == 0
    assert [trial.state.name for trial in study_of(sweeps.path / "runs/my").trials] == ["COMPLETE"]


def test_missing_package_is_named(sweeps, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    sweeps.write(SEARCH)
    assert sweeps.run("sweep", "my.yaml") == 2
    assert "pip install 'lockstep-rl[sweep]'" in capsys.readouterr().err
