"""Columns that the user leaves out of a log, by null in `--columns`."""

import polars as pl
import pytest

import made_logs
from lockstep.data.logs.format import read_log
from lockstep.data.logs.schema import read_columns
from lockstep.errors import ConfigError
from made_logs import row, write


def log_of(folder, name):
    """A log with columns that are not to be believed."""
    more = {"terminated": True, "action_probability": 0.5, "metrics": {"clicks": 1.0}, "possible_actions": ["go"]}
    rows = [row(i, action="go", **more) for i in range(3)]
    if name == "a.jsonl":
        return write(folder / name, rows)
    if name == "a.parquet":
        pl.DataFrame(rows).write_parquet(folder / name)
    else:
        spread = {"state:0": 0.5, "metric:clicks": 1.0, "possible_actions": '["go"]'}
        scalars = {key: value for key, value in rows[0].items() if isinstance(value, str | float | bool)}
        pl.DataFrame([scalars | spread | {"sequence_number": i} for i in range(3)]).write_csv(folder / name)
    return folder / name


LEFT_OUT = ("terminated", "propensity", "metrics", "possible_actions")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.csv"])
def test_a_column_that_is_null_is_not_read(tmp_path, name):
    path = log_of(tmp_path, name)
    (tmp_path / "columns.yaml").write_text("".join(f"{column}: null\n" for column in LEFT_OUT))
    everything, log = read_log([path]), read_log([path], columns=read_columns(tmp_path / "columns.yaml"))
    rows, fewer = made_logs.whole(everything), made_logs.whole(log)
    for column in ("terminated", "propensity", "possible_actions", "metric:clicks"):
        assert not rows[column].is_null().any(), "the log has it"
        assert column not in fewer or fewer[column].is_null().all()
    assert fewer["reward"].to_list() == rows["reward"].to_list()
    assert not log.notes, "the user knows what is left out"


@pytest.mark.parametrize("name", ["mdp_id", "sequence_number", "state_features", "action", "reward"])
def test_a_column_that_every_log_needs_cannot_be_left_out(tmp_path, name):
    with pytest.raises(ConfigError, match=f"--columns: {name} is null; it must be the name of a column"):
        read_log([log_of(tmp_path, "a.jsonl")], columns={name: None})


def test_a_value_that_names_no_column_is_told_that_null_leaves_it_out(tmp_path):
    with pytest.raises(ConfigError, match="terminated is false; it must be the name of a column, or null to leave it "):
        read_log([log_of(tmp_path, "a.jsonl")], columns={"terminated": False})
