"""A run that names folders, such as prepared data, goes on from any directory."""

import pytest

import made_data
from lockstep.algorithms.dqn import DQNConfig
from lockstep.cli import main as cli
from lockstep.preflight.setting_paths import with_absolute_paths, with_portable_paths
from lockstep.run import OfflineRun, Run, load, to_dict
from lockstep.session.resume import compare

pytestmark = pytest.mark.usefixtures("here")
SMALL = ["--set=batch_size=32", "--set=hidden=[8]", "--set=estimate=false"]


@pytest.fixture
def data(here):
    return made_data.discrete(here / "log", rows=64)


def test_folders_are_named_by_whole_paths(here):
    run = OfflineRun(data="log", eval_data="later", model_path="out/model")
    whole = with_absolute_paths(run)
    assert (whole.data, whole.eval_data, whole.model_path) == (f"{here}/log", f"{here}/later", f"{here}/out/model")
    assert with_absolute_paths(whole) == whole
    assert with_portable_paths(whole) == with_portable_paths(run)
    replayed = Run(task="CartPole-v1", algo="dqn", algorithm=DQNConfig(replay_path="replay"))
    assert with_absolute_paths(replayed).algorithm.replay_path == f"{here}/replay"
    assert with_portable_paths(with_absolute_paths(replayed)) == replayed
    for nothing in (OfflineRun(data="/log"), Run(task="CartPole-v1", algo="dqn")):
        assert with_absolute_paths(nothing) == nothing


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_the_config_has_the_whole_path_on_any_number_of_ranks(ranks, here, data, launched, trained):
    cli.main(["offline", "train", "log", *SMALL, "--run-dir", "run", "--ranks", ranks])
    found = load(here / "run" / "run.yaml") if launched else trained[0].run
    assert found.data == str(data)


def test_a_run_on_data_goes_on_and_is_judged_from_another_directory(here, data, monkeypatch, capsys):
    pytest.importorskip("torch")
    assert cli.main(["offline", "train", "log", *SMALL, "--set=epochs=1", "--run-dir", "run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("logged data in log: dqn"), "the screen has the path as it was typed"
    assert said.splitlines()[1].endswith(" trajectories")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    made_data.discrete(here / "elsewhere" / "log", rows=32, seed=9)  # other data of the same name
    assert cli.main(["offline", "train", "--resume", "../run"]) == 0
    assert "nothing is left to do" in capsys.readouterr().out
    assert cli.main(["offline", "train", "--resume", "../run", "--set=epochs=2"]) == 0
    assert load(here / "run" / "run.yaml").data == str(data)
    assert cli.main(["offline", "evaluate", "../run"]) == 0
    capsys.readouterr()
    assert cli.main(["offline", "train", "--resume", "../run", "--set=epochs=1"]) == 0
    said = capsys.readouterr().out
    assert "learned from its data 2 times (epochs)" in said and "--set epochs=4" in said, "not the lowered number"


def test_a_run_of_an_older_version_has_the_path_as_it_was_typed(here, data):
    typed, whole = to_dict(OfflineRun(data="log")), to_dict(OfflineRun(data=str(data)))
    assert compare(typed, whole) == []
    moved = compare(typed, to_dict(OfflineRun(data="/elsewhere/log")))
    assert moved == [f"data is /elsewhere/log from here on, was {data}"]
