"""Settings of `--agent` that lack what a workflow needs are refused by name, without the libraries."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.workflows import rl_games, rsl_rl, skrl

SKRL = {"models": {}, "agent": {"rollouts": 16}, "trainer": {}}


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """`begun(workflow, agent, max_iterations)` trains up to `run.begin`; returns what that is called with."""
    monkeypatch.setitem(sys.modules, "rsl_rl", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "rsl_rl.runners", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "skrl", SimpleNamespace(config=SimpleNamespace(torch=SimpleNamespace())))

    class BegunError(Exception): ...

    def begin(*given):
        raise BegunError(*given)

    def train(workflow, agent, max_iterations=None):
        run = SimpleNamespace(
            world=SimpleNamespace(rank=0, size=1),
            request=SimpleNamespace(max_iterations=max_iterations, ml_framework="torch"),
            seed=3, num_envs=4, device=torch.device("cpu"), path=tmp_path, begin=begin,
            open_env=lambda: contextlib.nullcontext((None, agent)),
        )  # fmt: skip
        with pytest.raises(BegunError) as reached:
            workflow.train(run)
        return reached.value.args

    return train


@pytest.mark.parametrize(
    ("workflow", "agent", "message"),
    [
        (rsl_rl, {"max_iterations": 3}, "the settings of rsl_rl have no num_steps_per_env"),
        (rsl_rl, {"num_steps_per_env": 24}, "the settings of rsl_rl have no max_iterations"),
        (skrl, SKRL, "trainer has no timesteps; add it, or give --max_iterations N"),
        (rl_games, {"params": None}, "under `params`, with a `config` among them"),
        (rl_games, {"params": {}}, "under `params`, with a `config` among them"),
        (rl_games, {"params": {"config": {}}}, "params.config has no horizon_length"),
    ],
)
def test_what_an_agent_file_lacks_is_named(begun, workflow, agent, message):
    with pytest.raises(ConfigError, match=f"--agent: .*{message}"):
        begun(workflow, agent)


def test_a_file_for_another_version_of_rsl_rl_is_refused(begun, monkeypatch):
    agent = {"policy": {"class_name": "ActorCritic"}, "num_steps_per_env": 24, "max_iterations": 5}
    monkeypatch.setattr(rsl_rl, "version", lambda package: "5.5.1")
    with pytest.raises(ConfigError, match=r"--agent: policy is a key of rsl_rl before version 5, and 5\.5\.1 is"):
        begun(rsl_rl, agent)
    monkeypatch.setattr(rsl_rl, "version", lambda package: "3.1.2")
    assert begun(rsl_rl, agent)[1:] == (24, 5)


def test_iterations_of_the_command_line_are_enough(begun):
    assert begun(rsl_rl, {"num_steps_per_env": 24}, 5)[1:] == (24, 5)
    assert begun(skrl, SKRL, 5)[1:] == (16, 5)
