"""Prepared data: gathered rows equal the written ones, and damage is reported."""

import json
import pickle

import numpy as np
import pytest

import made_data
from lockstep import ConfigError
from lockstep.data.columns import Ragged, aligned, offsets_of
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.data.feature_file import save_features
from lockstep.data.features import Feature

INDEX = np.array([5, 199, 0, 5, 63, 64, 10, 127, 128, 15, 131, 70, 1])


def lists(ragged: Ragged) -> list[list[list[float]]]:
    return [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)]


PARTS = pytest.mark.parametrize("part_rows", [64, 1 << 22], ids=["four parts", "one part"])


@pytest.fixture
def discrete(tmp_path, part_rows):
    columns = made_data.discrete_columns(metrics=2)
    return columns, Dataset.open(made_data.write(tmp_path / "discrete", columns, part_rows=part_rows), verify=True)


@pytest.fixture
def parametric(tmp_path, part_rows):
    columns = made_data.parametric_columns()
    return columns, Dataset.open(made_data.write(tmp_path / "parametric", columns, part_rows=part_rows), verify=True)


@pytest.fixture(params=["discrete", "parametric"])
def either(request, discrete, parametric):
    return discrete if request.param == "discrete" else parametric


@PARTS
def test_columns_equal_the_written_rows(either):
    columns, dataset = either
    assert len(dataset) == 200
    for name, column in columns.items():
        if not name.startswith("possible_") or dataset.info.kind == "discrete":
            assert np.array_equal(dataset.column(name)[INDEX], column[INDEX]), name
            for run in (slice(0, 200), slice(60, 131), slice(64, 64), slice(199, 300), slice(64, 128)):
                assert np.array_equal(dataset.column(name)[run], column[run]), (name, run)
        elif not name.endswith("_offsets"):
            every = lists(Ragged(column, columns[offsets_of(name)]))
            assert lists(dataset.ragged(name)[INDEX]) == [every[i] for i in INDEX], name
            assert lists(dataset.ragged(name)[60:131]) == every[60:131], name


@PARTS
def test_rows_out_of_range_are_rejected(discrete):
    _, dataset = discrete
    for bad in (-1, 200):
        with pytest.raises(IndexError, match="200"):
            dataset.rows(np.array([3, bad]))
        with pytest.raises(IndexError, match="200"):
            dataset.column("reward")[np.array([bad])]


@PARTS
def test_discrete_rows_are_gathered(discrete):
    columns, dataset = discrete
    rows = dataset.rows(INDEX)
    for name in ("state", "reward", "metrics", "next_state", "action", "time_diff", "propensity"):
        assert np.array_equal(getattr(rows, name), columns[name][INDEX]), name
    for name in ("possible_actions", "possible_next_actions"):
        assert getattr(rows, name).dtype == np.float32
        assert np.array_equal(getattr(rows, name), columns[name][INDEX]), name
    unknown = columns["next_action"][INDEX] < 0
    assert unknown.any()
    assert not unknown.all()
    assert np.array_equal(rows.has_next_action, 1 - unknown)
    assert np.array_equal(rows.next_action, np.where(unknown, 0, columns["next_action"][INDEX]))
    assert rows.action.dtype == rows.next_action.dtype == rows.action_index.dtype == np.int64
    assert np.array_equal(rows.action_index, rows.action)
    assert np.array_equal(rows.not_terminal, 1 - columns["terminal"][INDEX])
    assert (rows.steps == 1).all()
    assert (rows.weight == 1).all()


@PARTS
def test_parametric_rows_are_gathered(parametric):
    columns, dataset = parametric
    rows = dataset.rows(INDEX)
    for name in ("action", "next_action", "has_next_action", "action_index"):
        assert np.array_equal(getattr(rows, name), columns[name][INDEX]), name
    taken = [of[i] for of, i in zip(lists(rows.possible_actions), rows.action_index, strict=True)]
    assert np.array_equal(taken, rows.action)
    assert [len(x) > 0 for x in lists(rows.possible_next_actions)] == (rows.not_terminal > 0).tolist()
    part = rows.between(2, 7)
    assert lists(part.possible_actions) == lists(rows.possible_actions)[2:7]
    assert np.array_equal(part.reward, rows.reward[2:7])
    assert len(part) == 5


