"""Invalid logs are rejected with one message that names the file and the row."""

import bz2
import gzip
import json
import re

import polars as pl
import pytest
import zstandard

import made_data
from lockstep.data import packages
from lockstep.data.logs import maps as log_maps
from lockstep.data.logs.format import read_log
from lockstep.data.logs.schema import read_columns
from lockstep.errors import ConfigError
from made_logs import parametric, row, table, text_of, whole, write

NAMES = ["left", "right"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1, mdp_id=...), "missing required field `mdp_id`"),
        (
            row(1, mdp_id=None),
            "mdp_id: Expected `int | str`, got `null`; every row needs the name of its trajectory: text, or",
        ),
        (row(1, mdp_id=""), "mdp_id is missing"),
        (row(1, sequence_number=...), "missing required field `sequence_number`"),
        (row(1, sequence_number="3"), "Expected `int`, got `str`; it must be a whole number, of steps or"),
        (row(1, sequence_number=1.5), "sequence_number: Expected `int`, got `float`"),
        (row(1, sequence_number=2**63), "Expected `int` <= 9223372036854775807; it must be a whole number, of steps"),
        (row(1, state_features=...), "state_features is missing"),
        (row(1, state_features=None), "state_features is missing"),
        (row(1, state_features=[1, 2]), "state_features: Expected `object | null`, got `array`"),
        (
            row(1, state_features={"0": "1"}),
            "state_features: Expected `float | null`, got `str`; it must be a number; of a category",
        ),
        (row(1, state_features={"0": True}), "got `bool`; it must be a number: write 1 and 0"),
        (row(1, state_features={"0": float("nan")}), "state_features.0=NaN is not a number that a log may hold"),
        (row(1, reward=float("inf")), "reward=Infinity is not a number that a log may hold; every decision needs one"),
        (row(1, reward=...), "reward is missing"),
        (row(1, reward="1"), "reward: Expected `float | null`, got `str`; it must be a number"),
        (row(1, action=...), "action is missing"),
        (row(1, action=""), "action is missing"),
        (row(1, action="up"), 'action "up" is not one of the actions left, right'),
        (row(1, action=2), "action 2 is not the index of an action: there are 2 actions"),
        (row(1, action=-1), "action -1 is not the index"),
        (row(1, action=0.5), "action is 0.5"),
        (row(1, action=True), "action is True"),
        (row(1, action=[1, 1]), "marks one action with 1"),
        (row(1, action=[0.5, 0.5]), "a 0 or 1 for each action"),
        (row(1, action=[1, 0, 0]), "action marks 3 actions, and there are 2: left, right"),
        (row(1, action={"7": 1}), "action is a map, but a name in an earlier row"),
        (row(1, possible_actions=["left", ""]), "possible_actions holds an empty name; leave it out of the list"),
        (row(1, possible_actions=["up"]), 'possible_actions "up" is not one of the actions'),
        (row(1, possible_actions=[1]), "possible_actions marks 1 actions, and there are 2"),
        (row(1, possible_actions=[1, 2]), "a 0 or 1 for each action"),
        (row(1, possible_actions="left"), "it must be a list of names"),
        (row(1, possible_actions=[{"7": 1}]), "possible_actions holds maps of features, but actions of this log"),
        (row(1, action=None, possible_actions=["left"]), "action is missing; log it, or end the trajectory before"),
        (
            row(1, reward=None, possible_actions=["left"]),
            "Only a row that is the last state of a trajectory has neither",
        ),
        (row(1, propensity=0), "propensity 0.0 is not a probability in (0, 1]"),
        (row(1, propensity=1.5), "propensity 1.5 is not a probability in (0, 1]"),
        (row(1, action_probability=-0.5), "propensity -0.5 is not a probability in (0, 1]"),
        (row(1, propensity="high"), "propensity: Expected `float | null`, got `str`"),
        (row(1, time_diff=-1), "time_diff -1.0 is negative"),
        (row(1, metrics={"m": "x"}), "metrics: Expected `float | null`, got `str`"),
        (row(1, next_state_features={"0": []}), "next_state_features: Expected `float | null`, got `array`"),
        (row(1, terminated="no"), "terminated: Expected `bool | float | null`, got `str`; it must be true or false"),
        (row(1, terminated=2), "terminated is 2; it must be true or false"),
        ("not json", "is not JSON, or is cut off"),
        ('{"mdp_id": "a"', "is not JSON, or is cut off (Input data was truncated)"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_error_names_the_bad_row(tmp_path, bad, message):
    path = write(tmp_path / "a.jsonl", ["", row(0), bad, row(2)])
    with pytest.raises(ConfigError) as refused:
        table(path, actions=NAMES)
    assert str(refused.value).startswith(f"{path}, row 3: ") and message in str(refused.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (parametric(1, action={"7": "x"}), "action: Expected `float | null`, got `str`"),
        (parametric(1, action="left"), "action: Expected `object | null`, got `str`"),
        (parametric(1, possible_actions=[{"7": "x"}]), "possible_actions: Expected `float | null`, got `str`"),
        (parametric(1, possible_actions=["left"]), "possible_actions: Expected `object`, got `str`"),
        (parametric(1, action={"0": 1.0}), "give features of actions other ids, such as action_0"),
        (parametric(1, state_features={"7": 1.0}), "feature 7 is one of state_features and one of action"),
    ],
)
def test_error_names_the_bad_parametric_row(tmp_path, bad, message):
    first = parametric(0, possible_actions=[{"7": 1.0}])
    path = write(tmp_path / "a.jsonl", [first, bad])
    with pytest.raises(ConfigError) as refused:
        table(path)
    assert str(refused.value).startswith(f"{path}, row 2: ") and message in str(refused.value)


