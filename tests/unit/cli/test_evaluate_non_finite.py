"""`lockstep evaluate` and `play` blame the environment that gives numbers which are not finite."""

import os

import numpy as np
import pytest

from lockstep.cli.main import main
from lockstep.envs.spec import ActionSpec, EnvSpec
from quick import others_slow

TRAIN = ["train", f"{__file__}:Drifting", "--set", "total_steps=128", "--set", "num_envs=8", "--set", "num_steps=16"]


class Drifting:
    """Episodes of 5 steps; `BREAKS` makes the last environment's third step break."""

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.spec = EnvSpec(2, ActionSpec("discrete", (2,)), "same_step", True, max_episode_steps=5)

    def reset(self, seeds):
        self.steps = 0
        return np.stack([np.random.default_rng(seed).standard_normal(2, dtype=np.float32) for seed in seeds])

    def step(self, action):
        self.steps += 1
        reward, observation = np.ones(self.num_envs, np.float32), np.zeros((self.num_envs, 2), np.float32)
        if self.steps == 3:
            reward[-1] = np.nan if os.environ.get("BREAKS") == "reward" else 1
            observation[-1] = np.inf if os.environ.get("BREAKS") == "observation" else 0
        no, cut = np.zeros(self.num_envs, bool), np.full(self.num_envs, self.steps % 5 == 0)
        return observation, reward, no, cut, observation.copy()

    def close(self):
        pass


@pytest.fixture(scope="module", params=others_slow(["stop", "skip"], "stop"))
def trained(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "run"
    settings = ["num_shards=2", "evaluate_episodes=4", f"non_finite={request.param}"]
    assert main([*TRAIN, *(word for one in settings for word in ("--set", one)), "--run-dir", str(path)]) == 0
    return path


@pytest.mark.parametrize(("what", "words"), [("reward", "a reward"), ("observation", "an observation")])
def test_it_names_environment_and_step(trained, monkeypatch, capfd, what, words):
    monkeypatch.setenv("BREAKS", what)
    value = "nan" if what == "reward" else "inf"
    found = f"environment 1 gave {words} that is not finite ({value}), in step 3 of an episode of an evaluation (shard "
    stops = trained.parent.name.startswith("stop")
    for command in (["evaluate", str(trained), "--episodes", "4"], ["play", str(trained), "--episodes", "4"]):
        assert main(command) == (1 if stops else 0)
        said = capfd.readouterr().err
        assert "Traceback" not in said
        how = "look for a division by 0" if stops else "with non_finite=skip its episodes count as they are"
        assert f"{found}0); {how}" in said
    if stops:
        assert main(["evaluate", str(trained), "--episodes", "4", "--ranks", "2"]) == 1
        assert found in capfd.readouterr().err
