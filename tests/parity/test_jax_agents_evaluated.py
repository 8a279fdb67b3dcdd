"""Evaluations of several agents: each counts as often as the others, in both backends and on any number of ranks."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.evaluate import evaluate_run
from lockstep.run import EnvConfig, NetworkConfig, Run, dump, load, override
from lockstep.train import train

LEAVING = f"{Path(__file__).parents[1] / 'ranks' / 'agent_envs.py'}:Leaving"


def trained(path, framework):
    """Of one update; 4 shards, each with one environment of 3 agents, whose episodes last 2, 3 and 4 steps."""
    counts = {"num_envs": 12, "num_shards": 4, "total_steps": 48, "evaluate_episodes": 4}
    algorithm, network = PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1), NetworkConfig(hidden=(4,))
    env = EnvConfig(kwargs={"num_agents": 3})
    run = Run(task=LEAVING, env=env, ml_framework=framework, algorithm=algorithm, network=network, **counts)
    train(run, run_dir=path)
    return path


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_each_agent_counts_equally(framework, tmp_path):
    run = trained(tmp_path / "run", framework)
    (evaluation,) = (json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines())
    assert sorted(evaluation["lengths"]) == [2, 2, 3, 3, 4, 4], "agents are left out"
    for episodes, played in ((4, 6), (8, 9), (12, 12)):
        found = evaluate_run(run, episodes=episodes)
        assert sorted(found["lengths"]) == sorted([2, 3, 4] * (played // 3))
    assert evaluate_run(run, episodes=8, ranks=2)["returns"] == evaluate_run(run, episodes=8)["returns"]


def test_a_policy_plays_with_another_number_of_agents_than_it_was_trained_with(tmp_path):
    run = trained(tmp_path / "run", "torch")
    file = run / "run.yaml"
    file.write_text(dump(override(load(file), {"env.kwargs": {"num_agents": 2}})))
    found = evaluate_run(run, episodes=9)
    assert found["lengths"] == [2, 3] * (len(found["lengths"]) // 2)
    assert len(found["lengths"]) >= 9
