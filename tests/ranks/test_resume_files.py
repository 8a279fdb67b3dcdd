"""What a resumed start makes of the files of an earlier one: it touches none before it has the checkpoint."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from running import small

from lockstep import train
from lockstep.errors import RunError
from lockstep.record.evaluations import EvaluationResult
from lockstep.record.run_dir import RunDir
from lockstep.run import override
from lockstep.session import policy_file
from lockstep.session.checkpoints import Checkpoints
from lockstep.session.evaluation import Evaluation
from lockstep.session.policy_file import evaluation_in, read
from lockstep.session.which_policy import find_policy
from quick import others_slow

ENV = """
import os
import gymnasium
import numpy as np

played = 0

class Growing(gymnasium.Env):
    '''As many numbers are observed, and such rewards given, as variables of the process say.'''

    def __init__(self):
        size = int(os.environ.get("OBSERVED", "4"))
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        global played
        super().reset(seed=seed)
        self.left, played = 5, played + 1
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        reward = played * float(os.environ.get("SIGN", "1"))
        return self.observation_space.sample(), reward, self.left == 0, False, {}
"""


@pytest.fixture
def task(tmp_path):
    (tmp_path / "growing.py").write_text(ENV)
    return f"{tmp_path}/growing.py:Growing"


def contents(run_dir):
    """Of the files of a run; what its starts printed and found on their machines is added to."""
    paths = sorted(path for path in run_dir.rglob("*") if path.is_file() and path.parent.name != "logs")
    return {path.relative_to(run_dir): path.read_bytes() for path in paths if path.name != "preflight.json"}


@pytest.mark.parametrize("ranks", others_slow([1, 2], 2))
def test_a_refused_start_leaves_the_run_as_it_was(ranks, task, tmp_path):
    run = small(task, total_steps=512, checkpoint_every=128, num_shards=2)
    train(run, ranks=ranks, run_dir=tmp_path / "run")

    def refused(source):
        before = contents(tmp_path / "run")
        command = ["--resume", str(tmp_path / "run" / source), "--set", "total_steps=1024", "--set", "log_every=128"]
        changed = {**os.environ, "OBSERVED": "5"}
        told = subprocess.run(
            [sys.executable, "-m", "lockstep.train", *command], env=changed, capture_output=True, text=True
        )
        assert told.returncode == 2, told.stderr
        assert "this run needs shape [16, 5]; resume it with the environment" in told.stderr
        assert contents(tmp_path / "run") == before

    refused(".")
    (tmp_path / "run" / "summary.json").unlink()  # as of a run that was killed
    kept = {int(path.name.removeprefix("step_")) for path in (tmp_path / "run" / "checkpoints").glob("step_*")}
    refused(f"checkpoints/step_{min(kept)}")  # on a slow disk one may be left out, while another is being written


def test_the_best_policy_of_a_future_that_was_given_up_is_replaced_or_removed(task, tmp_path, monkeypatch, capsys):
    run = small(task, total_steps=2560, checkpoint_every=1024, evaluate_every=1024)
    train(run, run_dir=tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", tmp_path / "lost")
    first, later = (tmp_path / "lost" / "evaluations.jsonl").read_text().split("\n", 1)
    first = first.replace("1024", "1000")  # of whose step there is no checkpoint
    (tmp_path / "lost" / "evaluations.jsonl").write_text(f"{first}\n{later}")
    monkeypatch.setenv("SIGN", "-1")
    earlier = read(tmp_path / "kept" / "checkpoints" / "step_1024")[1]
    for name in ("kept", "lost"):
        assert not _equal(read(tmp_path / name / "policy_best.safetensors")[1], earlier)
        train(override(run, {"total_steps": 1280}), resume=tmp_path / name / "checkpoints" / "step_1024")
    metadata, best = read(tmp_path / "kept" / "policy_best.safetensors")
    assert metadata.pop("evaluation")["step"] == 1024
    assert metadata == read(tmp_path / "kept" / "policy.safetensors")[0]
    assert _equal(best, earlier)
    found = evaluation_in(tmp_path / "lost" / "policy_best.safetensors")
    assert found is not None and found.step == 1280, "without one, the next evaluation is the best, however low"
    said = capsys.readouterr().out
    assert "policy_best.safetensors is that of step 1024 again: step 2560 is no longer part of this run" in said
    assert "policy_best.safetensors is removed: step 2560 is no longer part of this run" in said


def test_a_best_policy_that_could_not_be_written_leaves_the_next_better_one_to_be(task, tmp_path, monkeypatch, capsys):
    write, failed = policy_file.write, []

    def full_once(path, *args, **more):
        if path.name == "policy_best.safetensors" and not failed:
            failed.append(path)
            raise RunError(f"{path} cannot be written (No space left on device)")
        write(path, *args, **more)

    monkeypatch.setattr(policy_file, "write", full_once)
    monkeypatch.setenv("SIGN", "-1")  # each evaluation is worse than the one before
    run = small(task, total_steps=2048, checkpoint_every=1024, evaluate_every=1024)
    train(run, run_dir=tmp_path / "run")
    assert "No space left on device" in capsys.readouterr().out
    best = read(tmp_path / "run" / "policy_best.safetensors")[1]
    assert _equal(best, read(tmp_path / "run" / "checkpoints" / "step_2048")[1])


def test_a_checkpoint_whose_replacement_was_cut_short_is_resumed_by_its_name(tmp_path):
    run = small("CartPole-v1", total_steps=256)
    train(run, run_dir=tmp_path / "run")
    named = tmp_path / "run" / "checkpoints" / "step_256"
    named.rename(named.with_name(".replaced_step_256"))
    summary = train(override(run, {"total_steps": 384}), resume=named)
    assert (summary["resumed_from"], summary["env_steps"]) == ("checkpoints/step_256", 384)


RETURNS = {1024: 100.0, 2048: 200.0, 3072: 150.0, 2560: 170.0, 1664: 90.0}
"""Of every episode, by the step of the evaluation."""


@pytest.fixture
def full_at_2048(task, tmp_path, monkeypatch):
    """Returns a run whose evaluations return `RETURNS`, and whose best policy cannot be written at step 2048."""
    write, play, take = policy_file.write, Evaluation.play, Checkpoints.take_if_due

    def full_once(path, *args, **more):
        if path.name == "policy_best.safetensors" and args[-1].step == 2048:
            raise RunError(f"{path} cannot be written (No space left on device)")
        write(path, *args, **more)

    def played(self, index, *, heartbeat):
        episodes = play(self, index, heartbeat=heartbeat)
        return replace(episodes, returns=[RETURNS[index]] * len(episodes.returns))

    def taken(self, *args, **more):
        take(self, *args, **more)
        self._writer.finish(lambda: None)  # on a slow disk the next one would be left out

    monkeypatch.setattr(policy_file, "write", full_once)
    monkeypatch.setattr(Evaluation, "play", played)
    monkeypatch.setattr(Checkpoints, "take_if_due", taken)
    return small(task, checkpoint_every=512, num_checkpoints=99, evaluate_every=1024)


def test_the_file_of_the_best_policy_says_of_which_evaluation_it_is(full_at_2048, tmp_path, capsys):
    train(override(full_at_2048, {"total_steps": 3072}), run_dir=tmp_path / "run")
    best = tmp_path / "run" / "policy_best.safetensors"
    assert evaluation_in(best) == EvaluationResult(3072, 150.0)
    assert find_policy(best.parent, best=True).description == "the best policy, of step 3072"
    train(override(full_at_2048, {"total_steps": 2560}), resume=tmp_path / "run" / "checkpoints" / "step_2048")
    assert f"{best.name} is that of step 2048 again: step 3072 is no longer part" in capsys.readouterr().out
    assert evaluation_in(best) == EvaluationResult(2048, 200.0), "170 at step 2560 is less"
    assert _equal(read(best)[1], read(best.parent / "checkpoints" / "step_2048")[1])


def test_a_best_policy_that_is_still_of_the_run_is_kept(full_at_2048, tmp_path):
    train(override(full_at_2048, {"total_steps": 2048}), run_dir=tmp_path / "run")
    best = tmp_path / "run" / "policy_best.safetensors"
    before = best.read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_1024")
    train(override(full_at_2048, {"total_steps": 1664}), resume=tmp_path / "run" / "checkpoints" / "step_1536")
    assert best.read_bytes() == before
    assert evaluation_in(best) == EvaluationResult(1024, 100.0)


def test_a_run_that_died_before_its_first_checkpoint_starts_from_its_policy_again(tmp_path):
    run = small("CartPole-v1", total_steps=256, checkpoint_every=None)
    policy = tmp_path / "first" / "policy.safetensors"
    train(override(run, {"seed": 1}), run_dir=policy.parent)
    whole = train(run, run_dir=tmp_path / "whole", init_from=policy)
    RunDir.create(tmp_path / "cut", run, init_from=policy)  # what a kill left
    for cut in ("whole", "cut"):
        assert (tmp_path / cut / "init_from.txt").read_text() == f"{policy}\n"
    again = train(run, resume=tmp_path / "cut")
    assert again["params_fingerprint"] == whole["params_fingerprint"]


def _equal(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)
