"""`lockstep offline evaluate`: a run's policy by a log, printed and written down; and mistakes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import made_data
from lockstep.cli import main as cli
from lockstep.data.dataset import Dataset
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.run import NetworkConfig, OfflineRun, Run, ScoreNetworkConfig, dump, override
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.export import save_policy
from lockstep.torch.networks import Policy
from lockstep.torch.scoring.offline_policy import save_offline_policy
from lockstep.torch.scoring.policy import ScoringPolicy


def run_dir(root: Path, make=made_data.discrete, **changes) -> Path:
    """A run directory as training leaves one."""
    dataset = Dataset.open(make(root / "data", rows=200))
    algo = "dqn" if dataset.info.kind == "discrete" else "parametric_dqn"
    run = OfflineRun(data=str(root / "data"), algo=algo, network=ScoreNetworkConfig(hidden=(8,)), device="cpu")
    run = override(run, {"policy": "softmax"} | changes)
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
    )
    path = root / "run"
    path.mkdir()
    (path / "run.yaml").write_text(dump(run))
    save_offline_policy(path / "policy.safetensors", ScoringPolicy(about, seed=1))
    return path


@pytest.mark.parametrize("make", [made_data.discrete, made_data.parametric])
def test_evaluate_prints_a_table_and_writes_the_estimates(make, here, capsys):
    path = run_dir(here, make)
    assert cli.main(["offline", "evaluate", str(path)]) == 0
    said = capsys.readouterr().out
    written = json.loads((path / "estimates.json").read_text())
    assert written["num_rows"] == 200
    value = written["estimates"]["reward"]["sequential_dr"]["value"]
    assert f"{value:.5g}" in said
    assert "warning: the policy learned from these very rows" in said
    assert not [p for p in path.iterdir() if p.name.startswith(".")]


def test_full_disk_is_reported_after_printing_the_estimates(here, capsys, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    path = run_dir(here)
    monkeypatch.setattr("os.fsync", full)
    assert cli.main(["offline", "evaluate", str(path)]) == 1
    said = capsys.readouterr()
    assert "sequential_dr" in said.out
    assert "estimates.json could not be written: No space left on device" in said.err
    assert sorted(p.name for p in path.iterdir()) == ["policy.safetensors", "run.yaml"]


def test_damaged_data_are_not_judged_by(here, capsys):
    path = run_dir(here)
    column = here / "data" / "part_00000" / "reward.npy"
    column.write_bytes(column.read_bytes()[:-1] + b"\x7f")
    assert cli.main(["offline", "evaluate", str(path)]) == 2
    assert "reward.npy is not what was prepared: its checksum differs" in capsys.readouterr().err


def test_other_data_and_json(here, capsys):
    path = run_dir(here)
    made_data.discrete(here / "eval", rows=100, seed=4)
    assert cli.main(["offline", "evaluate", str(path), "--data", "eval", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_rows"] == 100
    assert told == json.loads((path / "estimates.json").read_text())


def test_data_of_another_unit_of_time_are_noted(here, capsys):
    path = run_dir(here, use_time_diff=True)
    columns = made_data.discrete_columns(100)
    columns["time_diff"] = np.where(columns["continues"] != 0, 3600.0, 1.0).astype(np.float32)
    made_data.write(here / "seconds", columns)
    assert cli.main(["offline", "evaluate", str(path), "--data", "seconds"]) == 0
    assert "note: a usual step of the log lasts 3600; with time_diff_unit=1 and" in capsys.readouterr().err
    assert cli.main(["offline", "evaluate", str(path)]) == 0
    assert "note: a usual step" not in capsys.readouterr().err


def test_eval_data_of_the_run_is_preferred(here, capsys):
    made_data.discrete(here / "eval", rows=100, seed=4)
    path = run_dir(here, eval_data=str(here / "eval"))
    assert cli.main(["offline", "evaluate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_rows"] == 100


def test_training_data_is_not_needed_with_data_flag(here, capsys):
    path = run_dir(here)
    (here / "data").rename(here / "moved")
    assert cli.main(["offline", "evaluate", str(path), "--data", "moved"]) == 0
    capsys.readouterr()
    assert cli.main(["offline", "evaluate", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"data={here / 'data'}, which " in told and "learned from, is not there; add --data DIR" in told


def test_missing_eval_data_are_named_as_such(here, capsys):
    made_data.discrete(here / "eval", rows=100, seed=4)
    path = run_dir(here, eval_data=str(here / "eval"))
    (here / "eval").rename(here / "moved")
    assert cli.main(["offline", "evaluate", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"eval_data={here / 'eval'}, which {path} judges by, is not there; add --data DIR" in told


def test_two_ranks_give_the_same_estimates(here, capsys):
    path = run_dir(here, num_shards=2)  # which fixes the threads
    found = []
    for ranks in ("1", "2"):
        assert cli.main(["offline", "evaluate", str(path), "--ranks", ranks, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def make_other(here):
    made_data.discrete(here / "other", rows=50, actions=4)
    return ["--data", "other"]


def make_without_candidates(here):
    made_data.write(here / "other", made_data.parametric_columns(50, most=1), has_possible_actions=False)
    return ["--data", "other"]


def make_a_log(here):
    (here / "log.jsonl").write_text("{}")
    return ["--data", "log.jsonl"]


MISTAKES = {
    "no run": (lambda here: Path("missing"), [], "missing does not exist; give a run directory"),
    "a run of another kind": (
        lambda here: of_environments(here),  # defined below
        [],
        "learned from environments, not from a log; lockstep evaluate",
    ),
    "a file without its run": (lambda here: alone(here), [], "alone.safetensors has no run.yaml beside it"),
    "no best policy": (run_dir, ["--best"], "--best: .*run has no policy_best.safetensors"),
    "no such checkpoint": (run_dir, ["--checkpoint", "5"], "--checkpoint 5: .*run has no checkpoint of this step"),
    "two choices": (run_dir, ["--best", "--last"], "--best and --last choose different policies"),
    "no data": (run_dir, ["--data", "nowhere"], "nowhere"),
    "a log": (
        run_dir,
        make_a_log,
        r"--data log.jsonl is a file, not prepared data; prepare it: .* log.jsonl --out DIRECTORY --like /.*/data$",
    ),
    "other actions": (run_dir, make_other, "other differs in actions .* prepare it with --like /.*/data$"),
    "candidates that are not in the log": (
        lambda here: run_dir(here, made_data.parametric),
        make_without_candidates,
        r"other cannot be used for estimates: .* \(possible_actions\)",
    ),
    "ranks": (run_dir, ["--ranks", "0"], "--ranks 0"),
}


def of_environments(here):
    path = here / "online"
    path.mkdir()
    run = Run(task="CartPole-v1")
    (path / "run.yaml").write_text(dump(run))
    policy = Policy(EnvSpec(4, ActionSpec("discrete", (2,)), "same_step", True), NetworkConfig(hidden=(8,)))
    save_policy(path / "policy.safetensors", policy, None, run)
    return path


def alone(here):
    file = run_dir(here) / "policy.safetensors"
    return file.rename(here / "alone.safetensors")


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case, here, capsys):
    make, words, message = MISTAKES[case]
    path = make(here)
    words = words(here) if callable(words) else words
    assert cli.main(["offline", "evaluate", str(path), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not (path / "estimates.json").exists()


def test_playing_a_run_without_a_simulator_is_refused(here, capsys):
    assert cli.main(["evaluate", str(run_dir(here))]) == 2
    assert "was trained on logged data and has no simulator to play in" in capsys.readouterr().err


def test_a_missing_framework_is_named_without_a_flag_that_the_command_lacks(here, capsys, monkeypatch):
    path = run_dir(here)
    monkeypatch.setattr("lockstep.session.package_checks._installed", lambda name: name == "jax")
    assert cli.main(["offline", "evaluate", str(path)]) == 2
    assert capsys.readouterr().err == (
        "lockstep: error: ml_framework=torch needs the package torch: pip install 'lockstep-rl[torch]'\n"
    )
