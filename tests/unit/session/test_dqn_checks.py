"""What cannot be learned by DQN is refused before anything starts, in one line: the setting, its value, the way out."""

import os
import re
from types import SimpleNamespace

import pytest

from lockstep.cli import main as cli
from lockstep.errors import ConfigError
from lockstep.run import Run, override
from lockstep.session import host_checks

pytestmark = pytest.mark.usefixtures("here")

BASE = override(Run(task="CartPole-v1"), {"algo": "dqn"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": "0"}, ["batch_size=0", "at least 1"]),
        ({"capacity": "16"}, ["capacity=16", "batch_size=32"]),
        ({"capacity": "0"}, ["capacity=0"]),
        ({"n_step": "0"}, ["n_step=0"]),
        ({"num_steps": "0"}, ["num_steps=0"]),
        ({"replay_device": "gpu"}, ["replay_device='gpu'", "auto", "cpu", "cuda"]),
        ({"replay_device": "cuda", "replay_path": "/a"}, ["replay_device=cuda", "replay_path=/a", "leave one"]),
        ({"learning_starts": "-1"}, ["learning_starts=-1"]),
        ({"updates_per_step": "0"}, ["updates_per_step=0", "greater than 0"]),
        ({"updates_per_step": ".inf"}, ["updates_per_step=inf", "finite"]),
        ({"learning_rate": "0"}, ["learning_rate=0"]),
        ({"gamma": "1.01"}, ["gamma=1.01", "[0, 1]"]),
        ({"target_rate": "0"}, ["target_rate=0", "(0, 1]", "null"]),
        ({"target_rate": "1.5"}, ["target_rate=1.5"]),
        ({"target_update_every": "0"}, ["target_update_every=0"]),
        ({"max_grad_norm": "0"}, ["max_grad_norm=0", "null"]),
        ({"epsilon_start": "1.5"}, ["epsilon_start=1.5", "[0, 1]"]),
        ({"epsilon_end": "-0.1"}, ["epsilon_end=-0.1"]),
        ({"epsilon_steps": "-1"}, ["epsilon_steps=-1"]),
        ({"epsilon_schedule": "cosine"}, ["epsilon_schedule='cosine'", "linear", "exponential"]),
        ({"loss": "mae"}, ["loss='mae'", "huber", "mse"]),
        ({"value_distribution": "c51"}, ["value_distribution='c51'", "categorical", "quantile"]),
        ({"v_min": "10", "v_max": "10"}, ["v_min=10", "v_max=10"]),
        ({"v_min": "20"}, ["v_min=20", "v_max=10"]),
        ({"v_max": ".inf"}, ["v_max=inf", "finite"]),
        ({"num_atoms": "1"}, ["num_atoms=1", "at least 2"]),
        ({"num_quantiles": "0"}, ["num_quantiles=0"]),
        ({"prioritized": "true", "priority_exponent": "-0.1"}, ["priority_exponent=-0.1"]),
        ({"prioritized": "true", "priority_exponent": ".inf"}, ["priority_exponent=inf"]),
        ({"prioritized": "true", "importance_exponent": "1.1"}, ["importance_exponent=1.1", "[0, 1]"]),
        ({"prioritized": "true", "importance_exponent": ".nan"}, ["importance_exponent=nan"]),
        ({"prioritized": "true", "priority_eps": "0"}, ["priority_eps=0"]),
        ({"noisy_std": "-1"}, ["noisy_std=-1"]),
        ({"noisy_std": ".inf"}, ["noisy_std=inf"]),
        ({"adam_eps": "0"}, ["adam_eps=0"]),
        ({"prioritised": "true"}, ["unknown setting prioritised", "algorithm.prioritized"]),
        ({"batchsize": "32"}, ["unknown setting batchsize", "algorithm.batch_size"]),
        ({"algorithm.gae_lambda": "0.9"}, ["algorithm.gae_lambda"]),
        ({"num_epochs": "3"}, ["num_epochs"]),
        ({"algo": "dqm"}, ["algo='dqm'", "dqn"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as caught:
        override(BASE, changes)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def refused(capfd, *arguments: str) -> str:
    """What `lockstep train` says on refusing: exit code 2, one line, no run directory, nothing else."""
    code = cli.main(["train", *arguments])
    out, said = capfd.readouterr()
    assert code == 2, f"{code}: {out}{said}"
    assert "Traceback" not in said
    assert not os.path.exists("runs"), "a run directory was made for a run that cannot be"
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_batch_that_does_not_divide_is_refused_before_any_rank_starts(capfd, ranks):
    line = refused(
        capfd, "CartPole-v1", "--algo", "dqn", "--ranks", ranks, "--set", "num_shards=4", "--set", "batch_size=30"
    )
    assert all(word in line for word in ("batch_size=30", "4 shards", "use 28 or 32")), line


@pytest.mark.parametrize("task", ["Pendulum-v1", "lockstep/Match-v0"])
def test_actions_that_are_no_single_choice_are_refused(capfd, task):
    line = refused(capfd, task, "--algo", "dqn")
    assert "dqn" in line and task in line and "discrete" in line, line
    assert "--algo ppo" in line or "algo=ppo" in line, f"no way out: {line}"


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_replay_larger_than_memory_is_refused_in_bytes(capfd, ranks):
    line = refused(
        capfd, "CartPole-v1", "--algo", "dqn", "--ranks", ranks, "--set", "capacity=1e12", "--set", "total_steps=1000"
    )
    assert "capacity=1000000000000" in line, line
    assert len(re.findall(r"\d+(\.\d+)? [KMGTP]i?B", line)) >= 2, f"not the bytes wanted and there: {line}"


def test_files_of_a_replay_that_cannot_be_written_are_refused_by_name(capfd, tmp_path):
    taken = tmp_path / "a_file"
    taken.write_text("mine")
    line = refused(capfd, "CartPole-v1", "--algo", "dqn", "--set", f"replay_path={taken}/below")
    assert "replay_path" in line and str(taken) in line, line
    assert taken.read_text() == "mine"


def test_a_disk_too_small_for_the_replay_is_refused_in_bytes(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    changes = ["--set", f"replay_path={tmp_path}/replay", "--set", "total_steps=1000"]
    line = refused(capfd, "CartPole-v1", "--algo", "dqn", *changes)
    assert "replay_path=" in line and "are free there" in line, line
    assert len(re.findall(r"\d+(\.\d+)? [KMGTP]i?B", line)) >= 2, f"not the bytes wanted and there: {line}"
