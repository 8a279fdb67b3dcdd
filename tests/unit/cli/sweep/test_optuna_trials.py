"""`lockstep sweep --sampler optuna`, with Optuna itself and its SQLite storage."""

import os
import signal
import sys
import threading
import time

import pytest

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

    def interrupt():
        events = folder / "events.jsonl"
        while not events.exists() or events.read_text().count('"done"') < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert sweeps.run("sweep", "my.yaml", "--jobs", "2") == 143
    thread.join()
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


def test_missing_package_is_named(sweeps, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    sweeps.write(SEARCH)
    assert sweeps.run("sweep", "my.yaml") == 2
    assert "pip install 'lockstep-rl[sweep]'" in capsys.readouterr().err