def test_error_names_the_bad_row_with_known_features(tmp_path, monkeypatch):
    """The quick way, by a class with a field for each id, finds mistakes too."""
    from lockstep.data.logs import json_lines

    monkeypatch.setattr(json_lines, "_FIRST_BYTES", 400)
    path = write(tmp_path / "a.jsonl", [*map(row, range(2000)), row(2000, state_features={"0": "x"})])
    with pytest.raises(ConfigError, match=r"row 2001: state_features: Expected `float \| null`, got `str`"):
        table(path)


def test_infinite_number_is_rejected(tmp_path):
    path = write(tmp_path / "a.jsonl", [row(), json.dumps(row(1)).replace("1.5", "1e999")])
    with pytest.raises(ConfigError, match="row 2: state_features: Number out of range"):
        table(path)


def test_missing_column_is_reported_before_rows_are_read(tmp_path):
    path = write(tmp_path / "a.jsonl", [row(i, reward=..., rewards=1.0) for i in range(3)])
    with pytest.raises(
        ConfigError, match=r"has no column reward; it has .*, rewards\. If .*columns.yaml:\n\nreward: rewards  # what"
    ):
        read_log([path])


def test_spread_json_columns_need_a_mapping(tmp_path):
    """Ids would be lost that first appear late."""
    path = write(tmp_path / "a.jsonl", [row(state_features=..., **{"state:0": 1.0})])
    with pytest.raises(ConfigError, match=r"has no column state_features; (.|\n)*\nstate_features: \['state:0'\]"):
        read_log([path])


@pytest.mark.parametrize("text", ['"left"', '"a"', '"0"', '"b"', '"note"', '"8"'])
def test_invalid_utf8_is_rejected(tmp_path, text):
    made = [row(i, possible_actions=["left", "b"], metrics={"8": 1.0}, note="note") for i in range(2)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(text_of(made).replace(text.encode(), b'"l\xfft"'))
    if text == '"note"':
        assert len(table(path)) == 2  # nobody reads it
        return
    with pytest.raises(ConfigError, match=r"row 1: .*is not text in UTF-8 \(.*\); save the file as UTF-8"):
        table(path)


def test_column_and_its_alias_are_rejected(tmp_path):
    path = write(tmp_path / "a.jsonl", [row(propensity=0.5, action_probability=0.4)])
    with pytest.raises(ConfigError, match="both propensity and action_probability"):
        read_log([path])


def test_mixed_kinds_of_actions_are_rejected(tmp_path):
    paths = [write(tmp_path / "a.jsonl", [row()]), write(tmp_path / "b.jsonl", [row(), parametric()])]
    with pytest.raises(ConfigError, match=r"b\.jsonl, row 2: action is a map, but a name in an earlier row"):
        whole(read_log(paths))
    with pytest.raises(ConfigError, match=r"kind=parametric: the actions of .*a\.jsonl are names; leave it out"):
        read_log(paths, kind="parametric")
    with pytest.raises(
        ConfigError, match=r"kind=continuous: .* are names; .* a continuous action is a list of numbers"
    ):
        read_log(paths, kind="continuous")
    with pytest.raises(ConfigError, match=r"kind=discrete: .*c\.jsonl are maps or lists of numbers; leave it out"):
        read_log([write(tmp_path / "c.jsonl", [parametric()])], kind="discrete")
    write(paths[1], [parametric()])
    with pytest.raises(ConfigError, match=r"b\.jsonl, row 1: action holds maps of features, but .* names \(discrete"):
        whole(read_log(paths))
    with pytest.raises(ConfigError, match="kind=other is not known"):
        read_log(paths, kind="other")
    with pytest.raises(ConfigError, match="leave one out"):
        read_log(paths, kind="parametric", actions=NAMES)
    with pytest.raises(ConfigError, match="names one twice"):
        read_log(paths, actions=["a", "a"])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.zst", "a.csv", "a.parquet"])
def test_empty_file_is_rejected(tmp_path, name):
    write(tmp_path / name, [])
    with pytest.raises(ConfigError, match=rf"{name} is empty; a log has a row for each decision"):
        table(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"{name} is empty; a log has a row for each decision"):
        table(tmp_path / name)


def test_empty_folder_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="contains no log; a folder needs files named"):
        read_log([tmp_path])
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ConfigError, match="holds only empty files"):
        read_log([tmp_path])


