"""What `lockstep offline train` learns from, by what is named."""

import json

import pytest

import made_data
from lockstep.cli import main as cli
from lockstep.run import OfflineRun, dump
from made_logs import row


@pytest.fixture
def started(here, monkeypatch):
    """Type a command; the run that it would start."""
    found = []
    monkeypatch.setattr("lockstep.cli.start.start", lambda args, run: found.append(run) or 0)

    def typed(*words):
        assert cli.main(["offline", "train", *words]) == 0
        return found.pop()

    return typed


@pytest.mark.parametrize(
    ("make", "algo"),
    [(made_data.discrete, "dqn"), (made_data.parametric, "parametric_dqn"), (made_data.continuous, "iql")],
)
def test_a_file_without_an_algorithm_has_that_of_its_data(here, started, make, algo):
    make(here / "data")
    (here / "run.yaml").write_text("data: data\nepochs: 3\nalgorithm: {batch_size: 32}\n")
    run = started("run.yaml")
    assert (run.algo, run.epochs, run.algorithm.batch_size) == (algo, 3, 32)
    assert started("data").algo == algo


def test_a_file_keeps_the_algorithm_that_it_names_and_its_settings(here, started):
    made_data.continuous(here / "data")
    (here / "run.yaml").write_text("data: data\nalgo: td3_bc\n")
    assert started("run.yaml").algo == "td3_bc"
    (here / "run.yaml").write_text("data: data\nalgorithm: {expectile: 0.8}\n")
    assert started("run.yaml").algorithm.expectile == 0.8
    assert started("run.yaml", "--set", "data=elsewhere").data == "elsewhere"
    run = OfflineRun(data="data", algo="cql")
    (here / "run.yaml").write_text(dump(run))
    assert started("run.yaml") == run


def test_only_a_run_directory_is_said_to_start_a_new_run(here, trained, capsys):
    made_data.discrete(here / "data")
    assert cli.main(["offline", "train", "data"]) == 0
    assert capsys.readouterr().err == ""
    (here / "a run").mkdir()
    (here / "a run" / "run.yaml").write_text(dump(OfflineRun(data="data")))
    assert cli.main(["train", "a run"]) == 0
    assert "note: a new run with the settings of 'a run'" in capsys.readouterr().err
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps([row(i) for i in range(3)]), "log.json is not prepared data; prepare it: lockstep offline prepare"),
        ("{}", "log.json is neither a workflow file (it has no training_data_path) nor a run"),
        ('{"data": "data", "gama": 1}', "log.json: unknown setting gama; did you mean algorithm.gamma?"),
        ('{"task": "CartPole-v1"}', "log.json describes a run that learns from environments"),
    ],
)
def test_a_file_that_is_no_run_of_logged_data(here, capsys, text, words):
    made_data.continuous(here / "data")
    (here / "log.json").write_text(text)
    assert cli.main(["offline", "train", "log.json"]) == 2
    assert words in capsys.readouterr().err
