"""`env.frame_stack`: the observations of the last steps, never of another episode."""

import numpy as np
import pytest

from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec, make_vector_env, stays_on_device
from lockstep.envs.state import can_save
from lockstep.errors import ConfigError

STACK = EnvConfig(frame_stack=3, max_episode_steps=5)


@pytest.mark.parametrize("task", ["lockstep/HiddenCartpole-v0", "CartPole-v1"])
def test_observations_are_those_of_the_last_steps(task):
    plain = EnvConfig(max_episode_steps=5)
    stacked, single = make_vector_env(task, STACK, 4), make_vector_env(task, plain, 4)
    size = single.spec.observation_size
    assert stacked.spec.observation_size == 3 * size
    draws = np.random.default_rng(0)
    first = single.reset([0, 1, 2, 3])
    stacks = [[row] * 3 for row in first]
    np.testing.assert_array_equal(stacked.reset([0, 1, 2, 3]), np.concatenate([first] * 3, 1))
    resetting = np.zeros(4, bool)
    for _ in range(12):
        action = draws.integers(0, 2, 4)
        observation, _, terminated, truncated, final = (
            None if column is None else column.copy() for column in single.step(action)
        )
        found, _, _, _, found_final = stacked.step(action)
        ended = terminated | truncated
        for i in range(4):
            if final is not None and ended[i]:
                np.testing.assert_array_equal(found_final[i], np.concatenate([*stacks[i][1:], final[i]]))
            begins = ended[i] if final is not None else resetting[i]
            stacks[i] = [observation[i]] * 3 if begins else [*stacks[i][1:], observation[i]]
        np.testing.assert_array_equal(found, np.stack([np.concatenate(stack) for stack in stacks]))
        resetting = ended


def test_a_saved_stack_continues():
    env, other = (make_vector_env("lockstep/HiddenCartpole-v0", STACK, 2) for _ in range(2))
    assert can_save(env) and can_save(other)
    env.reset([0, 1])
    other.reset([5, 6])
    actions = np.random.default_rng(0).integers(0, 2, (8, 2))
    for action in actions[:3]:
        env.step(action)
    other.restore(env.state())
    for action in actions[3:]:
        np.testing.assert_array_equal(env.step(action)[0], other.step(action)[0])


def test_images_and_environments_on_the_device_are_refused():
    with pytest.raises(ConfigError, match=r"env\.frame_stack=0 must be at least 1"):
        EnvConfig(frame_stack=0)
    with pytest.raises(ConfigError, match=r"env\.frame_stack=2 is for environments on the host"):
        stays_on_device("lockstep/Cartpole-v0", EnvConfig(frame_stack=2, placement="device"), "torch", preferred=True)
    assert not stays_on_device("lockstep/Cartpole-v0", EnvConfig(frame_stack=2), "torch", preferred=True)
    assert env_spec("lockstep/Cartpole-v0", EnvConfig(frame_stack=2)).observation_size == 8


def test_the_first_steps_after_a_second_reset_are_of_new_episodes():
    """The reset itself began them, also where an episode had just ended and waited for its own."""
    env, plain = make_vector_env("CartPole-v1", STACK, 2), make_vector_env("CartPole-v1", EnvConfig(), 2)
    assert env.spec.autoreset == "next_step"
    until_an_episode_ends(env)
    first, action = plain.reset([3, 4]).copy(), np.array([0, 1])
    np.testing.assert_array_equal(env.reset([3, 4]), np.concatenate([first] * 3, 1))
    second = plain.step(action)[0].copy()
    np.testing.assert_array_equal(env.step(action)[0], np.concatenate([first, first, second], 1))
    third = plain.step(action)[0]
    np.testing.assert_array_equal(env.step(action)[0], np.concatenate([first, second, third], 1))


def test_a_stack_that_is_saved_where_an_episode_ended_begins_the_next_one():
    env, other = (make_vector_env("CartPole-v1", STACK, 2) for _ in range(2))
    until_an_episode_ends(env)
    other.reset([5, 6])
    other.restore(env.state())
    found = other.step(np.array([0, 1]))[0]
    np.testing.assert_array_equal(found, env.step(np.array([0, 1]))[0])
    np.testing.assert_array_equal(found[:, :4], found[:, 8:], err_msg="a step of the episode before")


def until_an_episode_ends(env):
    """Reset, and step until a time limit, which all environments reach together."""
    env.reset([0, 1])
    for _ in range(5):
        _, _, terminated, truncated, _ = env.step(np.array([0, 1]))
    assert (terminated | truncated).all()