def slowly(columns, row: int, n_step: int, gamma: float):
    """A window, one row after the other: its last row, its length, the return, and that of the metrics."""
    total, metrics = float(columns["reward"][row]), columns["metrics"][row].astype(np.float64)
    for k in range(1, n_step):
        if not columns["continues"][row]:
            return row, k, total, metrics
        row += 1
        total += gamma**k * float(columns["reward"][row])
        metrics += gamma**k * columns["metrics"][row].astype(np.float64)
    return row, n_step, total, metrics


@PARTS
@pytest.mark.parametrize("n_step", [2, 3, 20])
def test_n_step_windows_sum_discounted_rewards(discrete, n_step):
    columns, dataset = discrete
    every = np.arange(200)
    rows = dataset.rows(every, n_step=n_step, gamma=0.9)
    told = [slowly(columns, row, n_step, 0.9) for row in every]
    last = np.array([x[0] for x in told])
    assert np.array_equal(rows.steps, [x[1] for x in told])
    assert {1, 2} <= set(rows.steps.tolist())
    assert rows.reward == pytest.approx([x[2] for x in told], rel=1e-6, abs=1e-6)
    assert rows.metrics == pytest.approx(np.array([x[3] for x in told]), rel=1e-5, abs=1e-6)
    assert np.array_equal(rows.next_state, columns["next_state"][last])
    assert np.array_equal(rows.not_terminal, 1 - columns["terminal"][last])
    assert np.array_equal(rows.possible_next_actions, columns["possible_next_actions"][last])
    assert np.array_equal(rows.state, columns["state"]), "the window begins elsewhere"
    assert np.array_equal(rows.time_diff, columns["time_diff"])


@PARTS
def test_n_step_rows_are_independent_of_other_rows(discrete):
    _, dataset = discrete
    together = dataset.rows(INDEX, n_step=4, gamma=0.97)
    for i, row in enumerate(INDEX):
        alone = dataset.rows(np.array([row]), n_step=4, gamma=0.97)
        assert alone.reward.tobytes() == together.reward[i : i + 1].tobytes()


@PARTS
def test_next_columns_can_be_omitted(either):
    _, dataset = either
    rows, whole = dataset.rows(INDEX, next_columns=False), dataset.rows(INDEX)
    assert len(rows.next_state) == len(rows.next_action) == len(rows.has_next_action) == 0
    assert np.array_equal(rows.not_terminal, whole.not_terminal)
    assert np.array_equal(rows.state, whole.state)


@PARTS
def test_matrices_are_aligned(parametric):
    _, dataset = parametric
    rows = dataset.rows(INDEX)
    for start in range(1, 9):
        part = rows.between(start, start + 2)
        arrays = [part.state, part.next_state, part.action, part.next_action, part.possible_actions.values]
        assert all(array.ctypes.data % 64 == 0 for array in arrays), start
        assert np.array_equal(part.state, rows.state[start : start + 2])
    array = np.arange(100, dtype=np.float32)
    shifted = next(array[i:] for i in range(16) if array[i:].ctypes.data % 64)
    assert np.array_equal(aligned(shifted), shifted)


@PARTS
def test_info_is_read_back(discrete, parametric):
    for _, dataset in (discrete, parametric):
        assert DatasetInfo.from_dict(json.loads(json.dumps(dataset.info.to_dict()))) == dataset.info
    candidates = {**parametric[1].info.to_dict(), "candidates": [{"4": 1.0}, {"5": 1.0}]}
    assert DatasetInfo.from_dict(candidates).candidates == ({"4": 1.0}, {"5": 1.0})


@PARTS
def test_keys_are_selected_by_range(discrete):
    columns, dataset = discrete
    half = 1 << 63
    low, high = dataset.keys_between(0, half), dataset.keys_between(half, 1 << 64)
    assert len(low) > 0
    assert len(high) > 0
    assert sorted(map(tuple, np.concatenate([low, high]).tolist())) == sorted(map(tuple, columns["key"].tolist()))
    assert (low[:, 0] < np.uint64(half)).all()
    assert (high[:, 0] >= np.uint64(half)).all()


