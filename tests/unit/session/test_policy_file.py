"""The policy file: comes back as it was, runs no code, and says what is wrong with a bad one."""

import dataclasses
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.numpy import save_file

from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.main import main
from lockstep.config.env import EnvConfig
from lockstep.envs.make import make_vector_env
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.session.policy_file import POLICY_FILE, PolicySpec, read
from lockstep.torch.export import load_player, load_policy, save_policy, start_from
from lockstep.torch.networks import Policy
from lockstep.train import train

SPEC = EnvSpec(
    observation_size=3,
    action=ActionSpec("continuous", (2,), (-1.0, float("-inf")), (1.0, float("inf"))),
    autoreset="same_step",
    separately_seedable=True,
)
COUNTER = f"{Path(__file__).parents[1] / 'envs' / 'own_envs.py'}:Counter"
NETWORK = NetworkConfig(hidden=(8,), activation="elu", shared=True, initial_log_std=-0.5)


@pytest.fixture
def saved(tmp_path):
    """A policy, its normalizer, and the directory that they were saved to."""
    policy, moments = Policy(SPEC, NETWORK, seed=3), RunningMoments(3, limit=2.0)
    moments.update(moments.sums(np.random.default_rng(0).normal(2.0, 3.0, (50, 3)), np.ones(50)))
    save_policy(tmp_path / POLICY_FILE, policy, moments, Run(task="any", network=NETWORK))
    return policy, moments, tmp_path


def test_a_file_without_an_observation_limit_has_the_default():
    about = PolicySpec(task="any", spec=SPEC, network=NETWORK, algorithm=PPOConfig(), observation_limit=2.0).to_dict()
    assert PolicySpec.from_dict(about).observation_limit == 2.0
    del about["observation_limit"], about["network"]["critic_hidden"]
    assert PolicySpec.from_dict(about).observation_limit == 10.0


class Attack:
    """What unpickling would run."""

    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def test_it_comes_back_as_it_was(saved):
    policy, moments, folder = saved
    loaded, normalizer = load_policy(folder)
    spec = loaded.spec
    assert spec == SPEC
    assert loaded.state_dict().keys() == policy.state_dict().keys()
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), policy.state_dict().values(), strict=True)
    )
    assert normalizer is not None
    assert normalizer.limit == 2.0
    for mine, theirs in zip(normalizer.state().values(), moments.state().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [path.name for path in folder.iterdir()] == [POLICY_FILE], "a half-written file was left"


@pytest.mark.parametrize("damage", ["pickle", "text", "cut", "header"])
def test_a_bad_file_is_one_clear_line_and_runs_nothing(saved, monkeypatch, damage):
    folder = saved[2]
    monkeypatch.chdir(folder)
    path = folder / POLICY_FILE
    good = path.read_bytes()
    path.write_bytes(
        {
            "pickle": pickle.dumps(Attack()),
            "text": b"hello",
            "cut": good[:-40],
            "header": good.replace(b"lockstep", b"somebody"),
        }[damage]
    )
    with pytest.raises(ConfigError, match="is not a Lockstep policy file, or is damaged"):
        load_policy(folder)
    assert not (folder / "it_ran").exists()


@pytest.mark.parametrize("metadata", [{"lockstep": "{}"}, {"lockstep": "[1]"}, {"lockstep": '{"format": "x"}'}])
def test_foreign_metadata_is_one_clear_line(tmp_path, metadata):
    save_file({"a": np.zeros(2)}, tmp_path / POLICY_FILE, metadata)
    with pytest.raises(ConfigError, match="is not a Lockstep policy file, or is damaged"):
        load_policy(tmp_path)


@pytest.mark.parametrize("command", ["evaluate", "play", "export", "train"])
@pytest.mark.parametrize("lacks", ["task", "network", "spec", "normalizer.mean"])
def test_a_file_that_lacks_a_part_is_one_clear_line(saved, capsys, command, lacks):
    path = saved[2] / POLICY_FILE
    metadata, arrays = read(path)
    assert metadata.pop(lacks, None) or arrays.pop(lacks).any()
    save_file(arrays, path, {"lockstep": json.dumps(metadata)})
    words = ["train", "CartPole-v1", "--init-from"] if command == "train" else [command]
    run_dir = ["--run-dir", str(saved[2] / "run")] if command == "train" else []
    assert main([*words, str(path), *run_dir]) == 2
    said = capsys.readouterr().err
    assert f"{path} is not a Lockstep policy file, or is damaged (there is no '{lacks.split('.')[-1]}')" in said
    assert "a checkpoint of its run holds a policy too" in said and "Traceback" not in said
    assert not (saved[2] / "run").exists()


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"has no policy.safetensors and no checkpoint"):
        load_policy(tmp_path)