def test_prepared_data_and_files_named_twice_are_rejected(tmp_path):
    made_data.discrete(tmp_path / "prepared", rows=3)
    with pytest.raises(ConfigError, match="prepared is prepared data, not a log; name what it was prepared from"):
        read_log([tmp_path / "prepared"])
    (tmp_path / "log").mkdir()
    file = write(tmp_path / "log" / "dataset.json", [row()])  # a log may have this name
    (tmp_path / "log" / "run.yaml").touch()
    assert len(read_log([tmp_path / "log"]).paths) == 1
    with pytest.raises(ConfigError, match=r"dataset\.json is named twice, or lies in a folder"):
        read_log([tmp_path / "log", file])
    (tmp_path / "log" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="log is a run directory, not a log; its policy makes one: lockstep offline"):
        read_log([tmp_path / "log"])


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl does not exist"):
        read_log([tmp_path / "nowhere.jsonl"])
    with pytest.raises(ConfigError, match="no log was named"):
        read_log([])
    for name in ("a.txt", "a", "a.parquet.gz", "a.gz"):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=r"does not have the name of a log: it must end in \.jsonl"):
            read_log([tmp_path / name])


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("part", [0.5, 0.999])
def test_truncated_compressed_file_is_rejected(tmp_path, suffix, part):
    path = write(tmp_path / f"a.jsonl{suffix}", [row(i, state_features={"0": i / 7}) for i in range(5000)])
    text = path.read_bytes()
    path.write_bytes(text[: int(part * len(text))])
    with pytest.raises(ConfigError, match=rf"a\.jsonl{suffix} is cut off: its compressed data does not end after"):
        table(path)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", None)])
