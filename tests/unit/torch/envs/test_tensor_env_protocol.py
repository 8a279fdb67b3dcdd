"""Environments on torch tensors: by task name, and wrapped for the host."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.cli import main as cli
from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec, is_jax_task, is_tensor_task, make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError, RunError
from lockstep.torch.envs.make import make_tensor_env

WALK = f"{Path(__file__).parent / 'tensor_envs.py'}:Walk"
CPU = torch.device("cpu")


def test_a_class_is_found_by_its_attribute():
    assert is_tensor_task(WALK) and not is_jax_task(WALK) and not is_tensor_task("CartPole-v1")
    spec = env_spec(WALK, EnvConfig())
    assert (spec.observation_size, spec.critic_size) == (1, 2)
    assert EnvSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        (WALK, EnvConfig(kwargs={"autorest": "next_step"}), "did you mean autoreset"),
        (WALK, EnvConfig(kwargs={"device": "cpu"}), "device=cpu is set by Lockstep; use device"),
        (
            WALK,
            EnvConfig(policy_keys=("policy",)),
            "Walk has no argument policy_keys, and gives the policy its gro",
        ),
        (WALK, EnvConfig(kwargs={"num_envs": 3}), "num_envs=3 is set by Lockstep; use num_envs"),
        (WALK, EnvConfig(vectorization="async"), "is vectorized itself"),
        (WALK.replace("Walk", "WithoutDevice"), EnvConfig(), "lacks device"),
        (WALK.replace("Walk", "Capturable"), EnvConfig(), "lacks generators, which `capturable = True` needs"),
    ],
)
def test_bad_settings_are_refused_in_one_line(task, config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_tensor_env(task, config, 2, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_host_receives_copies_equal_to_the_tensors(autoreset):
    config = EnvConfig(kwargs={"autoreset": autoreset})
    tensors, host = make_tensor_env(WALK, config, 4, CPU), make_vector_env(WALK, config, 4)
    kept = [host.reset([3])]
    seen = [tensors.reset([3]).policy.numpy().copy()]
    for _ in range(8):
        action = np.full((4, 1), 0.2, np.float32)
        observation, reward, terminated, truncated, final = host.step(action)
        step = tensors.step(torch.from_numpy(action))
        kept.append(observation)
        seen.append(step.observation.policy.numpy().copy())
        np.testing.assert_array_equal(reward, step.reward.numpy())
        np.testing.assert_array_equal(terminated, step.terminated.numpy())
        np.testing.assert_array_equal(truncated, step.truncated.numpy())
        assert (final is None) == (autoreset == "next_step")
        if final is not None:
            np.testing.assert_array_equal(final, step.final.policy.numpy())
    np.testing.assert_array_equal(kept, seen)


def test_the_host_saves_and_restores():
    host, again = (make_vector_env(WALK, EnvConfig(), 4) for _ in range(2))
    host.reset([1])
    host.step(np.ones((4, 1), np.float32))
    saved = host.state()
    assert all(isinstance(leaf, (np.ndarray, int)) for leaf in saved.values())
    action = np.full((4, 1), 0.3, np.float32)
    expected = [host.step(action)[0] for _ in range(5)]
    again.reset([9])
    again.restore(saved)
    np.testing.assert_array_equal([again.step(action)[0] for _ in range(5)], expected)


@pytest.mark.parametrize(
    "more", [["env.placement=device"], ["env.placement=device", "env.clip_observation=5"], ["env.placement=host"]]
)
def test_a_run_says_which_observations_no_network_receives(tmp_path, more):
    settings = ["num_envs=4", "num_steps=8", "num_minibatches=1", "total_steps=64", *more]
    words = [word for one in settings for word in ("--set", one)]
    command = ["train", WALK.replace("Walk", "Seeing"), "--run-dir", str(tmp_path / "run"), *words]
    assert cli.main([*command, "--set", "evaluate_every=null", "--set", "evaluate_episodes=1"]) == 0
    said = "observations that no network receives: camera (env.policy_keys and env.critic_keys choose)"
    assert said in (tmp_path / "run" / "logs" / "rank_0.log").read_text()


def test_a_truncation_without_its_final_observation_is_an_error_on_the_host():
    host = make_vector_env(WALK, EnvConfig(), 2)
    host.reset([0])
    inner = host._env
    step = inner.step
    inner.step = lambda action: step(action)._replace(final=None)
    away = np.full((2, 1), -1.0, np.float32)
    host.step(away), host.step(away)
    with pytest.raises(RunError, match=r"truncated an episode without a final observation.*TensorStep\.final"):
        host.step(away)


@pytest.mark.parametrize(("name", "rate"), [("Drawn", 30.0), ("DrawnSlowly", 5.0)])
def test_a_class_with_a_method_render_is_drawn(name, rate):
    env = make_vector_env(WALK.replace("Walk", name), EnvConfig(clip_observation=5.0), 2, render=True)
    env.reset([0])
    (picture,) = env.render()
    assert picture.shape == (4, 6, 3) and picture.dtype == np.uint8 and env.frames_per_second == rate


def test_a_class_that_takes_names_of_groups_receives_them():
    config = EnvConfig(policy_keys=("joints",), critic_keys=("joints", "forces"))
    env = make_tensor_env(WALK.replace("Walk", "Choosing"), config, 2, CPU)
    assert env.keys == (("joints",), ("joints", "forces"))


def test_a_class_without_one_cannot_be_drawn():
    with pytest.raises(
        ConfigError, match=r"Walk cannot be rendered; .* vector environments with a method render can be"
    ):
        make_vector_env(WALK, EnvConfig(), 2, render=True)
