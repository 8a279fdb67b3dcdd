"""`examples/my_env.py` and `examples/my_network.py`, named as settings."""

import json
import warnings
from pathlib import Path

import my_env
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lockstep.run import EnvConfig, NetworkConfig, Run, override
from lockstep.train import train
from quick import others_slow


def test_gymnasium_accepts_the_environment():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has no spec, as any environment that is not registered
        check_env(my_env.MyEnv(), skip_render_check=True)


def test_both_forms_play_the_same_game():
    single, boards = my_env.MyEnv(width=7), my_env.MyVectorEnv(3, width=7)
    seen = boards.reset([1])
    for episode in range(5):
        first, _ = single.reset(seed=episode)
        single.ball = int(boards.ball[1])
        first = single._observe()
        np.testing.assert_array_equal(first, seen[1])
        landed = False
        while not landed:
            action = np.random.default_rng(episode).integers(3, size=3)
            observation, reward, landed, _, _ = single.step(int(action[1]))
            seen, rewards, ended, truncated, final = boards.step(action)
            assert (reward, landed, False) == (rewards[1], ended[1], truncated[1])
            np.testing.assert_allclose(final[1], observation)
    assert seen.dtype == rewards.dtype == np.float32


def test_two_ranks_with_an_environment_and_a_network_of_ones_own(examples, python):
    out = python(
        "-m", "lockstep.train", examples / "my_env.py:MyEnv", "--ranks", 2, "--run-dir", "run",
        "--set", f"network.module={examples}/my_network.py:MyNetwork", "--set", "total_steps=2048",
    )  # fmt: skip
    assert "parameters equal on both ranks" in out and "data different on both ranks" in out
    assert len({rank["params_fingerprint"] for rank in json.loads(Path("run/summary.json").read_text())["ranks"]}) == 1


@pytest.mark.slow
def test_the_vectorized_form_is_learned(examples):
    run = Run(task=f"{examples}/my_env.py:MyVectorEnv", env=EnvConfig(kwargs={"width": 3}), evaluate_every=5_000)
    summary = train(run, run_dir="run", total_steps=60_000, learning_rate=1e-3)
    assert summary["status"] == "solved", summary["eval_return_mean"]


def test_the_network_serves_continuous_actions(examples):
    run = Run(
        task="lockstep/Reach-v0",
        network=NetworkConfig(module=f"{examples}/my_network.py:MyNetwork"),
        total_steps=2048,
        evaluate_episodes=4,
    )
    assert train(run, run_dir="run")["status"] == "finished"


@pytest.mark.parametrize("name", others_slow(["MyEnv", "MyVectorEnv"], "MyEnv"))
def test_a_resumed_run_goes_on_in_mid_game(name, examples, tmp_path):
    task = f"{Path(my_env.__file__)}:{name}"
    run = Run(task=task, num_envs=8, num_shards=2, total_steps=3 * 1024, evaluate_every=None, evaluate_episodes=4)
    whole = train(run, run_dir=tmp_path / "whole", stop_when_solved=False, learning_rate_schedule="constant")
    short = {"stop_when_solved": False, "learning_rate_schedule": "constant", "total_steps": 1024}
    train(run, run_dir=tmp_path / "cut", **short)
    resumed = override(run, {**short, "total_steps": 3 * 1024})
    told = train(resumed, resume=tmp_path / "cut")
    assert told["resumed_from"] == "checkpoints/step_1024"
    assert told["params_fingerprint"] == whole["params_fingerprint"]
