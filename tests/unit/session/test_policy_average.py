"""`policy_average`: the policy that is evaluated and saved is an average of the one that acts and learns."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import lockstep
from lockstep.algorithms.td3 import TD3Config
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig, Run, override
from lockstep.session.policy_file import read

pytest.importorskip("torch")
pytest.importorskip("jax")

SETTINGS = {"learning_starts": 40, "batch_size": 16, "capacity": 400, "learning_rate": 0.01, "policy_average": 0.5}


def made(algo: Literal["sac", "td3"], **changes: Any) -> Run:
    run = Run(
        task="Pendulum-v1",
        algo=algo,
        num_envs=4,
        total_steps=200,
        network=NetworkConfig(hidden=(8, 8)),
        checkpoint_every=200,
        evaluate_every=200,
        evaluate_episodes=2,
        device="cpu",
    )
    return override(run, SETTINGS | changes)


def arrays(path: Path) -> dict[str, np.ndarray]:
    return read(path)[1]


@pytest.mark.parametrize("algo", ["td3", "sac"])
@pytest.mark.parametrize("ml_framework", ["torch", "jax"])
def test_the_average_is_evaluated_and_saved(algo, ml_framework, tmp_path):
    lockstep.train(made(algo, ml_framework=ml_framework), run_dir=tmp_path / "run")
    saved = arrays(tmp_path / "run" / "policy.safetensors")
    checkpoint = arrays(tmp_path / "run" / "checkpoints" / "step_200")
    assert saved.keys() == checkpoint.keys() and all((saved[name] == checkpoint[name]).all() for name in saved)

    lockstep.train(made(algo, ml_framework=ml_framework, policy_average=0.0), run_dir=tmp_path / "plain")
    plain = arrays(tmp_path / "plain" / "policy.safetensors")
    other = {name for name in plain if (saved[name] != plain[name]).any()}
    assert other == {name for name in plain if name.startswith("actor.")}, "the training is the same, the actor is not"

    told = [json.loads((tmp_path / name / "evaluations.jsonl").read_text())["returns"] for name in ("run", "plain")]
    assert told[0] != told[1]


@pytest.mark.parametrize("ml_framework", ["torch", "jax"])
def test_a_run_that_starts_from_a_policy_learns_from_its_average(ml_framework, tmp_path):
    lockstep.train(made("td3", ml_framework=ml_framework), run_dir=tmp_path / "first")
    later = made("td3", ml_framework=ml_framework, learning_starts=1000, seed=5)  # nothing is learned
    lockstep.train(later, run_dir=tmp_path / "second", init_from=tmp_path / "first")
    first = arrays(tmp_path / "first" / "policy.safetensors")
    second = arrays(tmp_path / "second" / "policy.safetensors")
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_part_is_within_0_and_1(value):
    with pytest.raises(ConfigError, match="policy_average"):
        TD3Config(policy_average=value)
