"""JSON lines logs in every form of the schema."""

import bz2
import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

import made_logs
from lockstep.data.logs import files as log_files
from lockstep.data.logs import json_lines
from lockstep.data.logs.format import read_log
from lockstep.data.logs.schema import read_columns
from made_logs import parametric, row, table, text_of, write

REAL = Path(__file__).parents[5] / "shared" / "data" / "cartpole_parametric.json.bz2"


@pytest.mark.skipif(not REAL.exists(), reason="the real log is not here")
def test_real_log_is_read():
    log = read_log([REAL])
    rows = made_logs.whole(log)
    truth = [json.loads(line) for line in bz2.decompress(REAL.read_bytes()).splitlines()]
    assert log.kind == "parametric" and len(rows) == len(truth) == 3925 and not log.notes
    assert rows["mdp_id"].to_list() == [one["mdp_id"] for one in truth]
    assert rows["_row"].to_list() == list(range(1, 3926))
    for column, name, key in (("state:2", "state_features", "2"), ("next_state:0", "next_state_features", "0")):
        assert rows[column].to_list() == [one[name].get(key) for one in truth]
    for column, name, key in (("action:4", "action", "4"), ("next_action:5", "next_action", "5")):
        assert rows[column].to_list() == [one[name].get(key) for one in truth]
    assert rows["propensity"].value_counts(sort=True)["propensity"].to_list() == [0.95, 0.05]
    for name in ("possible_actions", "possible_next_actions"):
        given = [[{k: v for k, v in one.items() if v is not None} for one in listed] for listed in rows[name].to_list()]
        assert given == [one[name] for one in truth]
    assert rows["has_next_state"].all() and (rows["time_diff"] == 1).all() and (rows["metric:reward"] == 1).all()
    assert log.done_bytes == log.total_bytes == REAL.stat().st_size


def test_columns_have_the_documented_types(tmp_path):
    rows = table(write(tmp_path / "a.jsonl", [row(propensity=0.5, metrics={"m": 2}, ds="2020-01-01"), row(1)]))
    assert dict(rows.schema) == {
        "mdp_id": pl.String,
        "sequence_number": pl.Int64,
        "reward": pl.Float64,
        "propensity": pl.Float64,
        "state:0": pl.Float64,
        "state:1": pl.Float64,
        "metric:m": pl.Float64,
        "action": pl.String,
        "_file": pl.UInt32,
        "_row": pl.Int64,
    }
    assert rows["propensity"].to_list() == [0.5, None] and rows["metric:m"].to_list() == [2.0, None]
    assert rows["state:0"].to_list() == [0.5, 1.5]


def test_action_probability_is_the_propensity(tmp_path):
    assert table(write(tmp_path / "a.jsonl", [row(action_probability=0.25)]))["propensity"].to_list() == [0.25]


@pytest.mark.parametrize("names", [("propensity", "action_probability"), ("action_probability", "propensity")])
def test_later_rows_may_have_the_other_name_of_the_propensity(tmp_path, names):
    rows = [row(i, **{names[i >= 150]: 0.25}) for i in range(200)]
    assert table(write(tmp_path / "a.jsonl", rows))["propensity"].to_list() == [0.25] * 200


def test_mdp_id_may_be_a_number(tmp_path):
    assert table(write(tmp_path / "a.jsonl", [row(mdp_id=7), row(1, mdp_id="b")]))["mdp_id"].to_list() == ["7", "b"]


@pytest.mark.parametrize(
    ("action", "names", "read"),
    [
        ("left", None, "left"),
        ("left", ["right", "left"], "left"),
        (1, None, "1"),
        (1, ["right", "left"], "left"),
        (1.0, ["right", "left"], "left"),
        ([0, 1], ["right", "left"], "left"),
        ([0.0, 1.0, 0.0], None, "1"),
        ("4", ["4", "5"], "4"),
        (1, ["1", "2"], "2"),
    ],
)
def test_actions_are_names_indices_or_one_hot(tmp_path, action, names, read):
    log = read_log([write(tmp_path / "a.jsonl", [row(action=action)])], actions=names)
    assert log.kind == "discrete"
    assert made_logs.whole(log)["action"].to_list() == [read]


