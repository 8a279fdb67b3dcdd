"""The settings that rl_games gets, without the library."""

from types import SimpleNamespace

import pytest
import torch

from lockstep.workflows.rl_games import _settings


@pytest.mark.parametrize("chosen, threads", [({}, 0), ({"torch_threads": 3}, 3)])
def test_threads_are_those_of_the_environment_variable_unless_the_file_sets_them(tmp_path, chosen, threads):
    run = SimpleNamespace(
        world=SimpleNamespace(rank=1, size=2),
        seed=8,
        num_envs=4,
        device=torch.device("cpu"),
        path=tmp_path,
        request=SimpleNamespace(max_iterations=3),
    )
    settings = _settings(run, {"params": {"config": {}, **chosen}})
    assert settings["params"]["torch_threads"] == threads  # rl_games leaves torch's threads alone with 0
