"""Environments in JAX whose observations have groups, of which the value network may receive others than the policy."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.envs.joined_groups import join_groups, split_groups
from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike
from lockstep.jax.envs.check import check_device_env
from lockstep.jax.envs.packed import PackedEnv, wrap_key
from lockstep.run import EnvConfig, Run, override
from lockstep.session.env_checks.report import CheckEndedError, Report
from lockstep.session.task_checks import check_task

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from device_envs import Drift, GroupedDrift, SeenDrift


class Simulated(NamedTuple):
    """The state of an environment with Brax's protocol."""

    obs: dict[str, jax.Array]
    reward: jax.Array
    done: jax.Array


class Robot:
    """With Brax's protocol: a number grows by the action; its groups are `groups`."""

    action_size = 1

    def __init__(self, groups=("privileged_state", "state")):
        self._groups = groups
        self.observation_size = {name: (len(name),) for name in groups}

    def reset(self, key):
        del key
        return self._state(jnp.zeros(()))

    def step(self, state, action):
        return self._state(state.obs[self._groups[0]][0] / len(self._groups[0]) + action[0])

    def _state(self, x):
        obs = {name: jnp.full(len(name), x * len(name)) for name in self._groups}
        return Simulated(obs, x, (x > 1).astype(jnp.float32))


def observed(env):
    """The observation after one step with the action 0.5."""
    packed = PackedEnv(env)
    state = packed.reset(wrap_key(jnp.zeros(2, jnp.uint32)))
    _, observation, *_ = packed.step(state, jnp.full(1, 0.5), wrap_key(jnp.zeros(2, jnp.uint32)))
    return observation


def test_the_critic_receives_the_privileged_state_and_the_policy_the_state():
    env = BraxLike(Robot(), 10)
    assert (env.spec.observation_size, env.spec.critic_size) == (5, 16)
    policy, critic = observed(env)
    np.testing.assert_array_equal(policy, np.full(5, 2.5))
    np.testing.assert_array_equal(critic, np.full(16, 8.0))


def test_groups_are_joined_in_the_order_of_the_settings():
    env = BraxLike(Robot(("state", "map", "goal")), 10, ("goal", "state"), ("map", "goal"))
    assert (env.spec.observation_size, env.spec.critic_size) == (9, 7)
    policy, critic = observed(env)
    np.testing.assert_array_equal(policy, [2.0] * 4 + [2.5] * 5)
    np.testing.assert_array_equal(critic, [1.5] * 3 + [2.0] * 4)


@pytest.mark.parametrize(
    ("groups", "critic_keys", "size"),
    [(("state", "privileged_state"), ("state",), 5), (("b", "a"), (), 2), (("state", "extra"), (), 5)],
    ids=["same group for both", "all groups", "no privileged state"],
)
def test_a_critic_with_the_policys_groups_has_no_observation_of_its_own(groups, critic_keys, size):
    env = BraxLike(Robot(groups), 10, (), critic_keys)
    assert (env.spec.observation_size, env.spec.critic_size) == (size, None)
    assert observed(env).critic is None


def test_groups_that_do_not_exist_and_pictures_are_refused():
    with pytest.raises(
        ConfigError, match=r"env.critic_keys=\['privileged'\]: there is no group 'privileged' among .*; did you"
    ):
        BraxLike(Robot(), 10, (), ("privileged",))
    with pytest.raises(ConfigError, match=r"env.policy_keys=\['x'\]: there is no group 'x' among observation"):
        single = Robot()
        single.observation_size = 3
        BraxLike(single, 10, ("x",))
    robot = Robot()
    robot.observation_size["pixels/view_0"] = (64, 64, 3)
    with pytest.raises(ConfigError, match=r"its observation pixels/view_0 has the size \(64, 64, 3\); a vector"):
        BraxLike(robot, 10)
    with pytest.raises(ConfigError, match=r"env.critic_keys=\['x'\] is for tasks whose observations have groups"):
        make_vector_env("jax/CartPole-v1", EnvConfig(critic_keys=("x",)), 2)


def test_on_the_host_the_final_observation_of_the_critic_is_that_before_the_reset():
    config = EnvConfig(kwargs={"continuous": True}, max_episode_steps=3, clip_observation=150.0)
    env = make_vector_env("device_envs:GroupedDrift", config, 2)
    env.reset([1, 2])
    for _ in range(3):
        observation, _, _, truncated, final = env.step(np.full((2, 1), 0.1, np.float32))
    critic, last = env.critic_observation()
    assert truncated.all()
    np.testing.assert_allclose(critic[:, 0], 100 + 20 * observation[:, 0], rtol=1e-6)
    np.testing.assert_allclose(last[:, 0], 100 + 20 * final[:, 0], rtol=1e-6)
    np.testing.assert_allclose(last[:, 1], 5.0)
    np.testing.assert_array_equal(critic[:, 1], 0.0)


class CriticMissing(GroupedDrift):
    """Says that the critic has an observation of its own, and gives none."""

    observe = Drift.observe


class CriticUnannounced(GroupedDrift):
    """Gives an observation of the critic's own, and does not say so."""

    def __init__(self):
        super().__init__()
        self.spec = Drift().spec


class CriticTooShort(GroupedDrift):
    """Gives fewer numbers than it says."""

    def observe(self, state):
        return super().observe(state)._replace(critic=jnp.zeros(2))


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (CriticMissing, "and spec has critic_size=3; return lockstep.jax.envs.interface.Observation"),
        (CriticUnannounced, "returned an Observation of two groups; set spec.critic_size"),
        (CriticTooShort, r"as the critic's observation; return an array of shape \(3,\)"),
    ],
)
def test_lockstep_check_compares_groups_with_the_spec(cls, words):
    report = Report()
    with pytest.raises(CheckEndedError):
        check_device_env(f"{__name__}:{cls.__name__}", EnvConfig(), report)
    assert len(report.faults) == 1
    assert re.search(words, report.faults[0])


def test_lockstep_check_accepts_groups():
    report = Report()
    check_device_env("device_envs:GroupedDrift", EnvConfig(), report)
    assert not report.faults


@pytest.mark.parametrize("placement", ["auto", "device", "host"])
def test_a_picture_for_the_policy_and_numbers_for_the_critic_are_accepted(placement):
    run = override(Run(task="device_envs:SeenDrift"), {"ml_framework": "jax", "env.placement": placement})
    check_task(run, SeenDrift().spec)


def test_rows_of_a_picture_and_numbers_are_split_as_in_numpy():
    spec, random = SeenDrift().spec, np.random.default_rng(0)
    picture = random.integers(0, 256, (3, 4, *spec.image)).astype(np.uint8)
    rows = join_groups(picture, random.normal(size=(3, 4, 2)))
    for one, other in zip(split_groups(rows, spec), split_groups(jax.device_put(rows), spec), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, np.asarray(other))
