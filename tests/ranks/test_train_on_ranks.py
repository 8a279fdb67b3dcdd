"""`lockstep.train(run, ranks=2)`: from scripts with and without a guard, from a session, and when a rank fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import small

import lockstep
from lockstep import ConfigError, RunError
from lockstep.run import override
from quick import others_slow

SCRIPT = """
import gymnasium
import numpy as np
import lockstep

class Grid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.integers(0, 9, 2).astype(np.float32), 0
        return self.place, {}

    def step(self, action):
        self.time += 1
        return self.place, 1.0, self.time >= 10, False, {}

RUN = lockstep.Run(task=TASK, num_envs=4, total_steps=512, evaluate_episodes=2)
GUARD:
    summary = lockstep.train(RUN, ranks=2)
    print("RESULT", summary["status"], summary["world_size"], summary["task"])
"""
GUARDED = 'if __name__ == "__main__"'


def python(folder, *arguments, text=None):
    words = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(words, cwd=folder, input=text, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("guard", others_slow([GUARDED, "if True"], "if True"))
def test_a_script_trains_on_ranks_with_and_without_a_guard(tmp_path, guard):
    (tmp_path / "script.py").write_text(SCRIPT.replace("TASK", "'CartPole-v1'").replace("GUARD", guard))
    done = python(tmp_path, "script.py")
    assert "RESULT finished 2 CartPole-v1" in done.stdout, done.stdout + done.stderr


@pytest.mark.real_start
def test_a_session_trains_on_ranks(tmp_path):
    """What is typed into an interpreter or a notebook has no file."""
    text = SCRIPT.replace("TASK", "'CartPole-v1'").replace("GUARD", "if True")
    done = python(tmp_path, "-", text=text)
    assert "RESULT finished 2 CartPole-v1" in done.stdout, done.stdout + done.stderr
    done = python(tmp_path, "-", text=text.replace("CartPole-v1", "__main__:Grid"))
    assert "task=__main__:Grid was typed into a session" in done.stderr
    assert "path/to/file.py:Name" in done.stderr


def test_a_script_may_hold_its_environment(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("TASK", "'__main__:Grid'").replace("GUARD", GUARDED))
    done = python(tmp_path, "script.py")
    assert f"RESULT finished 2 {tmp_path}/script.py:Grid" in done.stdout, done.stdout + done.stderr


def test_a_script_may_hold_its_wrappers(tmp_path):
    text = SCRIPT.replace("TASK", "'CartPole-v1'").replace("GUARD", GUARDED)
    text = text.replace("RUN =", "class Wrapper(gymnasium.Wrapper):\n    pass\n\nRUN =")
    text = text.replace("num_envs=4", "num_envs=4, env=lockstep.EnvConfig(wrappers=['__main__:Wrapper'])")
    (tmp_path / "script.py").write_text(text)
    done = python(tmp_path, "script.py")
    assert "RESULT finished 2 CartPole-v1" in done.stdout, done.stdout + done.stderr


def test_a_script_that_would_import_itself_again_is_told_of_the_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("TASK", "'__main__:Grid'").replace("GUARD", "if True"))
    done = python(tmp_path, "script.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith('put that call under `if __name__ == "__main__":`')
    assert not (tmp_path / "runs").exists()


def test_what_a_rank_raises_reaches_the_caller(tmp_path):
    run = small(
        f"{Path(__file__).with_name('rank_envs.py')}:Faulty", num_envs=4, env={"kwargs": {"fault": "raise", "at": 4}}
    )
    with pytest.raises(RunError, match=r"rank 1.*the motor is hot"):
        lockstep.train(run, ranks=2, run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    run = small("lockstep/Corridor-v0")
    for options, said in (
        ({"ranks": 0}, "ranks=0 must be at least 1"),
        ({"ranks": 2, "num_envs": 7}, "num_envs=7 does not divide"),
        ({"ranks": 2, "task": "Corridoor-v0"}, "Corridoor"),
        ({"ranks": 2, "init_from": tmp_path / "nothing"}, "nothing does not exist"),
    ):
        with pytest.raises(ConfigError, match=said):
            lockstep.train(run, run_dir=tmp_path / "run", **options)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="ranks=2, but this process is one of 3 ranks already"):
        lockstep.train(run, ranks=2, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_on_other_ranks(tmp_path):
    run = small("lockstep/Corridor-v0", num_shards=2, checkpoint_every=128, total_steps=256)
    run = override(run, {"learning_rate_schedule": "constant"})
    lockstep.train(run, run_dir=tmp_path / "run")
    longer = lockstep.train(run, ranks=2, resume=tmp_path / "run", total_steps=512)
    whole = lockstep.train(run, ranks=2, run_dir=tmp_path / "whole", total_steps=512)
    assert longer["resumed_from"] == "checkpoints/step_256"
    assert longer["params_fingerprint"] == whole["params_fingerprint"]


@pytest.mark.slow
def test_episodes_of_an_evaluation_may_take_longer_than_a_message(tmp_path):
    """On one rank alone, while the others wait for it."""
    env = {"kwargs": {"step_s": 1.2}}
    task = f"{Path(__file__).with_name('rank_envs.py')}:SlowToPlay"
    run = small(task, env=env, total_steps=256, evaluate_episodes=4, timeout_s=2.0)
    summary = lockstep.train(run, ranks=2, run_dir=tmp_path / "run")
    assert (summary["status"], summary["eval_episodes"]) == ("finished", 4)
    assert summary["wall_time_s"] > 4.5, "longer than the 2 s of a message and the 2 s of the watch"


@pytest.mark.slow
def test_environments_of_an_evaluation_may_start_for_longer_than_a_stall(tmp_path):
    """They are made before the first step, within `startup_timeout_s`."""
    env = {"kwargs": {"start_s": 5.0}}
    task = f"{Path(__file__).with_name('rank_envs.py')}:SlowToStart"
    run = small(task, env=env, total_steps=256, evaluate_episodes=4, timeout_s=2.0)
    summary = lockstep.train(run, ranks=2, run_dir=tmp_path / "run")
    assert (summary["status"], summary["eval_episodes"]) == ("finished", 4)
    assert summary["startup_s"] > 5 > summary["wall_time_s"]
