"""The sample workflow files train as they are, on a log under the name that they have in them."""

import bz2
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "unit" / "cli" / "workflow_files"))
from workflow_logs import parametric, rows, write  # noqa: E402

SAMPLES = ROOT / "examples" / "workflows"


def start(folder, *words):
    """A command in `folder`, which has a copy of the samples; its exit code and what it said."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    kept["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = kept | {"OMP_NUM_THREADS": "1", "LOCKSTEP_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "lockstep.cli", *words[1:]] if words[0] == "lockstep" else words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    logged = tmp_path / "training_data"
    write(logged / "cartpole_discrete.jsonl", rows(range(40)))
    write(logged / "cartpole_discrete_eval.jsonl", rows(range(40, 60)))
    write(logged / "parametric.jsonl", parametric(rows(range(40))))
    (logged / "cartpole_parametric.json.bz2").write_bytes(bz2.compress((logged / "parametric.jsonl").read_bytes()))
    return tmp_path


def only_run(folder):
    (found,) = (folder / "runs").iterdir()
    return json.loads((found / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_dqn(folder, ranks):
    code, said = start(folder, "lockstep", "offline", "train", "dqn.json", "--ranks", ranks, "--set", "epochs=1")
    assert code == 0, said
    told = only_run(folder)
    assert (told["status"], told["world_size"], told["env_steps"]) == ("finished", int(ranks), 400)
    assert "learner: dqn (actions: 0, 1)" in said
    assert (folder / "training_data" / "state_features_norm.json").exists()
    assert list((folder / "outputs").iterdir())


@pytest.mark.slow
def test_parametric_dqn_by_its_classic_door(folder):
    door = [sys.executable, "-m", "lockstep.workflows.parametric_dqn", "-p", "parametric_dqn.json", "--node_index=0"]
    code, said = start(folder, *door, "--set", "epochs=2", "--set", "minibatch_size=64")
    assert code == 0, said
    told = only_run(folder)
    assert (told["status"], told["world_size"], told["env_steps"]) == ("finished", 1, 2 * 400)
    assert "learner: parametric_dqn" in said
    assert "this machine has no GPU: 1 rank on the CPU" in said or Path("/dev/nvidia0").exists()
    assert sorted(file.name for file in (folder / "training_data").glob("*_norm.json")) == [
        "action_norm.json",
        "state_features_norm.json",
    ]
    assert list((folder / "outputs").iterdir())


def test_the_file_for_two_machines_asks_which_this_one_is(folder):
    code, said = start(folder, "lockstep", "offline", "train", "dqn_on_two_machines.yaml")
    assert code == 2
    assert "start each with its own --node-index, from 0 to 1" in said
