"""Observations that are arrays of torch or JAX, or lists, instead of numpy's."""

import importlib

import numpy as np
import pytest
from faulty_envs import Board, Grid, Rows
from gymnasium import spaces

from lockstep.cli import main as cli
from lockstep.envs.make import make_vector_env
from lockstep.run import EnvConfig
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task


def converted(array, library):
    """A numpy array as one of another library, which need not be installed."""
    if library == "list":
        return array.tolist()
    if library == "jax":
        return importlib.import_module("jax.numpy").asarray(array)
    tensor = importlib.import_module("torch").from_numpy(array)
    return tensor.requires_grad_() if library == "gradient" else tensor


class Converting(Grid):
    def __init__(self, library="torch"):
        super().__init__()
        self.library = library

    def observe(self):
        return converted(super().observe(), self.library)


class Picture(Converting):
    def __init__(self, library="torch"):
        super().__init__(library)
        self.observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def observe(self):
        return converted(np.full((12, 12, 3), self.cell + self.steps, np.uint8), self.library)


class InADict(Converting):
    def __init__(self, library="torch"):
        super().__init__(library)
        cell = self.observation_space
        self.observation_space = spaces.Dict(cell=cell, pair=spaces.Tuple((cell, spaces.Discrete(60))))

    def observe(self):
        seen = super().observe()
        return {"cell": seen, "pair": (seen, converted(np.array(self.cell), self.library))}


class ConvertedBuffer(Converting):
    def __init__(self, library="torch"):
        super().__init__(library)
        self.buffer = np.zeros(2, np.float32)

    def observe(self):
        self.buffer[:] = self.cell, self.steps
        return converted(self.buffer, self.library)


class TwoRewards(Converting):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, converted(np.ones(2, np.float32), self.library), *rest


class PictureBoard(Board):
    def __init__(self, num_envs, library="torch"):
        super().__init__(num_envs)
        self.library = library
        self.single_observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def pictures(self, observation):
        return converted(np.repeat(observation, 432, 1).astype(np.uint8).reshape(-1, 12, 12, 3), self.library)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return self.pictures(observation), info

    def step(self, actions):
        observation, *rest, info = super().step(actions)
        if info:
            info["final_obs"] = self.pictures(info["final_obs"])
        return self.pictures(observation), *rest, info


class ConvertedRows(Rows):
    library = "torch"

    def reset(self, seeds):
        return converted(super().reset(seeds), self.library)


def checked(name, library):
    if library != "list":
        pytest.importorskip("jax" if library == "jax" else "torch")
    report = Report()
    check_env_of_task(
        f"{__file__}:{name}", EnvConfig(kwargs={"library": library}), report, Limits(seconds=5.0, steps=200)
    )
    return report


@pytest.mark.parametrize("library", ["torch", "jax", "list"])
@pytest.mark.parametrize("name", ["Converting", "InADict", "Picture", "PictureBoard"])
def test_they_are_converted(name, library):
    report = checked(name, library)
    warnings = [warning for warning in report.warnings if "to which it is converted" not in warning]
    assert (report.faults, [w for w in warnings if "cannot be saved" not in w]) == ([], [])
    given, plain = (
        make_vector_env(f"{__file__}:{name}", EnvConfig(kwargs={"library": one}), 2) for one in (library, "list")
    )
    np.testing.assert_array_equal(given.reset([1, 2]), plain.reset([1, 2]))
    for _ in range(25):
        ours, theirs = (env.step(np.array([0, 1])) for env in (given, plain))
        for one, other in zip(ours, theirs, strict=True):
            assert type(one) is np.ndarray and one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_a_tensor_that_numpy_cannot_read_is_a_fault():
    (fault,) = checked("Converting", "gradient").faults
    assert fault == (
        "reset returned an array of shape (2,) and type torch.float32 as observation; return an array of shape (2,) "
        "and type float32, such as observation.detach().cpu().numpy()"
    )


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_several_rewards_at_once_are_a_fault(library):
    (fault,) = checked("TwoRewards", library).faults
    assert "as reward; return a number: float(reward)" in fault


def test_a_tensor_that_changes_in_place_is_noticed():
    warnings = checked("ConvertedBuffer", "torch").warnings
    assert any("changed the observation that was returned before" in warning for warning in warnings)


def test_an_environment_of_lockstep_s_own_protocol_returns_numpy_arrays(capsys):
    pytest.importorskip("torch")
    assert cli.main(["train", f"{__file__}:ConvertedRows"]) == 2
    wanted = "reset returned a Tensor as observation; return a numpy array: np.asarray(observation, np.float32)"
    assert wanted in capsys.readouterr().err
