"""`--like`: actions of another log are those that have the same names, though the first log lacked some of them."""

from types import SimpleNamespace

import polars as pl
import pytest

from lockstep.cli import main as cli
from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError
from lockstep.session.offline.policy_spec import check_simulator
from made_logs import row, write

REFUSED = "is not one of the actions"


def prepare(folder, out, rows, kind, *more):
    """Exit code of preparing the rows as `folder / out`."""
    log = folder / f"{out}.{kind}"
    if kind == "jsonl":
        write(log, rows)
    else:
        spread = [{"state:0": one["state_features"]["0"], **one} for one in rows]
        frame = pl.DataFrame([{k: v for k, v in one.items() if k != "state_features"} for one in spread])
        frame.write_csv(log) if kind == "csv" else frame.write_parquet(log)
    return cli.main(["offline", "prepare", str(log), "--out", str(folder / out), *map(str, more)])


def taken(*actions, **more):
    """A log of these actions; the reward of each is its number."""
    return [row(i, action=action, reward=float(action), **more) for i, action in enumerate(actions)]


def pairs(folder):
    """The names and rewards of the actions in prepared data, each pair once."""
    data = Dataset.open(folder)
    actions = [data.info.actions[index] for index in data.column("action")[:]]
    return sorted(set(zip(actions, data.column("reward")[:].tolist(), strict=True)))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_numbers_that_the_first_log_had_are_the_same_actions(tmp_path, kind, capsys):
    like = ("--like", tmp_path / "a")
    assert prepare(tmp_path, "a", taken(1, 2, 1, 2), kind) == 0
    assert prepare(tmp_path, "same", taken(1, 2, 1, 2), kind, *like) == 0
    assert prepare(tmp_path, "one", taken(1, 1, 1), kind, *like) == 0
    assert prepare(tmp_path, "again", taken(2, 2, 1), kind, "--like", tmp_path / "one") == 0
    assert pairs(tmp_path / "same") == pairs(tmp_path / "again") == pairs(tmp_path / "a") == [("1", 1.0), ("2", 2.0)]
    assert pairs(tmp_path / "one") == [("1", 1.0)]
    capsys.readouterr()
    for name, unknown in (("less", (0, 1)), ("more", (1, 3))):
        assert prepare(tmp_path, name, taken(*unknown), kind, *like) == 2
        said = capsys.readouterr().err
        assert f'action "{0 if name == "less" else 3}" {REFUSED} 1, 2 of the --like data' in said


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_numbers_are_indices_where_the_first_data_had_their_order_given(tmp_path, kind):
    if kind == "csv":
        actions, rows = "a,b,c", taken(0, 2, 1)
    else:
        actions, rows = "2,1,0", taken(0, 2, 1)  # also names that are numbers, which a CSV cannot tell from indices
    assert prepare(tmp_path, "a", rows, kind, "--actions", actions) == 0
    assert prepare(tmp_path, "b", rows[1:], kind, "--like", tmp_path / "a") == 0
    assert prepare(tmp_path, "c", rows, kind, "--like", tmp_path / "b") == 0
    first = pairs(tmp_path / "a")
    assert pairs(tmp_path / "c") == first == sorted(zip(actions.split(","), (0.0, 1.0, 2.0), strict=True))
    assert set(pairs(tmp_path / "b")) < set(first)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_marks_are_of_the_same_actions(tmp_path, kind, capsys):
    """The first log never allows action 0."""
    assert prepare(tmp_path, "a", taken(1, 2, possible_actions=[0, 1, 1]), kind) == 0
    assert prepare(tmp_path, "b", taken(2, 2, possible_actions=[0, 0, 1]), kind, "--like", tmp_path / "a") == 0
    assert Dataset.open(tmp_path / "b").column("possible_actions")[:].tolist() == [[0, 1]] * 2
    assert prepare(tmp_path, "c", taken(1, 2, possible_actions=[1, 1, 1]), kind, "--like", tmp_path / "a") == 2
    assert f'possible_actions "0" {REFUSED}' in capsys.readouterr().err


def test_names_that_are_only_sorted_are_not_in_the_order_of_a_simulator(tmp_path):
    rows = [row(i, action=("left", "right")[i % 2]) for i in range(4)]
    assert prepare(tmp_path, "sorted", rows, "jsonl") == 0
    assert prepare(tmp_path, "given", rows, "jsonl", "--actions", "right,left") == 0
    for name in ("sorted", "given"):
        assert prepare(tmp_path, f"like {name}", rows, "jsonl", "--like", tmp_path / name) == 0
    spec = SimpleNamespace(image=None, observation_size=2, action=SimpleNamespace(kind="discrete", sizes=(2,)))
    for name in ("given", "like given"):
        check_simulator(SimpleNamespace(spec=spec, info=Dataset.open(tmp_path / name).info), "Some-v0")
    for name in ("sorted", "like sorted"):
        with pytest.raises(ConfigError, match="numbers the actions, and the log names them"):
            check_simulator(SimpleNamespace(spec=spec, info=Dataset.open(tmp_path / name).info), "Some-v0")
