"""A run that names the user's own files goes on from any directory, and hosts may keep them in other folders."""

import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.envs.make import env_spec
from lockstep.preflight.identity import identity, user_code
from lockstep.preflight.setting_paths import with_absolute_paths, with_portable_paths
from lockstep.run import EnvConfig, NetworkConfig, Run, dump, load, to_dict
from lockstep.session.resume import compare, nothing_left, prepare
from lockstep.train import train
from quick import others_slow

ENV = """
import numpy as np
from lockstep.envs.toy_tasks import Corridor
import beside_it  # a file of the same folder

class Mine(Corridor):
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with an environment, a recipe that names it, and another folder to be elsewhere."""
    folder, elsewhere = tmp_path / "my work", tmp_path / "elsewhere"
    for path in (folder, elsewhere):
        path.mkdir()
    (folder / "my_env.py").write_text(ENV)
    (folder / "beside_it.py").write_text("")
    (folder / "my_recipe.py").write_text(
        "from lockstep.algorithms.ppo import PPOConfig\nfrom lockstep.run import Run\n"
        "def recipe():\n    small = PPOConfig(num_steps=8, num_minibatches=2)\n"
        "    return Run(task='my_env.py:Mine', total_steps=128, algorithm=small, evaluate_episodes=4)\n"
    )
    monkeypatch.chdir(folder)
    return folder, elsewhere


def test_files_are_named_by_whole_paths(mine):
    folder, _ = mine
    run = Run(
        task="my_env.py:Mine", env=EnvConfig(wrappers=("w.py:W", "module:W")), network=NetworkConfig(module="n.py:N")
    )
    whole = with_absolute_paths(run)
    assert whole.task == f"{folder}/my_env.py:Mine"
    assert (whole.env.wrappers, whole.network.module) == ((f"{folder}/w.py:W", "module:W"), f"{folder}/n.py:N")
    assert with_absolute_paths(whole) == whole
    assert with_portable_paths(whole) == run
    for name in ("CartPole-v1", "lockstep/Corridor-v0", "module:Class"):
        assert with_absolute_paths(Run(task=name)).task == name


def test_hosts_with_other_folders_agree_and_other_code_does_not(mine, tmp_path):
    folder, elsewhere = mine
    (elsewhere / "my_env.py").write_text(ENV)
    shown = []
    for place in mine:
        run = Run(task=f"{place}/my_env.py:Mine")
        shown.append({**identity(dump(with_portable_paths(run)), user_code(run.user_code)), "clock": 0, "host": ""})
    assert shown[0] == shown[1]
    assert (
        compare(to_dict(Run(task=f"{folder}/my_env.py:Mine")), to_dict(Run(task=f"{elsewhere}/my_env.py:Mine"))) == []
    )
    (elsewhere / "my_env.py").write_text(ENV + "# other\n")
    assert user_code([f"{elsewhere}/my_env.py:Mine"]) != shown[0]["code"]


def test_what_lies_beside_a_file_can_be_imported(mine, monkeypatch):
    folder, elsewhere = mine
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    assert env_spec(f"{folder}/my_env.py:Mine", EnvConfig()).observation_size