def test_run_starts_from_saved_policy(saved):
    policy, moments, folder = saved
    fresh, normalizer = Policy(SPEC, NETWORK, seed=4), RunningMoments(3)
    (note,) = start_from(folder, fresh, normalizer)
    assert "was trained with observation_limit=2.0, and this run has 10.0: it observes other numbers" in note
    assert start_from(folder, fresh, RunningMoments(3, 2.0)) == []
    assert torch.equal(fresh.network.actor.layers[0].weight, policy.network.actor.layers[0].weight)
    assert normalizer.count == moments.count


@pytest.mark.parametrize(
    ("network", "normalizer", "word"),
    [
        (NetworkConfig(hidden=(9,), shared=True), RunningMoments(3), "network differs"),
        (NETWORK, None, "normalize_observation"),
    ],
)
def test_what_does_not_fit_is_refused(saved, network, normalizer, word):
    with pytest.raises(ConfigError, match=word):
        start_from(saved[2], Policy(SPEC, network), normalizer)


@pytest.mark.parametrize(
    "space",
    [
        *(spaces.Discrete(3), spaces.Discrete(3, start=-1), spaces.MultiDiscrete([3, 2], start=[1, 0])),
        *(spaces.MultiDiscrete([[3, 2], [2, 4]]), spaces.MultiBinary(3), spaces.MultiBinary((2, 2))),
        *(
            spaces.Box(-1, 1, (3,)),
            spaces.Box(-1, 1, (2, 3)),
            spaces.Box(-1, 1, ()),
            spaces.Box(-0.1, -0.05, (2,), float),
        ),
    ],
    ids=str,
)
def test_a_player_acts_as_its_environment_takes_it(space, tmp_path):
    """The spec is that of a training run's environments, which flatten spaces."""
    config = EnvConfig(kwargs={"action_space": space}, vectorization="sync")
    spec = dataclasses.replace(SPEC, action=make_vector_env(COUNTER, config, 1).spec.action)
    policy = Policy(spec, dataclasses.replace(NETWORK, initial_log_std=0.0))
    save_policy(tmp_path / POLICY_FILE, policy, None, Run(task="any", network=NETWORK))
    loaded, player = load_player(tmp_path)
    assert loaded == spec
    assert space.contains(player.act([0.1, 0.2, 0.3])) and space.contains(player.act([9e9, 9e9, -9e9]))


def test_a_player_takes_bytes_of_an_image_as_any_integers_and_refuses_other_numbers(tmp_path):
    """Encoders scale bytes alone: of 0.0 to 255.0 they would make other actions, without a word."""
    spec = dataclasses.replace(SPEC, observation_size=3 * 12 * 12, image=(3, 12, 12))
    network = NetworkConfig(features=8)
    save_policy(tmp_path / POLICY_FILE, Policy(spec, network), None, Run(task="any", network=network))
    _, player = load_player(tmp_path)
    image = np.random.default_rng(0).integers(256, size=spec.image)
    assert (player.act(image) == player.act(image.astype(np.uint8))).all() and np.any(player.act(image))
    for other, found in ((image.astype(np.float32), "not of float32"), (image - 256, r"not of -256 to -\d")):
        with pytest.raises(ValueError, match=rf"an image of bytes, 0 to 255 \(uint8\), {found}"):
            player.act(other)


def test_a_file_from_before_starts_and_shapes_loads():
    about = SPEC.to_dict()
    assert set(about["action"]) == {"kind", "sizes", "low", "high"}
    assert EnvSpec.from_dict(about) == SPEC


def test_a_checkpoint_that_its_run_has_removed_is_told_as_such(tmp_path):
    """While a command imports its packages, a run that trains may write newer ones."""
    with pytest.raises(ConfigError, match="step_512 does not exist; a run keeps the newest checkpoints alone"):
        read(tmp_path / "run" / "checkpoints" / "step_512")


def test_a_checkpoint_is_read_with_the_settings_that_it_was_trained_with(tmp_path):
    """A resumption may change how observations are clipped, for what follows."""
    config = PPOConfig(num_steps=8, num_minibatches=1, num_epochs=1, observation_limit=3.0, normalize_observation=True)
    run = Run(
        task="CartPole-v1", num_envs=4, total_steps=64, checkpoint_every=32, evaluate_every=None, algorithm=config
    )
    train(run, run_dir=tmp_path / "run")
    train(resume=tmp_path / "run", total_steps=96, observation_limit=7.0)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [read(checkpoints / f"step_{step}")[0]["observation_limit"] for step in (64, 96)] == [3.0, 7.0]
