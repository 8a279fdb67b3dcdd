"""Policies that are played in other environments than those that they were trained in."""

import shutil

import pytest

from lockstep.cli.main import main
from lockstep.run import dump, load, override
from quick import others_slow

TRAIN = ["train", "CartPole-v1", "--set", "total_steps=256", "--set", "num_envs=2", "--set", "evaluate_episodes=1"]


@pytest.fixture
def stacked(tmp_path):
    """A run whose policy observes three steps."""
    assert main([*TRAIN, "--set", "env.frame_stack=3", "--run-dir", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_a_policy_file_says_that_it_lacks_the_settings_of_the_environment(stacked, capsys):
    assert main(["evaluate", str(stacked), "--episodes", "1"]) == 0
    assert "note" not in capsys.readouterr().err
    alone = shutil.copy(stacked / "policy.safetensors", stacked.parent / "alone.safetensors")
    assert main(["evaluate", str(alone), "--episodes", "1"]) == 2
    said = capsys.readouterr().err
    assert "alone.safetensors does not hold its run's settings of the environment" in said
    assert (
        "task=CartPole-v1 gives observations of [4] and takes actions of [2], and the policy was trained with [12]"
        in said
    )


@pytest.mark.parametrize(
    "settings",
    others_slow(
        [
            {"compile": True, "compile_mode": "max-autotune", "capture": True},
            {"share_gpus": True},
            {"network.channels_last": True},
        ],
        {"share_gpus": True},
    ),
)
def test_settings_of_learning_alone_do_not_hinder_playing_in_jax(stacked, settings):
    file = stacked / "run.yaml"
    file.write_text(dump(override(load(file), settings)))
    assert main(["evaluate", str(stacked), "--episodes", "1", "--ml-framework", "jax"]) == 0
    assert main(["evaluate", str(stacked), "--episodes", "1"]) == 0
