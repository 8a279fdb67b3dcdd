"""Names under `env.kwargs` that Lockstep or Gymnasium takes for itself: refused, or given to a class of one's own."""

from contextlib import suppress

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import CheckEndedError, Report
from lockstep.session.env_checks.task import check_env_of_task

HERE = __name__
LIMIT = {"max_episode_steps": 5}


class OwnLimit(gymnasium.Env):
    """Takes a limit of its own."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, max_episode_steps=3):
        self.limit, self.count = max_episode_steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, False, self.count >= self.limit, {}


class NeedsLength(OwnLimit):
    """Takes two arguments that have no default."""

    def __init__(self, length, *, width):
        super().__init__()


class NoLimit(OwnLimit):
    """Takes no arguments."""

    def __init__(self):
        super().__init__()


class AnyVector(gymnasium.vector.VectorEnv):
    """Takes any argument."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs, max_episode_steps=20, **kwargs):
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = OwnLimit.observation_space, OwnLimit.action_space
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)


gymnasium.register("Vectorized-v0", NoLimit, vector_entry_point=AnyVector)


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("CartPole-v1", {"kwargs": LIMIT}, "env.kwargs max_episode_steps=5: use env.max_episode_steps"),
        ("CartPole-v1", {"kwargs": LIMIT, "vectorization": "sync"}, "max_episode_steps=5: use env.max_episode_steps"),
        ("CartPole-v1", {"kwargs": LIMIT, "max_episode_steps": 9}, "env.max_episode_steps=9 is given, too"),
        ("Pendulum-v1", {"kwargs": {"disable_env_checker": True}}, "disable_env_checker=True: .*leave it out"),
        ("Pendulum-v1", {"kwargs": {"id": "x"}}, "env.kwargs id=x: .*leave it out"),
        (f"{HERE}:Vectorized-v0", {"kwargs": {"vector_kwargs": 1}}, "vector_kwargs=1 is unknown to Vectorized-v0"),
        (f"{HERE}:NoLimit", {"kwargs": LIMIT}, "env.kwargs max_episode_steps=5: use env.max_episode_steps"),
        (f"{HERE}:NoLimit", {"kwargs": {"policy_keys": ["a"]}}, r"policy_keys=\['a'\]: use env.policy_keys"),
        (f"{HERE}:OwnLimit", {"kwargs": LIMIT, "max_episode_steps": 9}, "env.max_episode_steps=9 is given, too"),
        (f"{HERE}:AnyVector", {"kwargs": LIMIT, "max_episode_steps": 9}, "env.max_episode_steps=9 is given, too"),
        (f"{HERE}:AnyVector", {"kwargs": {"num_envs": 3}}, "env.kwargs num_envs=3 is set by Lockstep; use num_envs"),
        ("CartPole-v1", {"kwargs": {"num_envs": 3}}, "env.kwargs num_envs=3 is set by Lockstep; use num_envs"),
        ("lockstep/Cartpole-v0", {"kwargs": {"num_envs": 3}}, "num_envs=3 is set by Lockstep; use num_envs"),
        ("lockstep/Cartpole-v0", {"kwargs": LIMIT, "max_episode_steps": 9}, "env.max_episode_steps=9 is given, too"),
        ("own_envs:Vector", {"kwargs": LIMIT}, "env.kwargs max_episode_steps=5 is unknown"),
    ],
)
def test_taken_names_are_refused_by_training_and_by_the_check(task, config, message):
    config = EnvConfig(**config)
    with pytest.raises(ConfigError, match=message):
        env_spec(task, config)
    with pytest.raises(ConfigError, match=message):
        check_env_of_task(task, config, Report(), Limits(seconds=0))


def test_a_class_keeps_a_limit_of_its_own():
    env = make_vector_env(f"{HERE}:OwnLimit", EnvConfig(kwargs=LIMIT), 1)
    env.reset([1])
    assert [bool(env.step(np.zeros(1, np.int64))[3][0]) for _ in range(5)] == [False] * 4 + [True]
    vector = make_vector_env(f"{HERE}:AnyVector", EnvConfig(kwargs=LIMIT), 2)
    assert vector.raw.limit == 5
    assert env_spec("lockstep/Cartpole-v0", EnvConfig(kwargs=LIMIT)).max_episode_steps == 5


@pytest.mark.parametrize(("given", "missing"), [("width", "length"), ("length", "width")])
def test_an_argument_without_a_default_is_asked_for_by_its_setting(given, missing):
    config, report = EnvConfig(kwargs={given: 1}), Report()
    with pytest.raises(ConfigError, match=f"'{missing}'; give it by --set env.kwargs.{missing}=VALUE$"):
        env_spec(f"{HERE}:NeedsLength", config)
    with suppress(CheckEndedError):
        check_env_of_task(f"{HERE}:NeedsLength", config, report, Limits(seconds=0))
    assert len(report.faults) == 1 and report.faults[0].endswith(f"give it by --set env.kwargs.{missing}=VALUE")
