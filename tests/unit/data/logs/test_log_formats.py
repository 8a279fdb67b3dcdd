"""Written logs are read back equal, in every format."""

import sys

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import made_logs
from lockstep.data.logs import writer as log_writer
from lockstep.data.logs.format import read_log
from lockstep.data.logs.writer import LogWriter
from lockstep.errors import ConfigError, RunError

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
FORMATS = ["a.jsonl", "a.json.gz", "a.jsonl.bz2", "a.jsonl.zst", "a.parquet"]


def maps(ids, least=0):
    return st.dictionaries(st.sampled_from(ids), NUMBERS, min_size=least, max_size=len(ids))


MAPS = ("state_features", "next_state_features", "metrics")
STATE, METRICS = maps(["0", "1", "name", 'q"\\é', ""]), maps(["m", "n"])


def shared():
    return {
        "mdp_id": st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4),
        "sequence_number": st.integers(-(2**63), 2**63 - 1),
        "state_features": STATE,
        "reward": NUMBERS,
        "propensity": st.none() | st.floats(0, 1, exclude_min=True),
        "metrics": st.none() | METRICS,
        "next_state_features": st.none() | STATE,
        "time_diff": st.none() | st.floats(0, 1e6),
        "terminated": st.none() | st.booleans(),
        "truncated": st.none() | st.booleans(),
    }


def choices(action):
    lists = st.none() | st.lists(action, max_size=3)
    return {
        "action": action,
        "next_action": st.none() | action,
        "possible_actions": lists,
        "possible_next_actions": lists,
    }


LOGS = st.lists(st.fixed_dictionaries(shared() | choices(st.sampled_from(["l", "r", "ü"]))), min_size=1, max_size=6)
FEATURES = maps(["7", "8"], least=1)
PARAMETRIC = st.lists(st.fixed_dictionaries(shared() | choices(FEATURES)), min_size=1, max_size=6)


def read_back(table: pl.DataFrame, row: int) -> dict:
    """A row of a table as it was written."""
    here, found = table.row(row, named=True), {}
    for column, value in here.items():
        name, _, key = column.partition(":")
        name = {"state": "state_features", "next_state": "next_state_features", "metric": "metrics"}.get(name, name)
        if ":" in column:
            found.setdefault(name, {})
            if value is not None:
                found[name][key] = value
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            found[name] = [{k: v for k, v in one.items() if v is not None} for one in value]
        else:
            found[name] = value
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows_of", [LOGS, PARAMETRIC], ids=["discrete", "parametric"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_written_rows_are_read_back(tmp_path, name, rows_of, data):
    rows = data.draw(rows_of)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    with LogWriter(path) as log:
        log.write(rows[:1])
        log.write(rows[1:])
    table = made_logs.whole(read_log([path]))
    assert len(table) == len(rows) == log.num_rows
    for i, row in enumerate(rows):
        found = read_back(table, i)
        for column, value in row.items():
            is_map = column in MAPS or (isinstance(row["action"], dict) and column in ("action", "next_action"))
            nothing = {} if is_map else None
            assert found.get(column, nothing) == (nothing if value is None else value), column


@pytest.mark.parametrize("name", FORMATS)
def test_interrupted_write_leaves_no_file(tmp_path, name):
    with pytest.raises(KeyboardInterrupt), LogWriter(tmp_path / name) as log:
        log.write([made_logs.row()])
        assert not (tmp_path / name).exists()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with LogWriter(tmp_path / name) as log:
        log.write([made_logs.row()])
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", FORMATS)
def test_equal_rows_give_equal_bytes(tmp_path, name):
    for folder in ("a", "b"):
        with LogWriter(tmp_path / folder / name) as log:
            log.write([made_logs.row(i) for i in range(10)])
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_parquet_parts_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(log_writer, "_PART_ROWS", 30)
    with LogWriter(tmp_path / "a.parquet") as log:
        for i in range(100):
            log.write([made_logs.row(i)])
    assert made_logs.table(tmp_path / "a.parquet")["sequence_number"].to_list() == list(range(100))


def test_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ConfigError, match=r"a\.jsonl is there already; choose another name"):
        LogWriter(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_unsupported_format_is_rejected(tmp_path, name):
    with pytest.raises(ConfigError, match="parquet"):
        LogWriter(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        LogWriter(tmp_path / "file" / "a.jsonl")


def test_full_disk_is_reported(tmp_path):
    def full(text):
        raise OSError(28, "No space left on device")

    expected = pytest.raises(RunError, match=r"a\.jsonl could not be written: No space left on device")
    with expected, LogWriter(tmp_path / "a.jsonl") as log:
        log._file = type("Full", (), {"write": staticmethod(full)})()
        log.write([made_logs.row()])
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_reported_for_parquet(tmp_path, monkeypatch):
    def full(table, path):
        path.write_bytes(b"half")
        raise pl.exceptions.ComputeError("parquet: File out of specification: Invalid thrift: transport error")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    expected = pytest.raises(RunError, match=r"a\.parquet could not be written: .* is the disk full\?")
    with expected, LogWriter(tmp_path / "a.parquet") as log:
        log.write([made_logs.row()])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "package"), [("a.jsonl.zst", "zstandard"), ("a.parquet", "polars")])
def test_missing_package_leaves_no_file(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs the package {package} .*pip install 'lockstep-rl\[offline\]'"):
        LogWriter(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
