"""Learning from a replay where it is tight, short or cut, and where a process is lost: on 2 ranks."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from running import job, lines, slow_tests_selected, small_dqn, train_all

from lockstep.run import dump
from quick import others_slow

ENVS = Path(__file__).with_name("rank_envs.py")
STEPS = {"num_steps": 1, "total_steps": 640, "learning_starts": 64, "batch_size": 32}
SHORT = {"env.kwargs": {"lengths": [1, 2]}}
RUNS = {
    # Rows of the ring go to steps that only reset: no more than half of them are transitions.
    "as small as a batch": small_dqn("rank_envs:Halting", **{**STEPS, **SHORT, "capacity": 32}),
    "longer than an episode": small_dqn("rank_envs:Ticking", **{**STEPS, **SHORT, "n_step": 10}),
    "at once": small_dqn("CartPole-v1", **{**STEPS, "learning_starts": 0}),
    "a step per step": small_dqn("CartPole-v1", **{**STEPS, "updates_per_step": 1.0, "total_steps": 160}),
    "rarely": small_dqn("CartPole-v1", **{**STEPS, "updates_per_step": 0.01}),
    "soft target": small_dqn("CartPole-v1", **{**STEPS, "target_rate": 0.01}),
    "mapped": small_dqn("CartPole-v1", **STEPS),
    "in memory": small_dqn("CartPole-v1", **STEPS),
}
QUICK = ("longer than an episode", "mapped", "in memory")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """The runs that the selected tests need: each job, and what its ranks saw."""
    folder = tmp_path_factory.mktemp("edges")
    names = RUNS if slow_tests_selected(request) else QUICK
    jobs = {name: job(RUNS[name], folder, name) for name in names}
    from lockstep.run import override

    jobs["mapped"].run = override(RUNS["mapped"], {"replay_path": str(folder / "replay")})
    told = train_all(2, jobs)
    return {name: (jobs[name], told[name]) for name in jobs}


@pytest.mark.parametrize("name", others_slow(RUNS, *QUICK))
def test_it_learns_to_the_end(trained, name):
    one, outcomes = trained[name]
    run = one.run
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert all(outcome.moved for outcome in outcomes), "no gradient step was taken, and nobody was told"
    messages = [outcome.messages["average_gradients"] for outcome in outcomes]
    assert messages[0] == messages[1]
    most = (run.total_steps - run.algorithm.learning_starts + run.num_envs) * run.algorithm.updates_per_step
    assert messages[0] <= most + 1
    if name != "as small as a batch":  # that one may have to wait until there is enough
        assert messages[0] >= 0.85 * most - 1, "fewer gradient steps than one per so many environment steps"
    logged = lines(one.folder)
    assert all(np.isfinite(value) for line in logged for value in line.values())
    # Rings have room for what waits for its n steps; where nothing waits, there are transitions.
    assert logged[-1]["replay/size"] <= run.algorithm.capacity + run.algorithm.n_step * run.num_envs
    assert logged[-1]["optim/grad_norm"] > 0


def test_files_hold_what_memory_holds(trained):
    fingerprints = {trained[name][1][0].summary["params_fingerprint"] for name in ("mapped", "in memory")}
    assert len(fingerprints) == 1, "learning from files is learning from other transitions"


def test_the_loss_of_an_environments_process_is_named_and_ends_all_ranks(tmp_path):
    kwargs = {"env.kwargs": {"once": str(tmp_path / "once")}, "env.vectorization": "async"}
    run = small_dqn(f"{ENVS}:Dying", num_envs=4, total_steps=10**7, timeout_s=20.0, **kwargs)
    (tmp_path / "run.yaml").write_text(dump(run))
    command = [sys.executable, "-m", "lockstep.cli", "train", "run.yaml", "--run-dir", "run", "--ranks", "2"]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert time.monotonic() - begun < 120
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "failed"
    for word in ("rank 1", "shard 1", "was killed by SIGKILL (signal 9)", "of 2"):
        assert word in summary["error"], summary["error"]
    assert summary["error"] in done.stderr
    mark = str(tmp_path).encode()
    left = [pid for pid in os.listdir("/proc") if pid.isdecimal() and mark in command_of(pid)]
    assert left == [], "processes were left behind"


def command_of(pid):
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""