@PARTS
def test_check_rows_hold_raw_values(parametric):
    columns, dataset = parametric
    rows = dataset.check_rows()
    assert np.array_equal(rows["state_value"], columns["state"][rows["row"]].astype(np.float64))
    assert np.array_equal(rows["action_value"], columns["action"][rows["row"]].astype(np.float64))


# -- damaged data ------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return made_data.discrete(tmp_path / "data")


def refused(path, match, **how):
    with pytest.raises(ConfigError, match=match) as caught:
        Dataset.open(path, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(path, **changes):
    file = path / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_missing_data_is_rejected(tmp_path, path):
    refused(tmp_path / "none", "does not exist; .*lockstep offline prepare LOG --out")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no dataset.json")
    (tmp_path / "log.jsonl").write_text("{}")
    refused(tmp_path / "log.jsonl", "is a file, not prepared data; .*prepare .*log.jsonl")
    (path / "dataset.json").unlink()
    refused(path, "preparing did not finish")


def test_missing_column_file_is_rejected(path):
    (path / "part_00000/reward.npy").unlink()
    refused(path, r"part_00000/reward\.npy is missing; prepare")


def test_truncated_column_file_is_rejected(path):
    file = path / "part_00000/state.npy"
    file.write_bytes(file.read_bytes()[:-4])
    message = refused(path, r"part_00000/state\.npy holds \d+ bytes instead of \d+")
    assert f"{128 + 200 * 16 - 4} bytes instead of {128 + 200 * 16}" in message


def test_changed_file_is_detected_with_verify(path):
    file = path / "part_00000/state.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    Dataset.open(path)
    refused(path, r"state\.npy is not what was prepared: its checksum differs", verify=True)


def test_newer_format_is_rejected(path):
    change(path, format=2)
    refused(path, "format 2, and this version of Lockstep reads format 1; prepare the data again")


def test_damaged_description_is_rejected(path):
    text = (path / "dataset.json").read_text()
    (path / "dataset.json").write_text(text[: len(text) // 2])
    refused(path, r"dataset\.json is damaged")
    (path / "dataset.json").write_text("[]")
    refused(path, "does not describe prepared data")
    description = json.loads(text)
    for name in ("info", "files", "parts"):
        (path / "dataset.json").write_text(
            json.dumps({key: value for key, value in description.items() if key != name})
        )
        refused(path, f"{name} is missing")
    (path / "dataset.json").write_text(json.dumps(description | {"info": description["info"] | {"num_rows": "many"}}))
    refused(path, r"dataset\.json is damaged .*num_rows")
    (path / "dataset.json").write_text(json.dumps(description | {"parts": [100]}))
    refused(path, "its counts of rows differ")


def test_edited_normalization_is_rejected(path):
    file = path / "state_features.json"
    features = made_data.as_it_is("0123")
    edited = {**dict(features.items()), "2": Feature(type="continuous", mean=1.0, stddev=2.0)}
    save_features(type(features)(edited), file)
    message = refused(path, r"state_features\.json was changed after the data was normalized by it")
    assert f"--state-features {file}" in message
    file.unlink()
    refused(path, r"state_features\.json is missing")


def test_array_of_another_type_is_rejected(path):
    file = path / "part_00000/reward.npy"
    np.save(file, np.zeros(200, np.int32))
    refused(path, r"reward\.npy holds <i4 \[200\] instead of <f4 \[200\]")


def test_pickled_arrays_are_rejected(path, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    file = path / "part_00000/reward.npy"
    size = file.stat().st_size
    with file.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "|O", "fortran_order": False, "shape": (200,)})
        out.write(pickle.dumps(Bomb()))
        out.write(b"\0" * (size - out.tell()))
    refused(path, r"reward\.npy cannot be read as an array")
    assert not (tmp_path / "boom").exists()
