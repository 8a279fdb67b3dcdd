"""What `lockstep check` says of observations that a network receives as something else than they are called."""

from pathlib import Path

import faulty_envs
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces

from lockstep.config.env import EnvConfig
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.inputs import check_inputs
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task


def bytes_of(*shape, high=255):
    return spaces.Box(0, high, shape, np.uint8)


def said(space):
    report = Report()
    check_inputs(space, report)
    assert report.faults == []
    return report.warnings


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (bytes_of(40, 30), "observation of shape [40, 30] is 1200 numbers from 0 to 255 to the network, not an image"),
        (bytes_of(40, 30), "return [40, 30, 1] (GrayscaleObservation: keep_dim=True)"),
        (bytes_of(4, 40, 30, 3), "return [40, 30, 12], the channels of all pictures"),
        (bytes_of(4, 3, 40, 30), "return [40, 30, 12], the channels of all pictures"),
        (spaces.Dict(camera=bytes_of(40, 30)), "observation['camera'] of shape [40, 30]"),
    ],
)
def test_bytes_that_look_like_an_image_are_told(space, words):
    (warning,) = said(space)
    assert words in warning


@pytest.mark.parametrize(
    "space",
    [
        bytes_of(40, 30, 3),
        bytes_of(8, 8),
        bytes_of(40, 30, high=3),
        bytes_of(1200),
        bytes_of(2, 2, 2, 2),
        spaces.Box(0, 1, (40, 30), np.float32),
        spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(4)]),
    ],
)
def test_other_observations_are_not(space):
    assert said(space) == []


class Matrix(faulty_envs.Grid):
    """Observes a gray picture of two dimensions, and a mask."""

    observation_space = spaces.Dict(picture=bytes_of(20, 20), action_mask=spaces.MultiBinary(2))

    def __init__(self):
        super().__init__()
        self.observation_space = type(self).observation_space

    def observe(self):
        return {"picture": np.full((20, 20), self.cell, np.uint8), "action_mask": np.ones(2, np.int8)}


class Masked(pettingzoo.ParallelEnv):
    """PettingZoo's own form of a mask."""

    possible_agents = ("left", "right")

    def __init__(self, render_mode=None):
        pass

    def observation_space(self, agent):
        return spaces.Dict(observation=spaces.Box(0, 1, (2,)), action_mask=spaces.MultiBinary(2))

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.generator = list(self.possible_agents), np.random.default_rng(seed)
        return self.observe(), {key: {} for key in self.agents}

    def step(self, actions):
        over = dict.fromkeys(self.agents, True)
        found = self.observe(), dict.fromkeys(over, 1.0), over, dict.fromkeys(over, False), {key: {} for key in over}
        self.agents = []
        return found

    def observe(self):
        seen = {"observation": self.generator.random(2, np.float32), "action_mask": np.ones(2, np.int8)}
        return dict.fromkeys(self.agents, seen)


@pytest.mark.parametrize("name", ["Matrix", "Masked"])
def test_an_action_mask_in_observations_is_told_once(name):
    report = Report()
    check_env_of_task(f"{Path(__file__)}:{name}", EnvConfig(), report, Limits(seconds=30.0))
    assert report.faults == []
    assert sum("observations have an action_mask, which is an input" in warning for warning in report.warnings) == 1
    assert sum("of shape [20, 20]" in warning for warning in report.warnings) == (name == "Matrix")
    alone = Report()
    check_env_of_task(f"{Path(__file__)}:Matrix", EnvConfig(policy_keys=("picture",)), alone, Limits(seconds=30.0))
    assert not any("action_mask" in warning for warning in alone.warnings)
