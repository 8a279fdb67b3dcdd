"""Logs in tables: CSV, and Parquet with every encoding of maps."""

import gzip
import json
import random

import polars as pl
import pytest

import made_logs
from lockstep.data.logs import tables
from lockstep.data.logs.format import read_log
from lockstep.data.logs.writer import LogWriter
from made_logs import row, table, write

STRUCT = pl.Struct({"0": pl.Float64, "5": pl.Float64, "x": pl.Float64})
STATES = [{"0": 1.0, "5": -2.0}, {"5": 0.25}, {}, {"0": 3.0, "x": 4.0}]


def entries(maps, key=str):
    return [None if one is None else [{"key": key(k), "value": v} for k, v in one.items()] for one in maps]


def columns(count=4):
    return {"mdp_id": ["a"] * count, "sequence_number": list(range(count)), "action": ["l"] * count, "reward": 1.0}


def states_of(rows):
    ids = [name[6:] for name in rows.columns if name.startswith("state:")]
    return [{k: here[f"state:{k}"] for k in ids if here[f"state:{k}"] is not None} for here in rows.to_dicts()]


def as_map(made):
    return made.with_columns(pl.col("state_features").cast(pl.Map(pl.String, pl.Float64)))


@pytest.mark.parametrize(
    "made",
    [
        as_map(pl.DataFrame(columns() | {"state_features": entries(STATES)}, strict=False)),
        pl.DataFrame(columns() | {"state_features": entries(STATES)}, strict=False),
        pl.DataFrame(columns() | {"state_features": pl.Series(STATES, dtype=STRUCT)}),
        pl.DataFrame(columns() | {"state_features": [json.dumps(one) for one in STATES]}),
        pl.DataFrame(
            columns() | {"state_features": pl.Series([json.dumps(one) for one in STATES], dtype=pl.Categorical)}
        ),
        pl.DataFrame(columns() | {f"state:{k}": [one.get(k) for one in STATES] for k in ("0", "5", "x")}),
        pl.DataFrame(
            columns() | {"mdp_id": pl.Series(["a"] * 4, dtype=pl.Categorical), "state_features": entries(STATES)}
        ),
    ],
    ids=["map", "entries", "struct", "json", "json categorical", "spread", "categorical"],
)
def test_maps_are_read_from_every_encoding(tmp_path, made):
    made.write_parquet(tmp_path / "a.parquet")
    rows = table(tmp_path / "a.parquet")
    assert states_of(rows) == STATES
    assert rows["mdp_id"].to_list() == ["a"] * 4 and rows["_row"].to_list() == [1, 2, 3, 4]


def test_integer_ids_are_read(tmp_path):
    states = [{30: 1.0, 4: 2.0}, {4: 3.0}, {-1: 0.5}, {30: 9.0}]
    made = pl.DataFrame(columns() | {"state_features": entries(states, key=int)}, strict=False)
    made.write_parquet(tmp_path / "a.parquet")
    assert states_of(table(tmp_path / "a.parquet")) == [{str(k): v for k, v in one.items()} for one in states]


