"""Exported policies of logs, run by onnxruntime and by torch: preprocessing, verification, metadata."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import made_data
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.cli.main import main
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.data.dataset_writer import DatasetWriter
from lockstep.data.feature_file import features_to_dict
from lockstep.data.features import Feature, Features
from lockstep.errors import ConfigError, RunError
from lockstep.run import OfflineRun, ScoreNetworkConfig, dump
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.deploy.exported_file import EXTRA_FILE, SUFFIXES, run_program
from lockstep.torch.deploy.offline_export import export, export_policy
from lockstep.torch.deploy.onnx_model import run_onnx
from lockstep.torch.export import save_policy
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream
from quick import others_slow

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

STATE = Features(
    {
        "7": Feature(type="enum", possible_values=(0.0, 2.0, 3.0)),
        "0": Feature(type="continuous", mean=1.7e9, stddev=50.0),
        "12": Feature(type="quantile", quantiles=(0.0, 0.5, 4.0)),
        "3": Feature(type="boxcox", boxcox_lambda=0.5, boxcox_shift=0.1, mean=1.0, stddev=2.0),
    }
)
ACTION = Features({"100": Feature(type="probability"), "101": Feature(type="enum", possible_values=(1.0, 2.0))})
NETWORK = ScoreNetworkConfig(hidden=(16, 8))
FORMATS = ("onnx", "torch")


def raw_states(rows, seed=0):
    draws = stream(seed, "raw")
    columns = [1.7e9 + 80 * draws.normal(size=rows), draws.exponential(size=rows), draws.integers(0, 4, rows)]
    raw = np.stack([*columns, 5 * draws.random(rows)], 1)  # in the order of ids: 0, 3, 7, 12
    return np.where(draws.random(raw.shape) < 0.1, np.nan, raw)


def raw_actions(rows, seed=0):
    draws = stream(seed, "actions")
    return np.stack([draws.random(rows), draws.choice([1.0, 2.0, np.nan], rows)], 1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "data", "discrete")


def prepared(path, kind, rows=300):
    """Prepared data with features of several types, and its raw rows."""
    raw = raw_states(rows)
    state = STATE.normalize(raw)
    check = {"row": np.arange(rows)[::-1].copy(), "state_value": raw[::-1]}
    if kind == "discrete":
        columns = made_data.discrete_columns(rows, state_size=STATE.size) | {"state": state}
        said = {"actions": ("stay", "go", "wait a while")}
    else:
        actions = raw_actions(rows)
        columns = made_data.parametric_columns(rows, state_size=STATE.size, action_size=ACTION.size)
        columns |= {"state": state, "action": ACTION.normalize(actions)}
        check["action_value"] = actions[::-1]
        said = {"action_features": ACTION.ids, "action_size": ACTION.size, "candidates": ({"100": 0.5},)}
    info = DatasetInfo(
        kind=kind,
        num_rows=rows,
        num_trajectories=int(columns["trajectory"][-1]) + 1,
        state_features=STATE.ids,
        state_size=STATE.size,
        metrics=("metric 0",),
        digest="abc",
        **said,
    )
    with DatasetWriter(path, kind, info.sizes) as writer:
        writer.append(columns)
        writer.finish(info, STATE, None if kind == "discrete" else ACTION, check=check)
    return Dataset.open(path)


def policy_of(dataset, seed=1, algorithm=None, **changes):
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=NETWORK,
        algo="dqn" if dataset.info.kind == "discrete" else "parametric_dqn",
        algorithm=algorithm or OfflineDQNConfig(**changes),
    )
    return ScoringPolicy(about, seed=seed)


def run(path, inputs):
    return run_onnx(path, inputs) if path.suffix == ".onnx" else run_program(path, inputs)


def seen(policy, raw):
    return policy.state(torch.from_numpy(raw))


def given(of, raw):
    present = ~np.isnan(raw)
    return {f"{of}_value": np.where(present, raw, -99.0), f"{of}_presence": present}


def about_of(path):
    if path.suffix == ".onnx":
        import onnxruntime

        return json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["lockstep"])
    extra = {EXTRA_FILE: ""}
    torch.export.load(path, extra_files=extra)
    return json.loads(extra[EXTRA_FILE])


@pytest.mark.parametrize("chosen", others_slow(["greedy", "softmax"], "softmax"))
@pytest.mark.parametrize("to", others_slow(FORMATS, "onnx"))
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_named_actions(tmp_path, to, chosen):
    data = prepared(tmp_path / "data", "discrete")
    policy = policy_of(data, policy=chosen, temperature=0.2, dueling=True)
    done = export(policy, data, tmp_path / "deep" / f"mine{SUFFIXES[to]}", to)
    assert (done.rows, done.num_same_action) == (300, 300)
    assert done.difference < 1e-5
    assert [file.name for file in (tmp_path / "deep").iterdir()] == [f"mine{SUFFIXES[to]}"]
    raw = raw_states(50, seed=9)
    with torch.no_grad():
        scores = policy.network(seen(policy, raw))
    for rows in (slice(0, 50), slice(3, 4)):
        out = run(done.path, given("state", raw[rows]))
        np.testing.assert_allclose(out["scores"], scores[rows], rtol=1e-5, atol=1e-5)
        soft = (scores[rows] / 0.2).softmax(-1)
        wanted = soft if chosen == "softmax" else torch.eye(3)[scores[rows].argmax(-1)]
        np.testing.assert_allclose(out["probability"], wanted, atol=1e-5)
        assert (out["action"] == scores[rows].argmax(-1).numpy()).all()
        if to == "onnx":
            assert [data.info.actions[i] for i in out["action"]] == list(out["action_name"])
    told = about_of(done.path)
    assert (told["kind"], told["actions"]) == ("discrete", ["stay", "go", "wait a while"])
    assert told["state_features"] == ["0", "3", "7", "12"]
    assert (told["policy"], told["temperature"], told["algo"], told["data_digest"]) == (chosen, 0.2, "dqn", "abc")
    assert told["normalization"]["state"] == features_to_dict(STATE)["features"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["greedy", "softmax"])
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_candidates(tmp_path, to, chosen):
    data = prepared(tmp_path / "data", "parametric")
    policy = policy_of(data, policy=chosen, temperature=0.2)
    done = export(policy, data, tmp_path / f"mine{SUFFIXES[to]}", to)
    assert (done.rows, done.num_same_action) == (300, None)
    raw, actions = raw_states(4, seed=9), raw_actions(7, seed=9)
    actions[5] = actions[4]  # equal scores: the first counts
    owner = np.array([2, 0, 0, 0, 3, 3, 2])  # in any order, and none of state 1
    inputs = given("state", raw) | given("action", actions) | {"state_of_candidate": owner}
    out = run(done.path, inputs)
    with torch.no_grad():
        seen_actions = policy.action(torch.from_numpy(actions))
        scores = policy.network(seen(policy, raw), seen_actions, torch.from_numpy(owner))
    np.testing.assert_allclose(out["scores"], scores, rtol=1e-5, atol=1e-5)
    for state in (0, 2, 3):
        mine = np.flatnonzero(owner == state)
        wanted = (scores[mine] / 0.2).softmax(0).numpy()
        if chosen == "greedy":
            wanted = np.eye(len(mine))[scores[mine].numpy().argmax()]
        np.testing.assert_allclose(out["probability"][mine], wanted, atol=1e-5)
    one = {name: value[:1] for name, value in inputs.items()} | {"state_of_candidate": np.zeros(1, np.int64)}
    assert run(done.path, one)["probability"] == [1.0]
    told = about_of(done.path)
    assert (told["kind"], told["action_features"], told["candidates"]) == ("parametric", ["100", "101"], [{"100": 0.5}])
    assert told["normalization"]["action"] == features_to_dict(ACTION)["features"]


@pytest.mark.slow  # quick: exports of test_possible_actions.py
@pytest.mark.parametrize("algorithm", [OfflineDQNConfig(bcq_threshold=0.9), CloningConfig()], ids=["bcq", "cloning"])
def test_other_algorithms(tmp_path, algorithm):
    data = prepared(tmp_path / "data", "discrete")
    policy = policy_of(data, algorithm=algorithm)
    done = export(policy, data, tmp_path / "policy.onnx", "onnx")
    assert done.difference < 1e-5
    raw = raw_states(20)
    with torch.no_grad():
        scores = policy.scores(seen(policy, raw), torch.ones(20, 3))
    assert ((scores == -1e9).any()) == (algorithm.__class__ is OfflineDQNConfig)
    np.testing.assert_allclose(run(done.path, given("state", raw))["scores"], scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("to", others_slow(FORMATS, "torch"))
def test_file_with_different_scores_is_not_written(dataset, tmp_path, to, monkeypatch):
    """The prepared rows are changed, so that they no longer match the raw rows."""
    policy, column = policy_of(dataset), dataset.column

    class Other:
        def __getitem__(self, rows):
            state = column("state")[rows]
            state[7] += 0.01
            return state

    monkeypatch.setattr(dataset, "column", lambda name: Other() if name == "state" else column(name))
    row = dataset.check_rows()["row"][7]
    with pytest.raises(RunError, match=rf"was not written: it would score row {row} of .* differently .* rounding"):
        export(policy, dataset, tmp_path / "policy", to)
    assert list(tmp_path.iterdir()) == []


def test_nan_score_counts_as_difference(dataset, tmp_path):
    policy = policy_of(dataset)
    with torch.no_grad():
        next(policy.network.parameters()).fill_(torch.nan)
    with pytest.raises(RunError, match="was not written"):
        export(policy, dataset, tmp_path / "policy.pt2", "torch")
    assert list(tmp_path.iterdir()) == []


def test_data_with_other_features_is_rejected(dataset, tmp_path):
    other = made_data.discrete(tmp_path / "other")
    with pytest.raises(ConfigError, match="other was prepared with other features than the policy"):
        export(policy_of(dataset), Dataset.open(other), tmp_path / "policy.onnx", "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_export_policy_writes_all_formats(tmp_path, kind):
    data, folder = prepared(tmp_path / "data", kind), tmp_path / "model"
    told = export_policy(policy_of(data), data, folder)
    assert sorted(file.name for file in folder.iterdir()) == ["policy.onnx", "policy.pt2", "policy.safetensors"]
    assert told[0].endswith("policy.safetensors")
    assert all("compared in 300 rows, largest relative difference" in line for line in told[1:])
    for file in folder.iterdir():
        assert str(Path(__file__).parents[4]).encode() not in file.read_bytes(), f"{file} names paths of this machine"


def test_export_policy_without_onnx_writes_other_formats(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    told = export_policy(policy_of(dataset), dataset, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["policy.pt2", "policy.safetensors"]
    assert "policy.onnx was not written: this needs the package onnxscript" in told[1]
    assert "pip install 'lockstep-rl[export]'" in told[1]


def test_unwritable_folder_raises(dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file.policy.pt2 could not be written"):
        export(policy_of(dataset), dataset, tmp_path / "file" / "policy.pt2", "torch")


class TestCommand:
    """`lockstep export`."""

    @pytest.fixture
    def run_dir(self, dataset, tmp_path):
        path = tmp_path / "run"
        path.mkdir()
        config = OfflineRun(data=str(dataset.path), algo=policy_of(dataset).policy_spec.algo)
        (path / "run.yaml").write_text(dump(config))
        save_policy(path / "policy.safetensors", policy_of(dataset), None, config)
        return path

    def test_the_default_is_onnx_in_the_run(self, run_dir, capsys):
        assert main(["export", str(run_dir)]) == 0
        assert (run_dir / "policy.onnx").is_file()
        assert "policy.onnx: compared in 300 rows" in capsys.readouterr().out

    def test_a_policy_file_and_data_of_its_own(self, run_dir, dataset, tmp_path):
        file, out = str(run_dir / "policy.safetensors"), tmp_path / "deep" / "mine.pt2"
        assert main(["export", file, "--format", "torch", "--out", str(out), "--data", str(dataset.path)]) == 0
        assert about_of(out)["kind"] == dataset.info.kind
        assert not (run_dir / "policy.pt2").exists()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["{run}/nothing"], "nothing does not exist; give a run directory"),
            (["{alone}/policy.safetensors"], "does not say what it learned from; add --data DIR"),
            (["{run}", "--data", "{run}"], "dataset.json"),
            (["{run}", "--out", "{run}"], "is a directory; name a file"),
            (["{run}", "--format", "caffe2"], "caffe2"),
        ],
    )
    def test_mistakes(self, run_dir, words, said, capsys, tmp_path_factory):
        alone = tmp_path_factory.mktemp("alone")  # a policy file without its run
        shutil.copy(run_dir / "policy.safetensors", alone)
        before = sorted(run_dir.iterdir())
        assert main(["export", *(word.format(run=run_dir, alone=alone) for word in words)]) == 2
        assert said in capsys.readouterr().err
        assert sorted(run_dir.iterdir()) == before

    def test_data_that_is_gone(self, run_dir, capsys, tmp_path):
        (run_dir / "run.yaml").write_text(dump(OfflineRun(data=str(tmp_path / "gone"))))
        assert main(["export", str(run_dir)]) == 2
        assert "gone, which" in capsys.readouterr().err
