"""Whoever takes over the policy of a run that goes on gets its newest one, and is told which."""

import importlib
import shutil

import numpy as np
import pytest
from policies import run_of, twice

from lockstep.cli import evaluate as evaluate_command
from lockstep.cli import main as cli
from lockstep.cli.evaluate import evaluate_run
from lockstep.errors import ConfigError
from lockstep.launch.flags import policy_source
from lockstep.session import which_policy
from lockstep.session.policy_file import POLICY_FILE, read
from lockstep.session.which_policy import read_policy
from lockstep.train import train


@pytest.fixture(scope="module", params=["torch", "jax"])
def killed(request, tmp_path_factory):
    """A run that ended at step 128, was resumed and was killed after its checkpoint of step 384."""
    pytest.importorskip(request.param)
    path = tmp_path_factory.mktemp("going") / "run"
    train(run_of(request.param), run_dir=path, total_steps=128)
    ended = (path / POLICY_FILE).read_bytes()
    train(resume=path, total_steps=384)
    (path / POLICY_FILE).write_bytes(ended)
    (path / "summary.json").unlink()
    return request.param, path


def test_its_policy_is_that_of_the_newest_checkpoint(killed):
    framework, path = killed
    load_policy = importlib.import_module(f"lockstep.{framework}").load_policy
    loaded, newest, ended = (
        parameters_of(load_policy(one)[0]) for one in (path, path / "checkpoints" / "step_384", path / POLICY_FILE)
    )
    assert all((loaded[name] == array).all() for name, array in newest.items())
    assert any((loaded[name] != array).any() for name, array in ended.items())


def parameters_of(policy):
    arrays = policy.params if hasattr(policy, "params") else policy.state_dict()
    return {name: np.asarray(array) for name, array in arrays.items()}


def test_a_run_that_starts_from_it_says_which_it_takes(killed, tmp_path, capfd):
    framework, path = killed
    shutil.copytree(path, tmp_path / "cut")
    (tmp_path / "cut" / POLICY_FILE).unlink()  # of a run that never ended
    for number, source in enumerate((path, tmp_path / "cut")):
        assert policy_source(str(source)) == source
        capfd.readouterr()
        train(run_of(framework), run_dir=tmp_path / f"{number}", total_steps=128, init_from=source)
        words = "the checkpoint of step 384, the newest of a run that has not ended"
        assert f"warning: --init-from {source} takes {words}\n" in capfd.readouterr().out
        begun, newest = (
            read(one)[1] for one in (tmp_path / f"{number}" / "checkpoints" / "step_0", path / "checkpoints/step_384")
        )
        assert all((begun[name] == newest[name]).all() for name in begun)


def test_a_checkpoint_that_its_run_removes_gives_way_to_the_next(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    run = twice(run_of("torch"), tmp_path / "run")
    (run / "summary.json").unlink()
    newest, really = run / "checkpoints" / "step_384", which_policy.read

    def slow(path):
        shutil.rmtree(newest, ignore_errors=True)
        return really(path)

    monkeypatch.setattr(which_policy, "read", slow)
    assert read_policy(run)[0].description.startswith("the checkpoint of step 256")
    with pytest.raises(ConfigError, match=r"--checkpoint 384: .* has no checkpoint of this step; it has 256, 128"):
        read_policy(run, step=384)
    with pytest.raises(
        ConfigError, match=r"--checkpoint .*policy.safetensors must be the step of a checkpoint, a number"
    ):
        read_policy(run, step=str(run / "policy.safetensors"))
    with pytest.raises(ConfigError, match="does not exist"):
        read_policy(newest)


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_checkpoint_that_is_removed_once_it_was_read_is_not_missed(tmp_path, monkeypatch, command, capsys):
    """Importing a framework takes seconds, in which a fast run replaces all of its checkpoints."""
    pytest.importorskip("torch")
    run = twice(run_of("torch"), tmp_path / "run")
    (run / "summary.json").unlink()
    really = which_policy.read

    def removed_after(path):
        content = really(path)
        shutil.rmtree(path)
        return content

    monkeypatch.setattr(which_policy, "read", removed_after)
    more = ["--episodes", "2"] if command == "evaluate" else ["--format", "torch"]
    assert cli.main([command, str(run), *more]) == 0
    assert "the checkpoint of step 384" in capsys.readouterr().out


def test_a_file_by_itself_is_played_with_the_clipping_that_it_holds(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    train(run_of("torch"), run_dir=tmp_path / "run", **{"env.clip_observation": 0.01})
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "run" / POLICY_FILE, tmp_path / "alone" / "mine.safetensors")
    played = []
    monkeypatch.setattr(evaluate_command, "_on_ranks", lambda job, *_: played.append(job) or {"returns": [0.0]})
    evaluate_run(tmp_path / "alone" / "mine.safetensors", episodes=3)
    assert played[0].run.env.clip_observation == 0.01
    assert "settings of the environment (env), but for clip_observation" in capsys.readouterr().err
