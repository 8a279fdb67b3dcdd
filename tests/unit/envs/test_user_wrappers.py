"""The user's wrappers: what they need, and statistics that one environment alone would have."""

import gymnasium
import pytest
from gymnasium import wrappers as gym_wrappers

from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task

HERE = __name__


class NeedsScale(gymnasium.RewardWrapper):
    def __init__(self, env, *, scale):
        super().__init__(env)
        self.scale = scale

    def reward(self, reward):
        return self.scale * reward


def tenth(env):
    return NeedsScale(env, scale=0.1)


def normalized(env):
    return gym_wrappers.ClipReward(gym_wrappers.NormalizeReward(env), -1.0, 1.0)


def frozen(env):
    env = gym_wrappers.NormalizeObservation(env)
    env.update_running_mean = False
    return env


def without_argument():
    pass


def returning_nothing(env):
    tenth(env)


class Drifting(gymnasium.ObservationWrapper):
    """Keeps something from earlier episodes."""

    steps = 0

    def observation(self, observation):
        self.steps += 1
        return observation + self.steps


class DriftingReward(gymnasium.RewardWrapper):
    steps = 0

    def reward(self, reward):
        self.steps += 1
        return reward + self.steps


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (f"{HERE}:NeedsScale", "NeedsScale needs the arguments scale, .*; name a function of your own that gives them"),
        ("gymnasium.wrappers:RescaleAction", "needs the arguments min_action, max_action, .*a function of your own"),
        ("gymnasium.wrappers:TimeLimit", "needs the arguments max_episode_steps, .*; use env.max_episode_steps$"),
        ("gymnasium.wrappers:FrameStackObservation", "needs the arguments stack_size, .*; use env.frame_stack$"),
        ("gymnasium.wrappers:NormalizeObservation", "NormalizeObservation keeps .* --set normalize_observation=true"),
        ("gymnasium.wrappers:NormalizeReward", "NormalizeReward keeps running .* --set normalize_return=true of PPO"),
        (f"{HERE}:normalized", "NormalizeReward keeps running statistics"),
        (
            "gymnasium.wrappers:ClipReward",
            "^env.wrappers: gymnasium.wrappers:ClipReward failed: InvalidBound: Both .*; a wrapper is called with the",
        ),
        (
            f"{HERE}:without_argument",
            rf"^env.wrappers: {HERE}:without_argument failed: TypeError: .* takes 0 positional",
        ),
        (f"{HERE}:returning_nothing", f"^env.wrappers: {HERE}:returning_nothing returned None; return the wrapped env"),
    ],
)
def test_wrappers_that_cannot_work_are_refused_by_name(wrapper, message):
    with pytest.raises(ConfigError, match=message):
        env_spec("Pendulum-v1", EnvConfig(wrappers=(wrapper,)))


def test_the_check_says_the_same():
    report = Report()
    config = EnvConfig(wrappers=(f"{HERE}:returning_nothing",))
    check_env_of_task("gymnasium.envs.classic_control:PendulumEnv", config, report, Limits(steps=50, seconds=30.0))
    assert report.faults == [f"env.wrappers: {HERE}:returning_nothing returned None; return the wrapped environment"]


@pytest.mark.parametrize("wrapper", ["tenth", "frozen"])
def test_a_function_of_ones_own_gives_the_arguments(wrapper):
    env = make_vector_env("Pendulum-v1", EnvConfig(wrappers=(f"{HERE}:{wrapper}",)), 1)
    env.reset([0])
    env.close()


@pytest.mark.parametrize("wrapper", ["Drifting", "DriftingReward"])
def test_what_cannot_be_repeated_may_come_from_a_wrapper(wrapper):
    report = Report()
    config = EnvConfig(wrappers=(f"{HERE}:{wrapper}",))
    check_env_of_task("Pendulum-v1", config, report, Limits(steps=50, seconds=30.0))
    assert any(
        said.endswith("; or one of env.wrappers keeps something from earlier episodes") for said in report.warnings
    )