@pytest.mark.parametrize(
    ("possible", "names", "read"),
    [
        (["a", "b"], None, ["a", "b"]),
        ([1, 0, 1], None, ["0", "2"]),
        ([1, 0, 1], ["x", "y", "z"], ["x", "z"]),
        ([True, False, True], ["x", "y", "z"], ["x", "z"]),
        ([], None, []),
        (None, None, None),
        ([0, 0], None, []),
    ],
)
def test_possible_actions_are_names_or_masks(tmp_path, possible, names, read):
    other = row(1, action=0, possible_actions=(names or ["q"])[:1])
    rows = table(write(tmp_path / "a.jsonl", [row(action=0, possible_actions=possible), other]), actions=names)
    assert rows["possible_actions"].to_list() == [read, (names or ["q"])[:1]]


def test_lists_of_maps_may_vary_in_length(tmp_path):
    lists = [[{"7": 1.0}, {"8": 2.0, "7": -1}], [], None, [{"9": 0.5}], [{}]]
    rows = table(write(tmp_path / "a.jsonl", [parametric(i, possible_actions=one) for i, one in enumerate(lists)]))
    read = rows["possible_actions"].to_list()
    assert read[1] == [] and read[2] is None
    assert read[0] == [{"7": 1.0, "8": None, "9": None}, {"7": -1.0, "8": 2.0, "9": None}]
    assert read[3] == [{"7": None, "8": None, "9": 0.5}]
    assert read[4] == [{"7": None, "8": None, "9": None}]


def test_distinct_lists_are_read(tmp_path):
    lists = [[{"7": float(i), "8": float(-j)} for j in range(i % 5)] for i in range(500)]
    rows = table(write(tmp_path / "a.jsonl", [parametric(i, possible_actions=one) for i, one in enumerate(lists)]))
    assert rows["possible_actions"].to_list() == lists


def test_continuous_actions_are_maps(tmp_path):
    actions = [{"7": i / 7, "8": -i / 3} for i in range(50)] + [{"7": 1.0}]
    log = read_log([write(tmp_path / "a.jsonl", [row(i, action=action) for i, action in enumerate(actions)])])
    rows = made_logs.whole(log)
    assert log.kind == "parametric"
    assert rows["action:7"].to_list() == [action["7"] for action in actions]
    assert rows["action:8"].to_list() == [action.get("8") for action in actions]


def test_next_columns_are_read(tmp_path):
    following = {"next_action": "right", "possible_next_actions": ["left"], "time_diff": 3}
    rows = table(
        write(
            tmp_path / "a.jsonl",
            [
                row(0, next_state_features={"0": 2}, terminated=False, **following),
                row(3, next_state_features={}, next_action="", possible_next_actions=[], terminated=True),
                row(9, truncated=True),
            ],
        )
    )
    assert rows["next_action"].to_list() == ["right", None, None]
    assert rows["has_next_state"].to_list() == [True, False, False]
    assert rows["next_state:0"].to_list() == [2.0, None, None]
    assert rows["possible_next_actions"].to_list() == [["left"], [], None]
    assert rows["time_diff"].to_list() == [3.0, None, None]
    assert rows["terminated"].to_list() == [False, True, None]
    assert rows["truncated"].to_list() == [None, None, True]


def test_final_state_may_lack_an_action(tmp_path):
    end = row(1, action="", reward=None, possible_actions=[])
    rows = table(write(tmp_path / "a.jsonl", [row(possible_actions=["left"]), end]))
    assert rows["action"].to_list() == ["left", None] and rows["reward"].to_list() == [1.0, None]
    rows = table(write(tmp_path / "b.jsonl", [row(), row(1, action=None, reward=None)]))
    assert rows["action"].to_list() == ["left", None]


