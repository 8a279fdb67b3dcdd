"""What loops of one's own give to a run directory: taken as plain values, or refused by name before it is written."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.record.file_numbers import number_of
from lockstep.record.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    with RunDir.create(tmp_path / "run") as made:
        yield made


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("step", [torch.tensor(4.0), 4.0, np.float32(4), np.int64(4), torch.tensor([4])], ids=repr)
def test_a_step_is_a_whole_number_of_any_type(run_dir, step):
    """Sums of counts over ranks are floats: `rows, mean, variance = comm.moments(...)`."""
    run_dir.write_metrics(step, torch.tensor(0.5), {"a": 1.0})
    run_dir.write_evaluation(step, [1.0], [1])
    run_dir.flush()
    assert lines(run_dir.path / "metrics.jsonl") == [{"step": 4, "time_s": 0.5, "a": 1.0}]
    assert lines(run_dir.path / "evaluations.jsonl")[0]["step"] == 4


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), Fraction(1)], ids=repr)
def test_a_metric_is_a_number_to_every_reader(run_dir, value):
    run_dir.write_metrics(1, 0.5, {"solved": value})
    run_dir.write_evaluation(1, [value], [1])
    run_dir.flush()
    for file in ("metrics", "evaluations"):
        assert "true" not in (run_dir.path / f"{file}.jsonl").read_text()
    assert number_of(lines(run_dir.path / "metrics.jsonl")[0]["solved"]) == 1.0


@pytest.mark.parametrize("step", [1.5, torch.tensor(1.5), torch.zeros(2), float("nan"), "7", True, None, -1], ids=repr)
def test_what_is_no_step_is_named_before_anything_is_written(run_dir, step):
    for write in (lambda: run_dir.write_metrics(step, 1.0, {"a": 1.0}), lambda: run_dir.write_evaluation(step, [], [])):
        with pytest.raises(ConfigError, match=r"^step=.* must be a whole number of at least 0; give int\(...\) of it"):
            write()
    assert [path.name for path in run_dir.path.iterdir()] == []


@pytest.mark.parametrize(
    ("time_s", "metrics", "said"),
    [
        (None, {}, "^time_s=None must be one number"),
        (1.0, {"step": 7.0}, "^metric step would replace the step of its line; give it another name$"),
        (1.0, {"time_s": 7.0}, "^metric time_s would replace"),
    ],
)
def test_metrics_that_would_damage_their_line_are_refused(run_dir, time_s, metrics, said):
    with pytest.raises(ConfigError, match=said):
        run_dir.write_metrics(1, time_s, metrics)
    assert not (run_dir.path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("returns", "lengths"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([3, 4])),
        ([torch.tensor(1.0), np.float32(2.0)], [np.int64(3), 4]),
        (iter([1.0, 2.0]), (3, 4)),
    ],
    ids=["tensors", "scalars", "iterator"],
)
def test_evaluations_may_be_any_rows_of_numbers(run_dir, returns, lengths):
    run_dir.write_evaluation(1, returns, lengths)
    run_dir.flush()
    assert lines(run_dir.path / "evaluations.jsonl") == [{"step": 1, "returns": [1.0, 2.0], "lengths": [3, 4]}]


@pytest.mark.parametrize(
    ("returns", "lengths", "said"),
    [
        (5.0, [1], "^returns=5.0 must be a list or an array"),
        (torch.tensor(5.0), [1], r"^returns=tensor\(5\.\) must be a list or an array"),
        ([[1.0, 2.0]], [1], "^returns=.* must be a list or an array"),
        ([1.0], ["3"], r"^lengths=\['3'\] must be a list or an array"),
        ([1.0, 2.0], [3], "^lengths given: 1; needed: 2, one for each return$"),
    ],
)
def test_what_is_no_evaluation_is_named_before_anything_is_written(run_dir, returns, lengths, said):
    with pytest.raises(ConfigError, match=said):
        run_dir.write_evaluation(1, returns, lengths)
    assert not (run_dir.path / "evaluations.jsonl").exists()


def test_a_summary_may_hold_paths_and_arrays(run_dir):
    run_dir.write_summary({"policy": Path("a/b"), "best": np.array([1.0, np.nan]), "env_steps": torch.tensor(3)})
    found = json.loads((run_dir.path / "summary.json").read_text())
    assert found == {"policy": "a/b", "best": [1.0, None], "env_steps": 3}


@pytest.mark.parametrize("value", [{1, 2}, torch.zeros(2), object(), {(1, 2): {3}}], ids=lambda v: type(v).__name__)
def test_an_entry_of_a_summary_that_cannot_be_written_is_named(run_dir, value):
    with pytest.raises(ConfigError, match=r"^summary x=.* cannot be written to a file; give numbers"):
        run_dir.write_summary({"status": "finished", "x": value})
    assert not (run_dir.path / "summary.json").exists()
