"""`lockstep evaluate` and `lockstep export` say which policy they take, and any policy of a run can be taken."""

import json
import shutil
from pathlib import Path

import pytest
from policies import (
    DQN,
    PPO,
    check_a_policy_is_said_and_chosen,
    check_ranks_share_the_episodes,
    check_the_checkpoint_is_the_file,
    run_of,
    twice,
)

from lockstep.cli import main as cli
from lockstep.cli.evaluate import evaluate_run
from lockstep.errors import ConfigError
from lockstep.session.which_policy import find_policy
from lockstep.train import train
from quick import others_slow


@pytest.mark.parametrize("algorithm", others_slow([PPO, DQN], PPO), ids=["ppo", "dqn"])
def test_policies_of_a_run(algorithm, tmp_path, capsys):
    pytest.importorskip("torch")
    trained = twice(run_of("torch", algorithm), tmp_path / "my run")
    check_the_checkpoint_is_the_file(trained)
    capsys.readouterr()
    check_a_policy_is_said_and_chosen(trained, capsys)


def test_ranks_share_the_episodes(tmp_path):
    pytest.importorskip("torch")
    check_ranks_share_the_episodes("torch", tmp_path)


def test_really_on_two_ranks(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    train(run_of("torch"), run_dir=tmp_path / "run")
    asked = []
    from lockstep.launch import local

    spawn = local.spawn
    monkeypatch.setattr(local, "spawn", lambda fn, ranks, args: asked.append(ranks) or spawn(fn, ranks, args))
    evaluate_run(tmp_path / "run", episodes=2)
    assert asked == []
    evaluate_run(tmp_path / "run", episodes=2, ranks=2)
    assert asked == [2]


def test_a_file_by_itself_is_played_in_its_task(tmp_path):
    pytest.importorskip("torch")
    train(run_of("torch"), run_dir=tmp_path / "run")
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "run" / "policy.safetensors", tmp_path / "alone" / "mine.safetensors")
    played = evaluate_run(tmp_path / "alone" / "mine.safetensors", episodes=3)
    assert (played["task"], played["eval_episodes"]) == ("lockstep/Cartpole-v0", 3)


def files(path, *names, summary=None, steps=()):
    path.mkdir()
    for name in names:
        (path / name).write_text("")
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    for step in steps:
        folder = path / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True)
        kept = {"format": 2, "step": step, "num_shards": 1, "world_size": 1, "run": {}, "files": {}}
        (folder / "manifest.json").write_text(json.dumps(kept))
    return path


def test_the_policy_of_an_end_before_a_resumption_that_was_interrupted_is_not_taken(tmp_path):
    """Only an end with results writes its policy: not a second Ctrl-C, nor the launcher for killed ranks."""
    final, interrupted = ("run.yaml", "policy.safetensors"), {"status": "interrupted", "env_steps": 900}
    with_results = interrupted | {"params_fingerprint": "00"}
    found = find_policy(files(tmp_path / "a", *final, summary=with_results, steps=(500, 800)))
    assert (found.path.name, found.step) == ("policy.safetensors", 900)
    found = find_policy(files(tmp_path / "b", *final, summary=interrupted, steps=(500, 800)))
    assert found.step == 800
    assert found.description == "the checkpoint of step 800, the newest of a run that was interrupted"
    found = find_policy(files(tmp_path / "c", *final, summary=interrupted))
    assert (found.path.name, found.step) == ("policy.safetensors", None)


def test_the_newest_of_a_run_that_has_not_ended(tmp_path):
    final, ended = ("run.yaml", "policy.safetensors"), {"status": "finished", "env_steps": 900}
    assert find_policy(files(tmp_path / "a", *final, summary=ended, steps=(500, 900))).description.startswith(
        "the final"
    )
    failed = {"summary": ended | {"status": "failed"}}
    for name, given, how in (("b", {}, "has not ended"), ("c", failed, "failed")):
        found = find_policy(files(tmp_path / name, *final, steps=(100, 500), **given))
        assert found.description == f"the checkpoint of step 500, the newest of a run that {how}"
        assert found.path.resolve() == tmp_path / name / "checkpoints" / "step_500"
    assert find_policy(files(tmp_path / "handed", "policy.safetensors")).description == "the final policy"
    with pytest.raises(ConfigError, match=r"has no policy.safetensors and no checkpoint.*--best"):
        find_policy(files(tmp_path / "d", "run.yaml", "policy_best.safetensors"))


