"""Runs with several policies to choose from, for both backends, and what holds of them in each."""

import json

import numpy as np
import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli import main as cli
from lockstep.cli.evaluate import evaluate_run
from lockstep.errors import ConfigError
from lockstep.run import Run
from lockstep.session import policy_file
from lockstep.train import train

NORMALIZED = {"normalize_observation": True, "normalize_value": True, "normalize_return": True}
PPO = PPOConfig(num_steps=16, num_minibatches=2, **NORMALIZED)
DQN = DQNConfig(num_steps=8, learning_starts=64, batch_size=16, capacity=1024)
EVERY = {"evaluate_every": 128, "evaluate_episodes": 8, "checkpoint_every": 128, "num_checkpoints": 9}


def run_of(framework, algorithm=PPO):
    """Of a few updates; two pinned shards."""
    ppo = isinstance(algorithm, PPOConfig)
    what = {"task": "lockstep/Cartpole-v0", "algo": "ppo"} if ppo else {"task": "CartPole-v1", "algo": "dqn"}
    counts = {"num_envs": 8, "total_steps": 384, "num_shards": 2}
    return Run(**what, **counts, **EVERY, ml_framework=framework, algorithm=algorithm)


def twice(run, path):
    """Train, and go on: whichever others there are, the last of each start is taken."""
    train(run, run_dir=path, total_steps=128)
    train(resume=path, total_steps=384)
    return path


def check_the_checkpoint_is_the_file(trained):
    """At the last step both are there: the same parameters, normalizer and description."""
    told, arrays = policy_file.read(trained / policy_file.POLICY_FILE)
    about, found = policy_file.read(trained / "checkpoints" / "step_384")
    assert about == told
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    earlier = policy_file.read(trained / "checkpoints" / "step_128")[1]
    assert any((earlier[name] != arrays[name]).any() for name in arrays)


def check_a_policy_is_said_and_chosen(trained, capsys):
    played = {}
    commands = {
        "the final policy, step 384": [str(trained)],
        "the checkpoint of step 128": [str(trained), "--checkpoint", "128"],
        "the checkpoint of step 384": [str(trained / "checkpoints" / "step_384")],
        str(trained / "policy_best.safetensors"): [str(trained / "policy_best.safetensors")],
    }
    for words, command in commands.items():
        assert cli.main(["evaluate", *command, "--episodes", "16"]) == 0
        told, _, by = capsys.readouterr().out.rstrip("\n").partition(", played by ")
        assert by == words
        played[words] = told
    best = evaluate_run(trained, episodes=16, best=True)
    means = {}
    for line in map(json.loads, (trained / "evaluations.jsonl").read_text().splitlines()):
        means[line["step"]] = sum(line["returns"]) / len(line["returns"])
    step = max(means, key=lambda s: (means[s], -s))
    assert best["policy"] == f"the best policy, of step {step}"
    assert policy_file.evaluation_in(trained / "policy_best.safetensors").step == step
    assert policy_file.evaluation_in(trained / "policy.safetensors") is None
    if (trained / "checkpoints" / f"step_{step}").exists():
        assert best["returns"] == evaluate_run(trained, episodes=16, step=step)["returns"]
    assert evaluate_run(trained, episodes=16, seed=1)["returns"] == evaluate_run(trained, episodes=16)["returns"]
    assert evaluate_run(trained, episodes=16, seed=5)["returns"] != evaluate_run(trained, episodes=16)["returns"]


def check_ranks_share_the_episodes(framework, tmp_path):
    train(run_of(framework), run_dir=tmp_path / "run")
    one, two = (evaluate_run(tmp_path / "run", episodes=9, greedy=False, ranks=ranks) for ranks in (1, 2))
    assert (one.pop("ranks"), two.pop("ranks")) == (1, 2)
    assert one == two, "num_shards is pinned"
    assert one["eval_episodes"] == 9
    with pytest.raises(ConfigError, match="--ranks 3 is more than num_shards=2"):
        evaluate_run(tmp_path / "run", episodes=9, ranks=3)