def test_absent_features_are_null(tmp_path):
    states = [{"0": 1.0}, {"1": 2}, {}, {"0": None, "1": -0.0}]
    rows = table(write(tmp_path / "a.jsonl", [row(i, state_features=state) for i, state in enumerate(states)]))
    assert rows["state:0"].to_list() == [1.0, None, None, None]
    assert rows["state:1"].to_list() == [None, 2.0, None, 0.0]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that small files have several."""
    monkeypatch.setattr(json_lines, "_FIRST_BYTES", 400)
    monkeypatch.setattr(json_lines, "_LEAST_BYTES", 300)
    monkeypatch.setattr(json_lines, "_MOST_BYTES", 500)
    monkeypatch.setattr(log_files, "_READ_BYTES", 128)


def test_ids_that_first_occur_late_are_read(tmp_path, small_blocks):
    states = [{str(k): float(i + k) for k in range(i // 10 + 1)} for i in range(60)]
    path = write(tmp_path / "a.jsonl", [row(i, state_features=state) for i, state in enumerate(states)])
    log = read_log([path])
    assert len(list(log.frames())) > 5
    rows = made_logs.whole(log)
    for k in range(6):
        assert rows[f"state:{k}"].to_list() == [state.get(str(k)) for state in states]


def test_sparse_features_are_read(tmp_path):
    states = [{str((i * 37 + k * 101) % 600): float(i)} | {"x" * (k + 1): 1.0} for i in range(300) for k in range(2)]
    rows = table(write(tmp_path / "a.jsonl", [row(i, state_features=state) for i, state in enumerate(states)]))
    for i, state in enumerate(states):
        here = rows.row(i, named=True)
        assert {k[6:]: v for k, v in here.items() if k.startswith("state:") and v is not None} == state


def test_wide_rows_give_short_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "_CELLS", 1 << 12)
    monkeypatch.setattr(json_lines, "_LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(json_lines, "_FIRST_BYTES", 1 << 12)
    rows = [row(i, state_features={str(k): 1.0 for k in range(100)}) for i in range(200)]
    sizes = [len(one) for one in read_log([write(tmp_path / "a.jsonl", rows)]).frames()]
    assert sum(sizes) == 200 and max(sizes) <= 41


def test_feature_ids_may_be_any_text(tmp_path):
    state = {'a "b"': 1.0, "é": 2.0, "": 3.0, "a\\b": 4.0, "a:b": 5.0}
    rows = table(write(tmp_path / "a.jsonl", [row(i, state_features=state) for i in range(3)]))
    assert {k[6:]: v for k, v in rows.row(2, named=True).items() if k.startswith("state:")} == state


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("end", [b"\n", b"", b"\n\n \r\n"])
def test_compressed_files_are_read(tmp_path, suffix, end, small_blocks):
    rows = [row(i) for i in range(40)]
    text = text_of(rows)[:-1] + end
    path = tmp_path / f"a.jsonl{suffix}"
    compress = {".bz2": bz2.compress, ".gz": gzip.compress, ".zst": zstandard.compress}.get(suffix, bytes)
    half = len(text) // 2  # as `cat` of two compressed files makes it
    path.write_bytes(compress(text[:half]) + compress(text[half:]))
    assert table(path)["sequence_number"].to_list() == list(range(40))


def test_blank_lines_are_counted_in_row_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", ["", row(0), "  ", row(1), "\r", row(2)])
    assert table(path)["_row"].to_list() == [2, 4, 6]


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf" + text_of([row(), row(1)]))
    assert len(table(path)) == 2


@pytest.mark.parametrize("indent", [None, 2])
def test_json_list_of_rows_is_read(tmp_path, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([row(i) for i in range(30)], indent=indent))
    rows = table(path)
    assert rows["sequence_number"].to_list() == list(range(30)) and rows["_row"].to_list() == list(range(1, 31))


def test_files_of_a_folder_are_read_in_order_of_names(tmp_path):
    for i, name in enumerate(("b.jsonl", "a.json.gz", "sub/c.jsonl.zst", "_SUCCESS", ".hidden.jsonl", "notes.txt")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, [row(i)])
    log = read_log([tmp_path])
    rows = made_logs.whole(log)
    assert [path.name for path in log.paths] == ["a.json.gz", "b.jsonl", "c.jsonl.zst"]
    assert rows["sequence_number"].to_list() == [1, 0, 2] and rows["_file"].to_list() == [0, 1, 2]


def test_empty_files_of_a_folder_are_reported(tmp_path):
    write(tmp_path / "a.jsonl", [row()])
    (tmp_path / "b.jsonl").touch()
    log = read_log([tmp_path])
    assert len(made_logs.whole(log)) == 1
    assert log.notes == [f"{tmp_path}/b.jsonl is empty, and was left out"]


def test_frames_can_be_iterated_again(tmp_path, small_blocks):
    log = read_log([write(tmp_path / "a.jsonl", [row(i) for i in range(50)])])
    first, second = made_logs.whole(log), made_logs.whole(log)
    assert first.equals(second) and len(first) == 50
    assert log.done_bytes == log.total_bytes


def test_unknown_columns_are_reported_once(tmp_path):
    paths = [write(tmp_path / name, [row(user="x", _file=1)] * 2) for name in ("a.jsonl", "b.jsonl")]
    log = read_log(paths)
    made_logs.whole(log)
    assert log.notes == [f"{paths[0]}: columns left out, since no column of a log has such a name: user"]


def test_unknown_columns_of_late_rows_are_reported(tmp_path):
    """As `done`, which only the last row of a long episode has."""
    log = read_log([write(tmp_path / "a.jsonl", [*(row(i) for i in range(300)), row(300, done=True)])])
    made_logs.whole(log)
    (note,) = log.notes
    assert "columns left out" in note and "if done means terminated, --columns says so: terminated: done" in note


def test_column_mapping_is_applied(tmp_path):
    made = [{"episode": 3, "t": i, "x": 0.5, "v": None, "act": "go", "r": 1, "clicks": i} for i in range(3)]
    (tmp_path / "columns.yaml").write_text(
        "mdp_id: episode\nsequence_number: t\nstate_features: [x, v]\naction: act\nreward: r\nmetrics: {c: clicks}\n"
    )
    rows = table(write(tmp_path / "a.jsonl", made), columns=read_columns(tmp_path / "columns.yaml"))
    assert rows["state:x"].to_list() == [0.5] * 3 and rows["state:v"].to_list() == [None] * 3
    assert rows["metric:c"].to_list() == [0.0, 1.0, 2.0] and rows["action"].to_list() == ["go"] * 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_the_sequence_number_may_be_a_feature_and_ids_may_share_a_column(tmp_path, name):
    made = [{"mdp_id": "a", "t": i, "x": 0.5, "action": "go", "reward": 1} for i in range(3)]
    if name == "a.csv":
        pl.DataFrame(made).write_csv(tmp_path / name)
    else:
        write(tmp_path / name, made)
    rows = table(tmp_path / name, columns={"sequence_number": "t", "state_features": {"0": "x", "1": "x", "2": "t"}})
    assert rows["state:2"].to_list() == rows["sequence_number"].to_list() == [0, 1, 2]
    assert rows["state:0"].to_list() == rows["state:1"].to_list() == [0.5] * 3


def test_numbers_keep_full_precision(tmp_path):
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.random.default_rng(1).integers(-300, 300, 200)
    rows = table(write(tmp_path / "a.jsonl", [row(i, state_features={"0": v}) for i, v in enumerate(values)]))
    assert rows["state:0"].to_list() == values.tolist()