def test_best_evaluation_may_have_episodes_without_a_return(tmp_path):
    run = files(tmp_path / "a", "run.yaml", "policy_best.safetensors")
    lines = [{"step": 100, "returns": [3.0, None]}, {"step": 200, "returns": [None]}, {"step": 300, "returns": [1.0]}]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"returns": [9.0]}, ["damaged"], {"step": 400}])
    (run / "evaluations.jsonl").write_text(text)
    assert find_policy(run, best=True).description == "the best policy, of step 100"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"best": True, "last": True}, "--best and --last choose different policies"),
        ({"step": 7}, "no checkpoint of this step; it has 500, 100"),
        ({"best": True}, "has no policy_best.safetensors"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, choice, words):
    path = files(tmp_path / "a", "run.yaml", steps=(100, 500))
    with pytest.raises(ConfigError, match=words):
        find_policy(path, **choice)
    with pytest.raises(ConfigError, match="does not exist"):
        find_policy(tmp_path / "nowhere", **choice)
    if len(choice) == 1:
        with pytest.raises(ConfigError, match="is one policy"):
            find_policy(path / "checkpoints" / "step_100", **choice)


def test_a_folder_of_runs_is_no_run(tmp_path):
    files(tmp_path / "a", "run.yaml")
    files(tmp_path / "b", "run.yaml")
    with pytest.raises(ConfigError, match=rf"{tmp_path} is a folder of runs; give one of them, such as {tmp_path}/b$"):
        find_policy(tmp_path)


def test_a_sweep_and_the_folder_of_checkpoints_are_no_run(tmp_path):
    sweep = files(tmp_path / "sweep", "sweep.yaml")
    (sweep / "runs").mkdir()
    run = files(sweep / "runs" / "lr=1,seed=0", "run.yaml", steps=(100, 500))
    with pytest.raises(ConfigError, match=rf"{sweep} is a sweep; give one of its runs, such as {run}; "):
        find_policy(sweep)
    with pytest.raises(
        ConfigError, match=rf"holds the checkpoints of a run; give {run}, or {run}/checkpoints/step_500"
    ):
        find_policy(run / "checkpoints")
    (sweep / "policy.safetensors").write_text("")
    assert find_policy(sweep).path == sweep / "policy.safetensors"


@pytest.mark.slow  # five exports; what it asks for is quick in tests/unit/torch/deploy
def test_an_export_replaces_no_other(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    run = str(twice(run_of("torch"), tmp_path / "run"))
    assert cli.main(["export", run]) == 0
    first = Path(run, "policy.onnx").read_bytes()
    for more, name in ((["--best"], "policy_best.onnx"), (["--checkpoint=128"], "policy_step_128.onnx")):
        assert cli.main(["export", run, *more]) == 0
        assert Path(run, name).is_file()
    assert cli.main(["export", f"{run}/policy_best.safetensors"]) == 2
    assert cli.main(["export", f"{run}/policy_best.safetensors", "--out", f"{run}/policy.onnx"]) == 2
    assert "--force" in capsys.readouterr().err
    assert Path(run, "policy.onnx").read_bytes() == first
    capsys.readouterr()
    for words in (["--out=p.pt2", "--format=onnx"], ["--out=p", "--format=torch"], [f"--out={run}/policy.safetensors"]):
        assert cli.main(["export", run, *words, "--force"]) == 2
        assert "the name of a file of --format" in capsys.readouterr().err
    assert cli.main(["export", run, "--checkpoint=128", "--out", f"{run}/policy.onnx", "--force"]) == 0
    assert Path(run, "policy.onnx").read_bytes() != first