def test_corrupt_compressed_file_is_rejected(tmp_path, suffix, compress):
    text = text_of([row(i, state_features={"0": i / 7}) for i in range(2000)])
    made = bytearray((compress or zstandard.ZstdCompressor(write_checksum=True).compress)(text))
    made[len(made) // 2] ^= 0xFF
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(made)
    with pytest.raises(ConfigError, match=rf"a\.jsonl{suffix} (is damaged|cannot be read).*[Cc]opy it again"):
        table(path)
    path.write_bytes(b"\0" + text)
    with pytest.raises(ConfigError, match=rf"a\.jsonl{suffix} (is damaged|cannot be read)"):
        table(path)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", None)])
@pytest.mark.parametrize(
    ("kind", "text"), [("jsonl", text_of([row(i) for i in range(3)])), ("csv", b"\xc3\xa9,b\n" * 999)]
)
def test_a_compressed_file_with_the_name_of_another_is_refused_with_its_name(tmp_path, kind, text, suffix, compress):
    """Browsers and `gsutil cp` unpack on the way; copying again makes the same file."""
    packed = (compress or zstandard.ZstdCompressor().compress)(text)
    other = ".gz" if suffix == ".zst" else ".zst"
    for name, content, said in (
        (f"a.{kind}{suffix}", text, f"is not compressed, though its name ends in {suffix}; rename it to a.{kind}"),
        (f"a.{kind}", packed, f"is compressed as {suffix}; rename it to a.{kind}{suffix}"),
        (f"b.{kind}{other}", packed, f"is compressed as {suffix}; rename it to b.{kind}{suffix}"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=re.escape(f"{path} {said}") + "$"):
            table(path)


def test_truncated_line_is_rejected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(text_of([row(), row(1)])[:-20])
    with pytest.raises(ConfigError, match="row 2: is not JSON, or is cut off"):
        table(path)


def test_truncated_list_is_rejected(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([row(), row(1)])[:-20])
    with pytest.raises(ConfigError, match="begins as a list of rows, and is not JSON"):
        table(path)


def test_truncated_parquet_is_rejected(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame([row()]).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read .*Copy it again"):
        table(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mdp_id": [1.5, 2.5]}, "column mdp_id is Float64; it must be text"),
        ({"sequence_number": ["0", "1"]}, "column sequence_number is String; it must be a whole number"),
        ({"sequence_number": [0, None]}, "row 2: sequence_number is missing"),
        ({"reward": ["a", "b"]}, "column reward is String; it must be a number"),
        ({"reward": [1.0, float("nan")]}, "row 2: reward is nan; every decision needs one: correct it, or leave the"),
        ({"metrics": [{"m": 1.0}, {"m": float("nan")}]}, "row 2: metrics[m] is nan; every decision needs one"),
        ({"metric:m": [1.0, float("nan")]}, "row 2: metric:m is nan; every decision needs one"),
        ({"reward": [1.0, None]}, "row 2: reward is missing; log it, or end the trajectory before this row"),
        ({"state_features": [1.0, 2.0]}, "column state_features is Float64; it must be a map"),
        ({"state_features": [{"0": 1.0}, {"0": float("nan")}]}, "row 2: state_features[0] is nan; leave it empty if"),
        ({"state_features": [{"0": 1.0}, {"0": float("inf")}]}, "row 2: state_features[0] is inf"),
        ({"state_features": [{"0": "x"}, {"0": "y"}]}, "column state_features[0] is String; it must be a number"),
        (
            {"state_features": [[{"key": "0", "value": 1.0}], [{"key": "0", "value": float("nan")}]]},
            "row 2: state_features is nan",
        ),
        (
            {"state_features": [[{"key": "0", "value": 1.0}], [{"key": None, "value": 1.0}]]},
            "row 2: state_features has an id that is null",
        ),
        (
            {
                "state_features": [
                    [{"key": "0", "value": 1.0}],
                    [{"key": "1", "value": 1.0}, {"key": "1", "value": 2.0}],
                ]
            },
            "row 2: state_features has the id 1 twice; leave one out",
        ),
        ({"state_features": [{"0": True}, {"0": False}]}, "state_features[0] is Boolean; it must be a number: write 1"),
        ({"state_features": [{"0": 1.0}, None]}, "row 2: state_features is missing"),
        ({"action": ["left", "up"]}, 'row 2: action "up" is not one of the actions left, right'),
        ({"action": ["left", None]}, "row 2: action is missing"),
        ({"action": [0, 2]}, "row 2: action 2 is not the index"),
        ({"action": [0, 0.5]}, "row 2: action is 0.5"),
        ({"action": [[1, 0], [1, 1]]}, "row 2: action is [1, 1]; a list marks one action"),
        ({"action": [[[0.5]], [[1.0]]]}, "row 1: action is [[0.5]]; a list holds names, maps, or a 0 or 1"),
        ({"action": [{"7": 1.0}] * 2}, "row 1: action holds maps of features"),
        ({"possible_actions": [["left"], ["left", None]]}, "row 2: possible_actions holds a null; leave it out of the"),
        ({"possible_actions": [["left"], ["left", ""]]}, "row 2: possible_actions holds an empty name; leave it out"),
        ({"possible_actions": [None, [1, None]]}, "row 2: possible_actions holds a null"),
        ({"possible_actions": [[], [None]]}, "row 2: possible_actions holds a null"),
        ({"possible_actions": [[{"7": 1.0}], [{"7": 1.0}, None]]}, "row 2: possible_actions holds a null"),
        ({"possible_actions": [["left"], ["up"]]}, 'row 2: possible_actions "up" is not one of the actions'),
        ({"possible_actions": [[1, 0], [1]]}, "row 2: possible_actions marks 1 actions, and there are 2"),
        ({"possible_actions": [[1, 0], [3, 0]]}, "row 2: possible_actions is [3.0, 0.0]"),
        ({"possible_actions": [1, 2]}, "column possible_actions is Int64; it must be a list"),
        ({"possible_actions": [[{"7": 1.0}]] * 2}, "row 1: possible_actions holds maps of features"),
        ({"propensity": [1.0, 0.0]}, "row 2: propensity 0.0 is not a probability in (0, 1]"),
        ({"terminated": ["true", "maybe"]}, "row 2: terminated is 'maybe'; it must be true or false"),
        ({"terminated": [1.0, 0.5]}, "row 2: terminated is 0.5; it must be true or false"),
    ],
)
def test_error_names_the_bad_parquet_column(tmp_path, changes, message):
    path = tmp_path / "a.parquet"
    good = {name: [value, value] for name, value in row().items()} | {"sequence_number": [0, 1]}
    pl.DataFrame(good | changes, strict=False).write_parquet(path)
    with pytest.raises(ConfigError) as refused:
        table(path, actions=NAMES)
    assert str(path) in str(refused.value) and message in str(refused.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,x,0,left,1", "row 3: sequence_number is 'x'; it must be a whole number"),
        ("a,1,x,left,1", "row 3: state:0 is 'x'; it must be a number; of a category log one for each value, 1 or 0"),
        ("a,1,True,left,1", "row 3: state:0 is 'True'; it must be a number: write 1 and 0"),
        ("a,1,0,left,x", "row 3: reward is 'x'; it must be a number"),
        ("a,1,nan,left,1", "row 3: state:0 is nan"),
        ("a,1,0,left,", "row 3: reward is missing"),
        ("a,1,0,up,1", 'row 3: action "up" is not one of the actions left, right'),
        ("a,1,0,2,1", 'row 3: action "2" is not one of the actions'),
        (",1,0,left,1", "row 3: mdp_id is missing"),
        ("a,1,0,left,1,7", "row 3 has 6 cells, and the heading has 5"),
        ("a,1,0", "is cut off: row 3 has 3 cells, and the heading has 5; copy it again"),
    ],
)
def test_error_names_the_bad_csv_row(tmp_path, line, message):
    path = tmp_path / "a.csv"
    path.write_text(f"mdp_id,sequence_number,state:0,action,reward\na,0,0.5,left,1\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        table(path, actions=NAMES)
    assert str(path) in str(refused.value) and message in str(refused.value)


def test_a_short_row_in_the_middle_of_a_csv_is_refused(tmp_path):
    """As a writer leaves it that crashed and was started again."""
    path = tmp_path / "a.csv"
    path.write_text("mdp_id,sequence_number,reward,action,state:0\na,0,1,left,0.5\na,1,1,left\na,2,1,left,0.5\n")
    with pytest.raises(ConfigError, match="is cut off: row 3 has 4 cells, and the heading has 5"):
        table(path, actions=NAMES)


def test_a_csv_with_two_columns_of_one_name_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mdp_id,sequence_number,state:0,reward,reward,action\na,0,0.5,1,2,left\n")
    with pytest.raises(ConfigError, match=r"a\.csv has more than one column reward; rename all but one"):
        table(path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_csv_of_another_encoding_is_refused(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("mdp_id,sequence_number,state:0,action,reward\né,0,0.5,left,1\n".encode(encoding))
    with pytest.raises(ConfigError, match=r"a\.csv is not text in UTF-8.*; save it as UTF-8"):
        table(path)


def test_a_csv_may_end_with_an_empty_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mdp_id,sequence_number,state:0,action,reward,propensity\na,0,0.5,left,1,\n")
    assert len(table(path)) == 1


SCALARS = (1.0, 0.25, *(k - 0.5 for k in range(50)))
SAYS = "a continuous action is a list of numbers, or columns of them: --columns FILE with action: [action]"


def scalars(path, actions=SCALARS):
    """A log whose actions are plain numbers, in the format that the file's name says."""
    made = {"mdp_id": "a", "sequence_number": range(len(actions)), "state:0": 0.5, "action": actions, "reward": 1.0}
    if path.suffix == ".jsonl":
        return write(path, [row(i, action=action) for i, action in enumerate(actions)])
    (pl.DataFrame.write_csv if path.suffix == ".csv" else pl.DataFrame.write_parquet)(pl.DataFrame(made), path)
    return path


@pytest.mark.parametrize(("name", "bad"), [("a.jsonl", 2), ("a.csv", 3), ("a.parquet", 2)])
def test_a_number_as_an_action_is_refused_with_the_way_out(tmp_path, name, bad):
    path = scalars(tmp_path / name)
    with pytest.raises(ConfigError, match=re.escape(f"{path}, row {bad}: action is 0.25; {SAYS}")):
        table(path)
    assert table(path, columns={"action": ["action"]})["action:action"].to_list() == list(SCALARS)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_whole_numbers_as_continuous_actions_are_refused_with_the_way_out(tmp_path, name):
    with pytest.raises(ConfigError, match=re.escape(SAYS)):
        whole(read_log([scalars(tmp_path / name, (1, 2, 0))], kind="continuous"))


@pytest.mark.parametrize("given", [None, ("0.5", "nan", "1.5")])
def test_names_of_actions_may_look_like_numbers_where_all_are_given(tmp_path, given):
    names = ["1", "nan", "1e3"] if given is None else [*given]
    assert table(scalars(tmp_path / "a.csv", names), actions=given)["action"].to_list() == names


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("(0.1, -0.2)", "[0.1, -0.2]"),
        ("[ 0.1 -0.2]", "[0.1, -0.2]"),
        ("[1e-05\n 2.]", "[1e-05, 2.0]"),
        ("(3,)", "[3.0]"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_numbers_as_python_prints_them_are_refused_with_the_way_to_write_them(tmp_path, name, cell, written):
    path = scalars(tmp_path / name, [cell] * 3)
    with pytest.raises(
        ConfigError, match=re.escape(f"action is {cell}, as Python prints a tuple or an array; write {written}")
    ):
        table(path)


@pytest.mark.parametrize("names", [["(a, b)", "(1)", "x"], ["()", "(1, 2", "[1"]])
def test_names_of_actions_may_have_brackets(tmp_path, names):
    assert table(scalars(tmp_path / "a.csv", names[:1] * 3))["action"].to_list() == names[:1] * 3
    given = ("(1, 2)", *names)
    assert table(scalars(tmp_path / "a.csv", given[:3]), actions=given)["action"].to_list() == [*given[:3]]


def test_actions_of_a_table_that_are_marks_are_refused(tmp_path):
    made = {"mdp_id": ["a"], "sequence_number": [0], "state:0": [0.5], "action": [True], "reward": [1.0]}
    pl.DataFrame(made).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="column action is Boolean; an action is a name, an index, a list or a map"):
        table(tmp_path / "a.parquet")


@pytest.mark.parametrize("rows", [3, 2000])
def test_a_row_with_too_many_cells_is_refused_although_the_last_column_is_left_out(tmp_path, rows):
    path = tmp_path / "a.csv"
    lines = [f"a,{i},0.5,left,1,why" for i in range(rows)]
    path.write_text("\n".join(["mdp_id,sequence_number,state:0,action,reward,comment", *lines]) + "\n")
    assert len(table(path, actions=NAMES)) == rows
    path.write_text(path.read_text() + f"a,{rows},0.5,left,1,why,more\n")
    with pytest.raises(ConfigError, match=f"row {rows + 2} has 7 cells, and the heading has 6"):
        table(path, actions=NAMES)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"mdp": "episode"}, "--columns: no column of a log is called mdp; did you mean mdp_id?"),
        ({"zzz": "episode"}, "--columns: no column of a log is called zzz; there are mdp_id, "),
        ({"mdp_id": ["a", "b"]}, '--columns: mdp_id is ["a", "b"]; it must be the name of a column'),
        ({"state_features": ["extra", "extra"]}, "--columns: state_features has extra twice; leave one out"),
        ({"state_features": []}, "it must be the name of a column, a list of columns, or a map"),
        ({"reward": "r"}, "has no column r, which --columns (or the data of --like) names for reward; it has mdp_id, "),
        (
            {"state_features": ["x"]},
            "has no column x, which --columns (or the data of --like) names for state_features; it has",
        ),
        ({"state_features": ["extra", "reward"]}, "--columns: column reward is read as state_features and as reward; "),
        ({"action": "extra", "state_features": {"0": "extra"}}, "extra is read as state_features and as action; "),
        ({"terminated": "extra", "truncated": "extra"}, "column extra is read as terminated and as truncated; "),
    ],
)
def test_invalid_column_mapping_is_rejected(tmp_path, columns, message):
    with pytest.raises(ConfigError) as refused:
        read_log([write(tmp_path / "a.jsonl", [row(extra=1)])], columns=columns)
    assert message in str(refused.value)


