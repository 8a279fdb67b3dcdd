"""Warnings about data that fit, and yet are probably not what was meant."""

import numpy as np
import pytest

import made_data
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun, override
from lockstep.session.offline import data_notes
from lockstep.session.offline.data_notes import overlap_note, time_note

ROWS = 400


def part(columns, rows):
    """Some rows of the columns; nothing continues after the last one."""
    found = {name: column[rows] for name, column in columns.items()}
    found["continues"][-1] = 0
    return found


@pytest.fixture
def columns():
    return made_data.discrete_columns(ROWS)


@pytest.mark.parametrize(
    ("step", "unit", "words"),
    [
        (
            7_200_000.0,
            1.0,
            "lasts 7.2e+06; with time_diff_unit=1 and gamma=0.99 that is a discount of 0: rewards after",
        ),
        (7_200_000.0, 3_600_000.0, None),
        (1.0, 1.0, None),
        (2.0, 3600.0, "discount of 0.999994: rewards are hardly discounted"),
    ],
)
def test_a_unit_of_time_that_does_not_fit_the_log(tmp_path, columns, step, unit, words):
    columns["time_diff"] = np.where(columns["continues"] != 0, step, 1.0).astype(np.float32)
    data = Dataset.open(made_data.write(tmp_path / "data", columns))
    run = override(OfflineRun(data="data"), {"use_time_diff": True, "time_diff_unit": unit})
    note = time_note(run, data)
    assert note is None if words is None else words in note
    for other in ({"gamma": 1.0}, {"gamma": 0.0}, {"use_time_diff": False, "time_diff_unit": 1.0}):
        assert time_note(override(run, other), data) is None
    assert time_note(OfflineRun(data="data", algo="bc"), data) is None


def test_rows_of_both_data_are_counted(tmp_path, columns, monkeypatch):
    cuts = {"first": slice(0, 300), "last": slice(200, 400), "rest": slice(300, 400)}
    for name, rows in cuts.items():
        made_data.write(tmp_path / name, part(columns, rows))
    first, last, rest = (Dataset.open(tmp_path / name) for name in cuts)
    assert overlap_note(first, rest) is None
    assert overlap_note(first, last).startswith("100 of 200 rows of eval_data are rows of data, too")
    assert overlap_note(first, first).startswith("300 of 300 rows of eval_data are")
    monkeypatch.setattr(data_notes, "_COMPARED", 60)
    monkeypatch.setattr(data_notes, "_READ", 7)
    found = overlap_note(first, first)
    count = int(found.split()[0])
    assert 20 < count < 120
    assert found.startswith(f"{count} of {count} rows of eval_data that were compared are")


def test_other_decisions_of_the_same_names_are_other_rows(tmp_path, columns):
    first = Dataset.open(made_data.write(tmp_path / "first", columns))
    other = columns | {"state": columns["state"] + 1}
    assert overlap_note(first, Dataset.open(made_data.write(tmp_path / "second", other))) is None
