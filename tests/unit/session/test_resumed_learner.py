"""A run is resumed by the algorithm that trained it: tensors of a copied PPO would fit PPO without a word."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.report.runs import read_run
from lockstep.cli.runs import list_run
from lockstep.errors import ConfigError
from lockstep.launch.train import train
from lockstep.run import NetworkConfig, Run
from lockstep.session.loop_checks import name_of

pytest.importorskip("torch")

from lockstep.torch import ppo

RUN = Run(
    task="CartPole-v1",
    device="cpu",
    num_envs=4,
    total_steps=32,
    evaluate_every=None,
    evaluate_episodes=1,
    network=NetworkConfig(hidden=(8,)),
    algorithm=PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1),
)
LONGER = replace(RUN, total_steps=64)


class Mine(ppo.PPO):
    """A copy of PPO, as a script of one's own has it."""


@pytest.fixture
def own(monkeypatch):
    """Trains with an algorithm of one's own."""

    def train_own(run, **arguments):
        with monkeypatch.context() as patch:
            patch.setattr(ppo, "PPO", Mine)
            return train(run, **arguments)

    return train_own


def test_a_run_of_ones_own_algorithm_is_not_resumed_by_locksteps(own, tmp_path):
    own(RUN, run_dir=tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_text()
    words = (
        r"run was trained by test_resumed_learner\.Mine, and would continue with lockstep\.torch\.ppo\.PPO; "
        r"resume it with the script of test_resumed_learner\.Mine, or start a new run"
    )
    with pytest.raises(ConfigError, match=words):
        train(LONGER, resume=tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_text() == before
    assert own(LONGER, resume=tmp_path / "run")["env_steps"] == 64


def test_a_run_of_locksteps_algorithm_is_not_resumed_by_ones_own(own, tmp_path):
    train(RUN, run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"trained by lockstep\.torch\.ppo\.PPO, and .* `lockstep train --resume`"):
        own(LONGER, resume=tmp_path / "run")


def test_a_class_may_move_to_another_file(own, tmp_path, monkeypatch):
    own(RUN, run_dir=tmp_path / "run")
    monkeypatch.setattr(Mine, "__module__", "another_script")
    assert own(LONGER, resume=tmp_path / "run")["env_steps"] == 64


def test_a_checkpoint_that_does_not_say_whose_it_is_goes_on(own, tmp_path):
    own(RUN, run_dir=tmp_path / "run")
    (manifest,) = (tmp_path / "run" / "checkpoints").glob("step_*/manifest.json")
    content = json.loads(manifest.read_text())
    assert content.pop("learner") == "test_resumed_learner.Mine"
    manifest.write_text(json.dumps(content))
    assert train(LONGER, resume=tmp_path / "run")["env_steps"] == 64


def test_results_name_the_algorithm(own, tmp_path):
    assert own(RUN, run_dir=tmp_path / "own")["algo"] == "test_resumed_learner.Mine"
    assert list_run(tmp_path / "own").algo == "test_resumed_learner.Mine"
    assert read_run(tmp_path / "own").settings["algo"] == "test_resumed_learner.Mine"
    assert train(RUN, run_dir=tmp_path / "ours")["algo"] == "ppo"


@pytest.mark.parametrize(
    ("main", "name"),
    [
        (SimpleNamespace(__file__="/somewhere/my_script.py", __spec__=None), "my_script.A2C"),
        (SimpleNamespace(__file__="/somewhere/my.py", __spec__=SimpleNamespace(name="package.my")), "package.my.A2C"),
        (SimpleNamespace(), "__mp_main__.A2C"),
    ],
)
def test_a_script_is_named_by_its_file_whoever_runs_it(monkeypatch, main, name):
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    assert name_of(type("A2C", (), {"__module__": "__mp_main__"})()) == name