@pytest.mark.parametrize(
    ("action", "names", "read"),
    [
        ([0, 1, 1, 0], None, ["0", "1", "1", "0"]),
        ([0, 1, 1, 0], ["l", "r"], ["l", "r", "r", "l"]),
        ([0.0, 1.0, 1.0, 0.0], ["l", "r"], ["l", "r", "r", "l"]),
        ([[1, 0], [0, 1], [0, 1], [1, 0]], ["l", "r"], ["l", "r", "r", "l"]),
        (pl.Series(["l", "r", "r", "l"], dtype=pl.Categorical), ["l", "r"], ["l", "r", "r", "l"]),
        (pl.Series([[1, 0], [0, 1]] * 2, dtype=pl.Array(pl.Int8, 2)), ["l", "r"], ["l", "r", "l", "r"]),
    ],
)
def test_actions_are_read_from_every_type(tmp_path, action, names, read):
    pl.DataFrame(columns() | {"action": action, "state:0": 1.0}).write_parquet(tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet", actions=names)["action"].to_list() == read


@pytest.mark.parametrize(
    ("possible", "read"),
    [
        ([["l"], ["l", "r"], [], None], [["l"], ["l", "r"], [], None]),
        ([[1, 0], [1, 1], [0, 0], None], [["l"], ["l", "r"], [], None]),
        ([[1, 0], [1, 1], [], [0, 1]], [["l"], ["l", "r"], [], ["r"]]),
        ([[True, False]] * 4, [["l"]] * 4),
        (pl.Series([[1, 0]] * 4, dtype=pl.Array(pl.Int8, 2)), [["l"]] * 4),
        (['["l"]', "[1,1]", "[]", None], [["l"], ["l", "r"], [], None]),
    ],
)
def test_possible_actions_are_read_from_every_type(tmp_path, possible, read):
    made = pl.DataFrame(columns() | {"possible_actions": possible, "state:0": 1.0})
    made.write_parquet(tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet", actions=["l", "r"])["possible_actions"].to_list() == read


@pytest.mark.parametrize("form", ["entries", "struct", "json"])
def test_possible_actions_of_maps_are_read(tmp_path, form):
    lists = [[{"7": 1.0, "8": 2.0}, {"7": 0.5}], [{"8": -1.0}], [], None]
    made = {
        "entries": [None if one is None else entries(one) for one in lists],
        "struct": lists,
        "json": [None if one is None else json.dumps(one) for one in lists],
    }[form]
    actions = [{"7": 1.0, "8": None}] * 4
    pl.DataFrame(columns() | {"possible_actions": made, "action": actions, "state:0": 1.0}, strict=False).write_parquet(
        tmp_path / "a.parquet"
    )
    log = read_log([tmp_path / "a.parquet"])
    full = [None if one is None else [{"7": m.get("7"), "8": m.get("8")} for m in one] for one in lists]
    assert log.kind == "parametric"
    assert made_logs.whole(log)["possible_actions"].to_list() == full


def test_large_tables_are_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_ROWS", 100)
    numbers = list(range(1050))
    made = pl.DataFrame({"mdp_id": "a", "sequence_number": numbers, "action": "l", "reward": 1.0, "state:0": 0.5})
    made.write_parquet(tmp_path / "a.parquet", row_group_size=300)
    made.write_csv(tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name, first in (("a.parquet", 1), ("a.csv", 2), ("a.csv.gz", 2)):
        log = read_log([tmp_path / name])
        parts = list(log.frames())
        assert max(map(len, parts)) <= 100
        assert pl.concat(parts)["sequence_number"].to_list() == numbers
        assert pl.concat(parts)["_row"].to_list() == list(range(first, 1050 + first))
        assert log.done_bytes == log.total_bytes


CSV = """episode,t,x,v,act,r,p,clicks
e1,0,0.5,,left,1,0.5,3
e1,1,-1e-3,2,right,0,,4
"e,2",0,7,1,left,2,1,5
"""
MAPPING = {
    "mdp_id": "episode",
    "sequence_number": "t",
    "state_features": ["x", "v"],
    "action": "act",
    "reward": "r",
    "propensity": "p",
    "metrics": ["clicks"],
}


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_csv_is_read_with_a_mapping(tmp_path, name):
    text = CSV.replace('"e,2"', "e2") if name == "a.tsv" else CSV
    text = text.replace(",", "\t") if name == "a.tsv" else text
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    rows = table(tmp_path / name, columns=MAPPING)
    assert rows["mdp_id"].to_list() == ["e1", "e1", "e2" if name == "a.tsv" else "e,2"]
    assert rows["state:x"].to_list() == [0.5, -1e-3, 7.0] and rows["state:v"].to_list() == [None, 2.0, 1.0]
    assert rows["propensity"].to_list() == [0.5, None, 1.0] and rows["metric:clicks"].to_list() == [3.0, 4.0, 5.0]
    assert rows["action"].to_list() == ["left", "right", "left"] and rows["_row"].to_list() == [2, 3, 4]


@pytest.mark.parametrize(
    ("cells", "names", "read"),
    [(["0", "1"], None, ["0", "1"]), (["0", "1"], ["l", "r"], ["l", "r"]), (["1", "0"], ["1", "0"], ["1", "0"])],
)
def test_csv_cell_is_a_name_before_an_index(tmp_path, cells, names, read):
    heading = "mdp_id,sequence_number,state:0,action,reward\n"
    (tmp_path / "a.csv").write_text(heading + "".join(f"a,{i},1,{cell},1\n" for i, cell in enumerate(cells)))
    assert table(tmp_path / "a.csv", actions=names)["action"].to_list() == read


@pytest.mark.parametrize("names", [None, ("a", "b", "c"), ("0", "1", "2.0")])
def test_whole_numbers_of_a_csv_that_are_written_as_floats_are_the_same_actions(tmp_path, names):
    """pandas writes them so where a column has empty cells, so the parts of one log may differ."""
    heading = "mdp_id,sequence_number,state:0,action,reward\n"
    for file, cells in (("1.csv", ("0", "1", "2")), ("2.csv", ("0.0", "1.0", "2.0"))):
        (tmp_path / file).write_text(heading + "".join(f"{file},{i},1,{cell},1\n" for i, cell in enumerate(cells)))
    read = table(tmp_path, actions=names)["action"].to_list()
    assert read == [*(names or ("0", "1", "2"))] * 2


def test_csv_maps_and_flags_are_read(tmp_path):
    (tmp_path / "a.csv").write_text(
        "mdp_id,sequence_number,state_features,action:u,reward,terminated,possible_actions\n"
        'a,0,"{""0"": 1.5}",0.5,1,False,"[{""u"": 1}, {""u"": 2}]"\n'
        "a,1,{},-1,1,TRUE,[]\n"
        "a,2,{},-1,1,,\n"
    )
    log = read_log([tmp_path / "a.csv"])
    rows = made_logs.whole(log)
    assert log.kind == "parametric" and rows["state:0"].to_list() == [1.5, None, None]
    assert rows["action:u"].to_list() == [0.5, -1.0, -1.0]
    assert rows["terminated"].to_list() == [False, True, None]
    assert rows["possible_actions"].to_list() == [[{"u": 1.0}, {"u": 2.0}], [], None]


def test_column_mapping_is_applied_to_tables(tmp_path):
    made = pl.DataFrame({"who": ["a"], "n": [0], "s": [{"0": 1.0}], "a": ["l"], "reward": [1.0], "more": [1]})
    made.write_parquet(tmp_path / "a.parquet")
    mapping = {"mdp_id": "who", "sequence_number": "n", "state_features": "s", "action": "a"}
    log = read_log([tmp_path / "a.parquet"], columns=mapping)
    assert made_logs.whole(log)["state:0"].to_list() == [1.0]
    assert log.notes == [f"{tmp_path}/a.parquet: columns left out, since no column of a log has such a name: more"]


def test_parquet_and_json_give_equal_rows(tmp_path):
    draws = random.Random(0)
    rows = [
        row(
            i,
            state_features={str(k): draws.gauss(0, 1) for k in range(draws.randint(0, 4))},
            action=draws.choice(["l", "r"]),
            possible_actions=draws.choice([["l", "r"], ["r", "l"], [], None]),
            propensity=draws.choice([None, 0.5]),
            metrics=draws.choice([None, {"m": 1.0}, {"m": 2.0, "n": 3.0}]),
        )
        for i in range(300)
    ]
    with LogWriter(tmp_path / "a.parquet") as log:
        log.write(rows)
    first, second = table(tmp_path / "a.parquet"), table(write(tmp_path / "a.jsonl", rows))
    assert first.select(sorted(first.columns)).equals(second.select(sorted(second.columns)))


def test_possible_actions_may_be_categorical_text(tmp_path):
    lists = pl.Series(['["l","r"]', "[]", '["l"]', None], dtype=pl.Categorical)
    pl.DataFrame(columns() | {"state:0": 1.0, "possible_actions": lists}).write_parquet(tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet")["possible_actions"].to_list() == [["l", "r"], [], ["l"], None]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("flags", [[0, 1, None, 0], [0.0, 1.0, None, 0.0], [False, True, None, False]])
def test_flags_may_be_numbers(tmp_path, name, flags):
    made = columns() | {"terminated": flags}
    if name == "a.jsonl":
        made = made | {"reward": [1.0] * 4, "state_features": STATES}
        write(tmp_path / name, [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)])
    else:
        frame = pl.DataFrame(made | {"state:0": 1.0}, strict=False)
        frame.write_csv(tmp_path / name) if name == "a.csv" else frame.write_parquet(tmp_path / name)
    assert table(tmp_path / name)["terminated"].to_list() == [False, True, None, False]