@pytest.mark.parametrize(
    ("target", "ranks"),
    others_slow(
        [(target, ranks) for target in ("my_recipe.py:recipe", "my_env.py:Mine") for ranks in (1, 2)],
        ("my_recipe.py:recipe", 2),
        several=True,
    ),
)
def test_a_run_is_evaluated_and_resumed_from_any_directory(mine, target, ranks):
    pytest.importorskip("torch")
    folder, elsewhere = mine
    small = [
        "--set=total_steps=128",
        "--set=num_envs=8",
        "--set=num_steps=8",
        "--set=num_minibatches=2",
        "--set=evaluate_episodes=4",
    ]
    lockstep = [sys.executable, "-m", "lockstep.cli"]
    begun = [*lockstep, "train", target, *small, "--run-dir", "my run", "--ranks", str(ranks)]
    done = subprocess.run(begun, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run_dir = folder / "my run"
    assert load(run_dir / "run.yaml").task == f"{folder}/my_env.py:Mine"
    for words in (
        ["evaluate", str(run_dir), "--episodes", "4"],
        ["train", "--resume", str(run_dir), "--set", "total_steps=192"],
    ):
        done = subprocess.run([*lockstep, *words], cwd=elsewhere, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert json.loads((run_dir / "summary.json").read_text())["env_steps"] == 192


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of every file, and the time of every folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }


@pytest.mark.parametrize("framework", others_slow(["torch", "jax"], "torch"))
def test_a_resume_with_nothing_to_do_changes_no_file(mine, framework, capsys):
    pytest.importorskip(framework)
    run_dir, lockstep = Path("my run").absolute(), [sys.executable, "-m", "lockstep.cli"]
    first = [*lockstep, "train", "my_recipe.py:recipe", "--run-dir", str(run_dir), "--ml-framework", framework]
    assert subprocess.run(first, capture_output=True).returncode == 0
    before = contents(run_dir)
    capsys.readouterr()
    for words in ([], ["--ranks", "2"], ["--set", "log_every=5"], ["--ranks=1", "--max-restarts=2"]):
        assert cli.main(["train", "--resume", str(run_dir), *words]) == 0
        told = capsys.readouterr().out
        assert told.startswith("nothing is left to do: ") and told.count("\n") == 1
        assert ("--ranks 1 --set total_steps" in told) == ("--ranks=1" in words), "the command asks for the same ranks"
        assert "--ranks 2" not in told, "there is one shard"
    summary = train(prepare(run_dir, {}).run, resume=run_dir)
    assert (summary["status"], summary["env_steps"]) == ("finished", 128)
    assert contents(run_dir) == before
    command = shlex.split(told.partition("continue with: ")[2])
    assert command[:2] == ["lockstep", "train"]
    assert subprocess.run([*lockstep, *command[1:]], capture_output=True).returncode == 0, "it can be pasted"
    assert json.loads((run_dir / "summary.json").read_text())["env_steps"] == 256


def ended(run_dir, summary, **changes):
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return nothing_left(prepare(run_dir, changes))


def asked(ranks, run_dir, **changes):
    return nothing_left(prepare(run_dir, changes), ranks)


def test_when_something_is_left_to_do(tmp_path):
    run = Run(task="lockstep/Corridor-v0", total_steps=1000)
    folder = tmp_path / "checkpoints" / "step_500"
    folder.mkdir(parents=True)
    (tmp_path / "run.yaml").write_text(dump(run))
    manifest = {"format": 2, "step": 500, "num_shards": 1, "world_size": 1, "files": {}, "run": to_dict(run)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert nothing_left(prepare(tmp_path, {})) is None
    done = ended(tmp_path, {"status": "finished", "env_steps": 500}, total_steps=400)
    assert f"--resume {tmp_path} --ranks 1 --set" in asked("1", tmp_path, total_steps=400)
    assert asked("3", tmp_path, total_steps=400) == done, "the checkpoint has 1 shard"
    solved = {"status": "solved", "env_steps": 500, "solved_at_step": 500, "eval_return_mean": 9.0}
    assert "solved its task at step 500" in ended(tmp_path, solved)
    assert "set stop_when_solved=false" in ended(tmp_path, solved)
    assert ended(tmp_path, solved, stop_when_solved=False) is None
    told = ended(tmp_path, solved, gamma=0.9, timeout_s=50)
    assert told.endswith(f"{tmp_path} --set gamma=0.9 --set timeout_s=50.0 --set stop_when_solved=false")
    told = ended(tmp_path, {"status": "finished", "env_steps": 500}, total_steps=400, trackers=["wandb", "mlflow"])
    assert told.endswith(f"{tmp_path} --set 'trackers=[wandb, mlflow]' --set total_steps=1000")
    assert ended(tmp_path, solved, stop_return=9.5) is None
    assert ended(tmp_path, solved | {"eval_return_mean": -9.0}, stop_return=0.0) is None
    assert ended(tmp_path, solved | {"env_steps": 900}) is None, "it went on after this checkpoint"
    assert ended(tmp_path, solved | {"status": "failed"}) is None
    assert ended(tmp_path, {"status": "interrupted", "env_steps": 500}) is None
    finished = {"status": "finished", "env_steps": 500, "solved_at_step": None}
    assert "total_steps=500" in ended(tmp_path, finished, total_steps=500)
    assert ended(tmp_path, finished, total_steps=501) is None
