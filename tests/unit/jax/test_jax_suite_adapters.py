"""The adapters of gymnax and MuJoCo Playground, with small stand-ins for the packages."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError
from lockstep.jax.envs.make import make_device_env
from lockstep.run import EnvConfig


@pytest.fixture
def stand_in(monkeypatch):
    """Installs a package, and the adapter that imports it, until the end of the test."""

    def install(family, name, **attributes):
        package = ModuleType(name)
        vars(package).update(attributes)
        adapter = f"lockstep.jax.envs.{family}"
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, adapter, package)  # remembers what was there
        del sys.modules[adapter]
        importlib.import_module(adapter)

    return install


class Lake:
    """gymnax's protocol: a walk to the right over four cells, of which the number is observed."""

    def action_space(self, params):
        return SimpleNamespace(n=2, shape=())

    def observation_space(self, params):
        return SimpleNamespace(n=4, shape=())

    def reset_env(self, key, params):
        return jnp.int32(0), (jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        cell, time = jnp.minimum(state[0] + action, 3), state[1] + 1
        return cell, (cell, time), jnp.float32(cell == 3), cell == 3, {}

    def is_truncated(self, state, params):
        return state[1] >= params.max_steps_in_episode


class OldLake(Lake):
    """Written for a JAX whose `clip` had other names."""

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, jnp.clip(action, a_min=0), params)


class Parameters(SimpleNamespace):
    def replace(self, **changes):
        return Parameters(**{**vars(self), **changes})


def test_a_package_that_does_not_fit_this_jax_is_refused_in_a_line(stand_in):
    stand_in(
        "gymnax", "gymnax", registered_envs=["Lake"], make=lambda name: (OldLake(), Parameters(max_steps_in_episode=9))
    )
    with pytest.raises(ConfigError, match=r"^task=gymnax/Lake: gymnax cannot step it with jax .*a_min.*another task$"):
        make_device_env("gymnax/Lake", EnvConfig())


def test_a_choice_that_gymnax_observes_is_one_hot(stand_in):
    """As those of Gymnasium's toy tasks: a number would say that cell 3 is three times cell 1."""
    parameters = Parameters(max_steps_in_episode=9)
    stand_in("gymnax", "gymnax", registered_envs=["Lake"], make=lambda name: (Lake(), parameters))
    env = make_vector_env("gymnax/Lake", EnvConfig(), 2)
    assert env.spec.observation_size == 4
    np.testing.assert_array_equal(env.reset([1, 2]), [[1, 0, 0, 0]] * 2)
    observation, *_ = env.step(np.array([0, 1]))
    np.testing.assert_array_equal(observation, [[1, 0, 0, 0], [0, 1, 0, 0]])


class Grid(Lake):
    """Takes an array of actions, [2, 2]."""

    def action_space(self, params):
        return SimpleNamespace(low=-1.0, high=jnp.ones((2, 2)), shape=(2, 2))

    def step_env(self, key, state, action, params):
        assert action.shape == (2, 2)
        return super().step_env(key, state, jnp.int32(action[1, 0]), params)


def test_gymnax_gets_actions_of_the_shape_of_its_space(stand_in):
    parameters = Parameters(max_steps_in_episode=9)
    stand_in("gymnax", "gymnax", registered_envs=["Grid"], make=lambda name: (Grid(), parameters))
    env = make_vector_env("gymnax/Grid", EnvConfig(), 2)
    action = env.spec.action
    assert (action.sizes, action.low, action.high, action.shape) == ((4,), (-1.0,) * 4, (1.0,) * 4, (2, 2))
    env.reset([1, 2])
    observation, *_ = env.step(np.array([[0, 0, 1, 0], [0, 1, 0, 0]], np.float32))
    np.testing.assert_array_equal(observation, [[0, 1, 0, 0], [1, 0, 0, 0]])


class Simulated(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Push:
    """Playground's protocol: a position grows by the action, and is the reward."""

    action_size = observation_size = 1

    def reset(self, key):
        return Simulated(jnp.zeros(1), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        obs = state.obs + action
        return Simulated(obs, obs[0], (obs[0] > 50).astype(jnp.float32))


class Defaults(dict):
    def __getattr__(self, name):
        return self[name]


@pytest.mark.parametrize(
    ("kwargs", "reward", "limit"),
    [({}, 1.0 + 2 + 3 + 4, 3), ({"action_repeat": 2}, 1.0 + 2, 5), ({"action_repeat": 1, "episode_length": 2}, 1.0, 2)],
)
def test_an_action_is_repeated_as_the_task_of_the_playground_says(stand_in, kwargs, reward, limit):
    """Its length of an episode counts the repetitions."""
    registry = SimpleNamespace(
        ALL_ENVS=["Push"],
        get_default_config=lambda name: Defaults(action_repeat=4, episode_length=10),
        load=lambda name, config_overrides: Push(),
    )
    stand_in("playground", "mujoco_playground", registry=registry)
    env = make_vector_env("playground/Push", EnvConfig(kwargs=kwargs), 1)
    assert env.spec.max_episode_steps == limit
    env.reset([0])
    steps = [env.step(np.ones((1, 1), np.float32)) for _ in range(limit)]
    assert steps[0][1] == reward
    assert [bool(step[3][0]) for step in steps] == [False] * (limit - 1) + [True]
    with pytest.raises(ConfigError, match=r"action_repeat=0 must be a whole number, at least 1"):
        make_device_env("playground/Push", EnvConfig(kwargs={"action_repeat": 0}))
