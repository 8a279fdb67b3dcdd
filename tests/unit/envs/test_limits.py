"""Limits of actions and observations, and groups of observations, that a run sets for its environments."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError

TENSORS = f"{Path(__file__).parents[1] / 'torch' / 'envs' / 'tensor_envs.py'}:Walk"


class Grouped(gymnasium.Env):
    """Observes groups, each filled with a number of its own."""

    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-9, 9, (size,), np.float32) for name, size in (("a", 1), ("b", 2), ("c", 3))}
    )
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observed(), {}

    def step(self, action):
        return self.observed(), float(action[0]), False, False, {}

    def observed(self):
        return {name: np.full(size, size, np.float32) for name, size in (("a", 1), ("b", 2), ("c", 3))}


class Odd(Grouped):
    """Has a group without numbers, and one without a fixed length."""

    observation_space = gymnasium.spaces.Dict(
        {
            "a": Grouped.observation_space["a"],
            "graph": gymnasium.spaces.Graph(gymnasium.spaces.Box(-9, 9, (1,), np.float32), None),
            "none": gymnasium.spaces.Box(-9, 9, (0,), np.float32),
        }
    )


class Pictured(Grouped):
    """Observes an image, the numbers of its channels, and two groups of a number."""

    observation_space = gymnasium.spaces.Dict(
        {
            "a": Grouped.observation_space["a"],
            "c": gymnasium.spaces.Box(-9, 9, (1,), np.float32),
            "picture": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        }
    )

    def observed(self):
        numbers = {"a": np.ones(1, np.float32), "c": np.full(1, 0.5, np.float32)}
        return numbers | {"picture": np.broadcast_to(np.arange(3, dtype=np.uint8), (8, 8, 3))}


class Goal(gymnasium.Env):
    """Goal-conditioned, as the tasks of Gymnasium-Robotics; counts its steps, and truncates after two."""

    observation_space = gymnasium.spaces.Dict(
        {
            "observation": gymnasium.spaces.Box(-9, 9, (2,), np.float32),
            "desired_goal": gymnasium.spaces.Discrete(3),
            "achieved_goal": gymnasium.spaces.Box(-9, 9, (1,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observed(), {}

    def step(self, action):
        self.steps += 1
        return self.observed(), 0.0, False, self.steps == 2, {}

    def observed(self):
        observation = np.array([7, self.steps], np.float32)
        return {"observation": observation, "achieved_goal": np.array([5], np.float32), "desired_goal": 1}


GROUPED, ODD, PICTURED, GOAL = (f"{__file__}:{name}" for name in ("Grouped", "Odd", "Pictured", "Goal"))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_policy_keys_choose_and_order_groups(vectorization):
    config = EnvConfig(policy_keys=("c", "a"), vectorization=vectorization)
    env = make_vector_env(GROUPED, config, 2)
    assert env.reset([0, 1]).tolist() == [[3, 3, 3, 1]] * 2
    assert env.step(np.zeros((2, 1), np.float32))[0].tolist() == [[3, 3, 3, 1]] * 2
    env.close()
    assert env_spec(GROUPED, EnvConfig(policy_keys=("b",))).observation_size == 2


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_critic_keys_give_the_critic_an_observation_that_the_policy_does_not_receive(vectorization):
    config = EnvConfig(critic_keys=("c", "b"), clip_observation=2.5, vectorization=vectorization)
    env = make_vector_env(GROUPED, config, 2)
    assert (env.spec.observation_size, env.spec.critic_size) == (1, 5)
    assert env.reset([0, 1]).tolist() == [[1]] * 2
    observation, *_, final = env.step(np.zeros((2, 1), np.float32))
    assert observation.tolist() == final.tolist() == [[1]] * 2
    assert [part.tolist() for part in env.critic_observation()] == [[[2.5, 2.5, 2.5, 2, 2]] * 2] * 2
    env.close()
    same = env_spec(GROUPED, EnvConfig(policy_keys=("a",), critic_keys=("a",)))
    assert (same.observation_size, same.critic_size) == (1, None)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_critic_keys_give_the_critic_numbers_while_the_policy_sees_an_image(vectorization):
    config = EnvConfig(policy_keys=("picture",), critic_keys=("c", "a"), vectorization=vectorization)
    env = make_vector_env(PICTURED, config, 2)
    assert (env.spec.image, env.spec.observation_size, env.spec.critic_size) == ((3, 8, 8), 192, 2)
    first = env.reset([0, 1])
    assert (first.shape, first.dtype) == ((2, 3, 8, 8), np.uint8)
    assert first[0, :, 2, 5].tolist() == [0, 1, 2], "channels first"
    observation, *_, final = env.step(np.zeros((2, 1), np.float32))
    assert (observation == first).all() and (final == first).all()
    assert [part.tolist() for part in env.critic_observation()] == [[[0.5, 1]] * 2] * 2
    env.close()


def test_critic_receives_the_final_observation_of_an_episode():
    env = make_vector_env(GOAL, EnvConfig(critic_keys=("observation",), frame_stack=2), 1)
    assert (env.spec.observation_size, env.spec.critic_size) == (2 * 4, 2)
    env.reset([0])
    for steps, final_steps in ((1, 1), (0, 2)):
        env.step(np.zeros((1, 1), np.float32))
        assert [part.tolist() for part in env.critic_observation()] == [[[7, steps]], [[7, final_steps]]]


def test_goal_conditioned_observations_are_joined_in_the_order_of_their_names():
    env = make_vector_env(GOAL, EnvConfig(), 1)
    assert env.reset([0]).tolist() == [[5, 0, 1, 0, 7, 0]], "achieved goal, desired goal (one-hot), observation"
    env.step(np.zeros((1, 1), np.float32))
    observation, *_, final = env.step(np.zeros((1, 1), np.float32))
    assert (observation.tolist(), final.tolist()) == ([[5, 0, 1, 0, 7, 0]], [[5, 0, 1, 0, 7, 2]])


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        (GROUPED, {"policy_keys": ("d",)}, "there is no group 'd' among "),
        (GROUPED, {"critic_keys": ("d",)}, "there is no group 'd'"),
        (GROUPED, {"policy_keys": ("a", "b", "a")}, "env.policy_keys=.* names a more than once; name each group once"),
        (GROUPED, {"critic_keys": ("b", "b")}, "env.critic_keys=.* names b more than once"),
        (GROUPED, {"critic_keys": ("c", "b", "a")}, r"choose those of the policy with env.policy_keys=\['a'\]"),
        (
            ODD,
            {"policy_keys": ("a",), "critic_keys": ("none",)},
            "critic_keys=.* hold no numbers for the value network",
        ),
        (ODD, {"policy_keys": ("none",)}, "env.policy_keys=.* hold no numbers for the policy; choose others"),
        (ODD, {"policy_keys": ("none",), "critic_keys": ("a",)}, "env.policy_keys=.* hold no numbers"),
        (ODD, {"policy_keys": ("graph",)}, "env.policy_keys=.*: the group 'graph' is Graph.* no fixed length; choose"),
        (ODD, {"policy_keys": ("a",), "critic_keys": ("graph",)}, "env.critic_keys=.*: the group 'graph' is Graph"),
        ("CartPole-v1", {"critic_keys": ("a",)}, "env.critic_keys.*observations have groups"),
        ("CartPole-v1", {"policy_keys": ("a",)}, "observations have groups"),
        ("lockstep/Reach-v0", {"policy_keys": ("a",)}, "observations have groups"),
        ("lockstep/Reach-v0", {"critic_keys": ("a",)}, "env.critic_keys"),
        (TENSORS, {"policy_keys": ("a",)}, "gives the policy its group policy"),
        ("CartPole-v1", {"clip_action": 1.0}, "env.clip_action=1.0 is for continuous actions"),
    ],
)
def test_settings_that_do_not_fit_a_task_are_refused_by_name(task, config, message):
    with pytest.raises(ConfigError, match=message):
        env_spec(task, EnvConfig(**config))


def test_a_value_network_that_would_observe_nothing_is_refused():
    with pytest.raises(ConfigError, match="critic_size=0: the value network would observe nothing; leave it out"):
        EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", separately_seedable=True, critic_size=0)


@pytest.mark.parametrize("name", ["clip_action", "clip_observation"])
def test_limits_must_be_positive(name):
    with pytest.raises(ConfigError, match=rf"env.{name}=0.0 must be greater than 0"):
        EnvConfig(**{name: 0.0})


@pytest.mark.parametrize("task", ["lockstep/Cartpole-v0", "Pendulum-v1", GROUPED])
def test_clip_action_narrows_the_bounds_of_actions(task):
    spec = env_spec(task, EnvConfig(clip_action=0.5))
    assert (spec.action.low, spec.action.high) == ((-0.5,), (0.5,))
    wide, narrow = env_spec(task, EnvConfig(clip_action=1e9)), env_spec(task, EnvConfig())
    assert max(wide.action.high) == min(1e9, *narrow.action.high), "the task's own bounds stay"


def test_clip_observation_limits_first_later_and_final_observations():
    plain, limited = (
        make_vector_env("Pendulum-v1", EnvConfig(clip_observation=limit, max_episode_steps=3), 4)
        for limit in (None, 0.25)
    )
    expected, found = plain.reset([0, 1, 2, 3]), limited.reset([0, 1, 2, 3])
    np.testing.assert_array_equal(found, expected.clip(-0.25, 0.25))
    action = np.zeros((4, 1), np.float32)
    for _ in range(3):
        expected, found = plain.step(action), limited.step(action)
        for a, b in ((expected[0], found[0]), (expected[4], found[4])):
            np.testing.assert_array_equal(b, a.clip(-0.25, 0.25))
        np.testing.assert_array_equal(expected[1], found[1])
    assert found[3].all()


def test_limited_environments_are_saved_and_restored():
    config = EnvConfig(clip_observation=0.25, clip_action=1.0)
    first, second = (make_vector_env("Pendulum-v1", config, 4) for _ in range(2))
    first.reset([0, 1, 2, 3])
    second.reset([4, 5, 6, 7])
    second.restore(first.state())
    action = np.ones((4, 1), np.float32)
    np.testing.assert_array_equal(first.step(action)[0], second.step(action)[0])


def test_limits_hold_for_environments_on_tensors():
    torch = pytest.importorskip("torch")
    from lockstep.torch.envs.interface import can_save
    from lockstep.torch.envs.make import make_tensor_env

    config = EnvConfig(clip_observation=0.01, clip_action=0.5, max_episode_steps=2)
    env = make_tensor_env("lockstep/Cartpole-v0", config, 4, torch.device("cpu"))
    assert env.spec.action.high == (0.5,)
    assert can_save(env)
    seen = [env.reset([0, 1, 2, 3])]
    for _ in range(3):
        step = env.step(torch.ones(4, 1))
        seen += [step.observation] if step.final is None else [step.observation, step.final]
    assert all(part.policy.abs().max() <= 0.01 for part in seen)
    assert any(part.policy.abs().max() == 0.01 for part in seen)
