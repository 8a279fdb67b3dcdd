"""Learning from logged data in JAX: 1 == 2 == 4 ranks, bit for bit; and a run that was cut short and resumed.

What both backends share, such as the order of rows, is tested on torch (`test_offline_equality.py`).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from offline_runs import BATCH, ROWS, OfflineJob, small_offline, train_offline
from running import timeless

import made_data
from lockstep.data.dataset import Dataset
from lockstep.run import dump

BATCHES = -(-ROWS // BATCH)
EPOCHS = 3
RUNS = {
    "dqn": {"dueling": True, "max_grad_norm": 1.0, "cql_alpha": 0.3},
    "iql": {"algo": "iql", "policy": "sampled", "learning_rate_schedule": "linear"},
    "bcq": {"bcq_threshold": 0.3, "n_step": 3, "learning_rate_schedule": "exponential", "learning_rate_decay": 0.9},
    "sarsa": {"maxq": False, "optimizer": "sgd", "l2_decay": 0.01, "learning_rate": 0.01},
    "alone": {"algo": "iql", "estimate": False, "max_grad_norm": 0.5, "num_critics": 3},
}


def run_of(folder, name, **changes):
    path = folder / ("continuous" if RUNS[name].get("algo") == "iql" else "named")
    settings = {"ml_framework": "jax", "num_shards": 4, "epochs": EPOCHS, "log_every": 200}
    return small_offline(path, **{**settings, **RUNS[name], **changes})


def same_bits(folder, names, worlds, devices=1):
    found, logs = {}, {}
    for ranks in worlds:
        jobs = {
            name: OfflineJob(run_of(folder, name, devices_per_process=devices), str(folder / f"{name}-{ranks}"))
            for name in names
        }
        for name, outcomes in train_offline(ranks, jobs).items():
            assert [outcome.error for outcome in outcomes] == [""] * ranks, name
            assert all(outcome.moved for outcome in outcomes), f"{name}: a network learned nothing"
            steps = EPOCHS * BATCHES + 1  # compiling takes one
            assert outcomes[0].messages["average_gradients"] == (steps if ranks > 1 else 0)
            found.setdefault(name, set()).update(
                rank["params_fingerprint"] for outcome in outcomes for rank in outcome.summary["ranks"]
            )
            logs.setdefault(name, []).append(timeless(jobs[name].folder))
    for name in names:
        assert len(found[name]) == 1, f"{name}: parameters depend on the number of ranks"
        assert len(logs[name][0]) >= 4 and all(log == logs[name][0] for log in logs[name]), f"{name}: other metrics"
    return found


def test_two_ranks_have_the_bits_of_one(tmp_path):
    found = same_bits(tmp_path, ["dqn", "iql"], (1, 2))
    assert found["dqn"] != found["iql"]


@pytest.mark.slow
def test_all_runs_have_the_same_bits_on_1_2_and_4_ranks(tmp_path):
    same_bits(tmp_path, RUNS, (1, 2, 4))


@pytest.mark.slow
def test_two_devices_of_a_process_have_the_bits_of_one(tmp_path):
    one, two = (same_bits(tmp_path / str(n), ["dqn", "iql"], (1,), devices=n) for n in (1, 2))
    assert one == two


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_resumed_in_the_middle_of_an_epoch_it_ends_as_if_never_stopped(ranks, tmp_path):
    jobs = {}
    for name in ("dqn", "iql"):
        run = run_of(tmp_path, name, checkpoint_every=350, epochs=10)
        jobs[name, "whole"] = OfflineJob(run, str(tmp_path / f"{name}-whole"))
        jobs[name, "cut"] = OfflineJob(run, str(tmp_path / f"{name}-cut"), fails_at=74)
    for (name, how), outcomes in train_offline(2, jobs).items():
        expected = "the test ends this run" if how == "cut" else ""
        assert all(expected in outcome.error and bool(outcome.error) == bool(expected) for outcome in outcomes), name
    resumed = {}
    for name in ("dqn", "iql"):
        copy = shutil.copytree(jobs[name, "cut"].folder, tmp_path / f"{name}-resumed")
        for kept in (copy / "checkpoints").glob("step_*"):  # which there are depends on the disk
            if int(kept.name.removeprefix("step_")) % ROWS == 0:
                shutil.rmtree(kept)
        resumed[name] = OfflineJob(jobs[name, "cut"].run, "unused", resume=str(copy))
    for name, outcomes in train_offline(ranks, resumed).items():
        whole = jobs[name, "whole"].folder
        expected = json.loads((Path(whole) / "summary.json").read_text())
        assert outcomes[0].error == "", name
        assert int(outcomes[0].summary["resumed_from"].rpartition("_")[2]) % ROWS, "resumed between two epochs"
        assert 0 < len(outcomes[0].learned) < 10 * BATCHES
        assert outcomes[0].summary["params_fingerprint"] == expected["params_fingerprint"], f"{name}: other parameters"
        assert timeless(resumed[name].resume) == timeless(whole), f"{name}: other metrics"


def test_nothing_on_the_way_of_logged_data_imports_torch(tmp_path):
    run = run_of(tmp_path, "dqn", epochs=1, num_shards=1)
    (tmp_path / "run.yaml").write_text(dump(run))
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from lockstep.cli.main import main\n"
        "sys.exit(main(['offline', 'train', 'run.yaml', '--run-dir', 'run']) or main(['offline', 'evaluate', 'run']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished" in done.stdout and "decision_dr" in done.stdout


def test_a_workflow_file_is_learned_from_by_ranks_of_jax(tmp_path):
    """Where there is no torch, too, as in `make test-jax`."""
    made_data.discrete(tmp_path / "data")
    file = {
        "training_data_path": "data",
        "actions": list(Dataset.open(tmp_path / "data").info.actions),
        "epochs": 1,
        "training": {"layers": [-1, 8, -1], "activations": ["relu", "linear"], "minibatch_size": 32},
    }
    (tmp_path / "dqn.json").write_text(json.dumps(file))
    launcher = [sys.executable, "-m", "lockstep.launch.jax", "--nproc_per_node=2", "-m", "lockstep.cli"]
    told = subprocess.run(
        [*launcher, "offline", "train", "dqn.json", "--ml-framework", "jax", "--run-dir", "run"],
        cwd=tmp_path, env=os.environ | {"LOCKSTEP_CACHE": str(tmp_path / "cache")}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["env_steps"]) == ("finished", 2, 200)
