"""The adapter of EnvPool, with a pool that takes seeds when it is made and gives Dicts of float64."""

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec
from lockstep.errors import ConfigError
from lockstep.torch.envs import envpool, spec_cache
from lockstep.torch.envs.envpool import EnvPoolEnv
from lockstep.torch.envs.host import without_training_aids

CPU = torch.device("cpu")
OPTIONS = namedtuple("Config", ("num_envs", "num_threads", "max_episode_steps", "noise"))


class Pool:
    """Environment i starts at its seed; the last one ends in the second step, and resets itself in the third."""

    observation_space = spaces.Dict(
        {
            "state": spaces.Box(-9, 9, (1,), np.float64),
            "more": spaces.Dict({"goal": spaces.Box(-9, 9, (2,), np.float64)}),
        }
    )
    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, seeds, config):
        self.config = config
        self._seeds, self._position, self._steps = seeds, np.array(seeds, np.float64), 0
        self.closed = False

    def reset(self):
        return self._observation(), {}

    def step(self, action):
        assert action.dtype == np.float64
        self._steps += 1
        self._position = self._position + action[:, 0]
        truncated = np.arange(len(self._seeds)) == len(self._seeds) - 1
        flags = truncated & (self._steps == 2)
        return self._observation(), self._position.astype(np.float32), np.zeros_like(flags), flags, {}

    def _observation(self):
        return {"state": self._position[:, None], "more": {"goal": np.stack([self._position, -self._position], 1)}}

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The pools that were made."""
    package, pools = ModuleType("envpool"), []

    def make(task, *, env_type, num_envs, seed, **options):
        assert (env_type, num_envs) == ("gymnasium", len(seed))
        pools.append(Pool(seed, {"max_episode_steps": 3, "reward_threshold": float("inf"), **options}))
        return pools[-1]

    package.make = make
    package.list_all_envs = lambda: ["Mine-v1"]
    package.make_spec = lambda task, **options: SimpleNamespace(
        config=OPTIONS(**{"num_envs": 1, "num_threads": 0, "max_episode_steps": 3, "noise": 0.0, **options}),
        gymnasium_observation_space=Pool.observation_space,
        gymnasium_action_space=Pool.action_space,
        reward_threshold=float("inf"),
    )
    monkeypatch.setitem(sys.modules, "envpool", package)
    return pools


def test_the_spec_and_both_groups():
    env = EnvPoolEnv("Mine-v1", num_envs=2, device=CPU, critic_keys=("state", "more.goal"))
    assert (env.spec.observation_size, env.spec.critic_size) == (1, 3)
    assert (env.spec.max_episode_steps, env.spec.reward_threshold) == (3, None)
    observation = env.reset([4, 5])
    assert observation.policy.dtype == observation.critic.dtype == torch.float32
    assert observation.policy.tolist() == [[4], [5]]
    assert observation.critic.tolist() == [[4, 4, -4], [5, 5, -5]]


def test_the_largest_limit_is_none():
    env = EnvPoolEnv("Mine-v1", num_envs=2, device=CPU, max_episode_steps=2**31 - 1)
    assert env.spec.max_episode_steps is None


def test_each_environment_has_the_seed_of_its_index_in_every_reset(made):
    env = EnvPoolEnv("Mine-v1", num_envs=2, device=CPU)
    assert not made, "an environment was made to read its spec"
    env.reset([4, 2**31 + 5])
    assert env.reset([6, 7]).policy.tolist() == [[6], [7]]
    assert [pool._seeds for pool in made] == [[4, 5], [6, 7]]
    assert [pool.closed for pool in made] == [True, False]


def test_the_observation_of_the_last_step_is_the_true_one():
    env = EnvPoolEnv("Mine-v1", num_envs=2, device=CPU)
    env.reset([1, 2])
    steps = [env.step(torch.ones(2, 1)) for _ in range(2)]
    assert env.spec.autoreset == "next_step"
    assert [step.final for step in steps] == [None, None]
    assert steps[1].truncated.tolist() == [False, True]
    assert steps[1].observation.policy.tolist() == [[3], [4]]
    assert steps[1].reward.dtype == torch.float32


def test_a_step_takes_actions_of_the_shape_of_the_space(monkeypatch):
    """As those of several agents, [agents, 2]; EnvPool refuses others."""
    monkeypatch.setattr(Pool, "action_space", spaces.Box(-1, 1, (2, 2), np.float64))
    env, given = EnvPoolEnv("Mine-v1", num_envs=3, device=CPU), []
    env.reset([1, 2, 3])
    step = env._env.step
    monkeypatch.setattr(env._env, "step", lambda action: given.append(action) or step(action[:, 0]))
    env.step(torch.arange(12.0).reshape(3, 4))
    assert env.spec.action.shape == (2, 2)
    assert given[0].tolist() == np.arange(12.0).reshape(3, 2, 2).tolist()


def test_unknown_names_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"Mine-v2 does not exist.*did you mean Mine-v1"):
        EnvPoolEnv("Mine-v2", num_envs=2, device=CPU)
    with pytest.raises(ConfigError, match=r"env.kwargs nois is no option of Mine-v1.*did you mean noise"):
        EnvPoolEnv("Mine-v1", num_envs=2, device=CPU, nois=1)
    with pytest.raises(ConfigError, match=r"env.kwargs batch_size=1 is set by Lockstep"):
        EnvPoolEnv("Mine-v1", num_envs=2, device=CPU, batch_size=1)
    with pytest.raises(ConfigError, match=r"there is no group 'goal'; the task has more.goal, state"):
        EnvPoolEnv("Mine-v1", num_envs=2, device=CPU, policy_keys=("goal",))
    monkeypatch.setattr(envpool, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"lockstep-rl\[envpool\]"):
        envpool.maker("envpool/Mine-v1")


def test_what_the_pool_raises_while_its_spec_is_read_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(envpool, "find_spec", lambda name: name)
    monkeypatch.setattr(spec_cache, "version", lambda package: "1")

    def refusing(task, **options):
        if "noise" in options:
            raise TypeError("incompatible function arguments")
        return SimpleNamespace(config=OPTIONS(1, 0, 3, 0.0))

    monkeypatch.setattr(sys.modules["envpool"], "make_spec", refusing)
    for kwargs, message in (
        ({"noise": "x"}, "task=envpool/Mine-v1 could not be made: TypeError: incompatible function arguments"),
        ({"nois": 1}, "task=envpool/Mine-v1: env.kwargs nois is no option"),
        ({"device": "cpu"}, "env.kwargs device=cpu is set by Lockstep; use device"),
        ({"num_envs": 3}, "env.kwargs num_envs=3 is set by Lockstep; use num_envs"),
    ):
        with pytest.raises(ConfigError, match=message):
            env_spec("envpool/Mine-v1", EnvConfig(kwargs=kwargs))


def test_evaluations_play_whole_games_for_their_own_score():
    config = EnvConfig(kwargs={"episodic_life": True, "reward_clip": True, "stack_num": 4})
    found = without_training_aids("envpool/Breakout-v5", config)
    assert found.kwargs == {"episodic_life": False, "reward_clip": False, "stack_num": 4}
    plain = EnvConfig(kwargs={"stack_num": 4})
    assert without_training_aids("envpool/Breakout-v5", plain) == plain
