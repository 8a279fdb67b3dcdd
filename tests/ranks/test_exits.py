"""Environments that end the process with code 0: no success."""

import json
import subprocess
import sys

import pytest

from quick import others_slow

_ENV = """
import os, sys
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, how="sys", after=3000, code=0):
        self.how, self.after, self.code, self.steps = how, after, code, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > self.after:
            os._exit(0) if self.how == "os" else sys.exit(self.code)
        return self.np_random.random(2, np.float32), 1.0, self.steps % 20 == 0, False, {}
"""


@pytest.fixture
def lockstep(tmp_path):
    """`lockstep(*words)` runs a command; returns its exit code and what it printed."""
    (tmp_path / "env.py").write_text(_ENV)

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 1, "sys.exit(0) was called during training"),
        pytest.param(["--ranks", "2"], 1, "sys.exit(0) was called during training", marks=pytest.mark.slow),
        (["--ranks", "2", "--set", "env.kwargs.how=os"], 1, "all ranks exited with code 0 before the training ended"),
        pytest.param(["--ranks", "2", "--set", "env.kwargs.code=7"], 7, "SystemExit: 7", marks=pytest.mark.slow),
    ],
)
def test_training_that_the_environment_ends_is_a_failure(lockstep, tmp_path, flags, code, said):
    short = ["--set", "num_envs=2", "--set", "num_epochs=1", "--set", "num_minibatches=1"]
    found, text = lockstep("train", "env.py:Env", *short, "--run-dir", "run", *flags)
    assert (found, said in text) == (code, True), text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and said.partition(":")[0] in summary["error"]


@pytest.mark.parametrize("flags", [["--ranks", "1", "--max-restarts", "1"], ["--nnodes", "1", "--nproc-per-node", "2"]])
def test_a_rank_that_leaves_early_is_a_failure_of_any_launcher(lockstep, flags):
    """One rank alone was not restarted, and `--nnodes` ended with code 0."""
    short = ["--set", "num_envs=2", "--set", "num_epochs=1", "--set", "num_minibatches=1"]
    code, text = lockstep("train", "env.py:Env", *short, "--run-dir", "run", "--set", "env.kwargs.how=os", *flags)
    assert code == 1 and "all ranks exited with code 0 before the training ended" in text, text
    assert ("restart 1 of 1" in text) == ("--max-restarts" in flags)


def test_an_environment_that_ends_the_check_has_a_fault(lockstep):
    for command in (["check", "env.py:Env"], ["train", "env.py:Env", "--ranks", "2"]):
        code, text = lockstep(*command, "--set", "env.kwargs.after=3")
        assert code == 2 and "step called sys.exit(0); raise an exception to report a failure" in text


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("import sys\nsys.exit()", ["train", "own.py:Env"]),
        (
            "from env import Env\nimport sys\nclass Own(Env):\n    def __init__(self): sys.exit(0)",
            ["train", "own.py:Own"],
        ),
        ("import sys\nsys.exit(0)", ["offline", "record", "own.py:Env", "--episodes", "1", "--out", "log.jsonl"]),
    ],
    ids=["import", "init", "record"],
)
def test_code_of_the_user_that_ends_a_command_is_no_success(lockstep, tmp_path, file, words):
    (tmp_path / "own.py").write_text(file)
    code, text = lockstep(*words)
    assert code in (1, 2) and "lockstep: error: " in text and "sys.exit(" in text, text


_THREADS = """
import threading, time
from env import Env

class Own(Env):
    def __init__(self):
        super().__init__(after=10**9)
        threading.Thread(target=time.sleep, args=(1000,)).start()
"""


@pytest.mark.parametrize("mode", others_slow(["sync", "async"], "sync"))
def test_threads_of_an_environment_keep_no_command_alive(lockstep, tmp_path, mode):
    (tmp_path / "own.py").write_text(_THREADS)
    words = ["train", "own.py:Own", "--set", f"env.vectorization={mode}", "--set", "num_envs=2", "--set"]
    code, text = lockstep(*words, "total_steps=512", "--set", "evaluate_episodes=1", "--run-dir", "run")
    assert code == 0, text
    assert lockstep("check", "own.py:Own")[0] == 0