def test_columns_file_without_a_mapping_is_rejected(tmp_path):
    (tmp_path / "columns.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="does not hold a mapping; write lines such as mdp_id: episode"):
        read_columns(tmp_path / "columns.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_columns(tmp_path / "nowhere.yaml")


def test_missing_package_is_reported(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(packages.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'lockstep-rl\[offline\]'"):
        read_log([write(tmp_path / "a.jsonl", [row()])])


def test_rows_with_many_features_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(log_maps, "_MOST_FIELDS", 1)
    path = write(tmp_path / "a.jsonl", [row(), row(1, state_features={"0": "x"})])
    with pytest.raises(ConfigError, match="row 2: state_features: Expected"):
        table(path)


CSV = "mdp_id,sequence_number,state:0,action,reward\n"
ROWS = "a,0,1.0,l,1\n\na,1,2.0,r,1\n\n"


def csv_of(folder, text):
    (folder / "a.csv").write_bytes(text.encode())
    return [folder / "a.csv"]


def test_blank_lines_of_a_csv_are_no_rows_and_are_counted(tmp_path):
    read = whole(read_log(csv_of(tmp_path, CSV + ROWS)))
    assert read["action"].to_list() == ["l", "r"] and read["_row"].to_list() == [2, 4]
    with pytest.raises(ConfigError, match="row 6: reward is 'x'"):
        whole(read_log(csv_of(tmp_path, CSV + ROWS + "b,0,1.0,l,x\n")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ((CSV + ROWS).replace("\n", "\r"), r"carriage returns alone; save it with line feeds"),
        (CSV + '"' + ROWS, "row 2: a quotation mark opens a cell and is not closed"),
        (CSV + ROWS.replace("a,1", 'a,"1,000"'), r"row 4: sequence_number is '1,000'; it must be a whole number[^(]*$"),
    ],
)
def test_a_csv_that_cannot_be_read_says_why(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        whole(read_log(csv_of(tmp_path, text)))


def test_a_column_without_a_name_is_named(tmp_path):
    log = read_log(csv_of(tmp_path, "," + CSV + "0,a,0,1.0,l,1\n"))
    whole(log)
    assert any("such a name: one without a name" in note for note in log.notes)


def test_a_number_is_no_name_of_a_column(tmp_path):
    with pytest.raises(ConfigError, match="--columns: no column of a log is called 1"):
        read_log(csv_of(tmp_path, CSV + ROWS), columns={1: "mdp_id"})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"mdp_id": ' + "[" * 100_000])
def test_deep_json_is_refused(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.jsonl"):
        whole(read_log([tmp_path / "a.jsonl"]))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_rows_that_are_not_utf8_and_lack_columns_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'[{"mdp_id": "\xe9", "sequence_number": 0}]' if name == "a.json" else b'{"mdp_id": "\xe9"}\n')
    with pytest.raises(ConfigError, match="has no column"):
        table(path)


def test_json_rows_of_several_lines_or_several_in_a_line_are_refused_with_the_way_out(tmp_path):
    rows = [row(i) for i in range(5)]
    path = tmp_path / "a.jsonl"
    for text in (
        "\n".join(json.dumps(one, indent=1) for one in rows),
        " ".join(json.dumps(one) for one in rows),
        "\n".join([json.dumps(one) for one in rows] + [json.dumps(row(5), indent=1)]),
        "\n".join(json.dumps(row(i), indent=4) for i in range(9000)),  # more than a block
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"does not have one row in each line; write it so \(jq -c \.\)"):
            table(path)


def test_names_of_columns_with_spaces_around_them_are_shown_so(tmp_path):
    """Otherwise the message contradicts itself: there is no column x, and there is x."""
    path = tmp_path / "a.csv"
    path.write_text("mdp_id, sequence_number, x, action, reward\na, 0, 1.0, l, 1\n")
    spaced = "it has mdp_id, ' sequence_number', ' x', ' action', ' reward'; save it without the spaces around names"
    with pytest.raises(ConfigError, match=f"has no column x, which --columns .* names for state_features; {spaced}"):
        table(path, columns={"state_features": ["x"]})
    with pytest.raises(ConfigError, match=f"has no columns sequence_number, .*; {spaced}. If they are called"):
        table(path)
