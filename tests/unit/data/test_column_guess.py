"""Logs with other column names: what is missing, and the suggested `--columns` file."""

import json

import pytest
import yaml

from lockstep.data.logs.column_guess import likely_column, suggest_columns
from lockstep.data.logs.format import read_log
from lockstep.data.logs.schema import read_columns
from lockstep.errors import ConfigError
from made_logs import whole

NAMES = ("Session ID", "step", "speed", "angle", "choice", "payoff", "prob", "note")
ROWS = [("a", i, i + 0.5, -1.0, "left" if i % 2 else "right", 1.0, 0.5, "nice") for i in range(4)]
SUGGESTED = {
    "mdp_id": "Session ID",
    "sequence_number": "step",
    "state_features": ["speed", "angle"],
    "action": "choice",
    "reward": "payoff",
    "propensity": "prob",
}


def table(path, separator=","):
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in (NAMES, *ROWS)))
    return path


def lines(path):
    path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in ROWS))
    return path


def refused(path, **options):
    with pytest.raises(ConfigError) as error:
        read_log([path], **options)
    return str(error.value)


@pytest.mark.parametrize("make", [table, lines], ids=["csv", "jsonl"])
def test_suggested_file_reads_the_log(tmp_path, make):
    path = make(tmp_path / ("log.csv" if make is table else "log.jsonl"))
    message = refused(path)
    first, _, text = message.partition("\n\n")
    assert "has no columns mdp_id, sequence_number, state_features, action, reward" in first
    assert "it has Session ID, step, speed, angle, choice, payoff, prob, note. " in first
    assert "# left out: note" in text
    assert yaml.safe_load(text) == SUGGESTED
    (tmp_path / "columns.yaml").write_text(text)
    log = read_log([path], columns=read_columns(tmp_path / "columns.yaml"))
    assert whole(log)["state:speed"].to_list() == [0.5, 1.5, 2.5, 3.5]


def test_configured_columns_are_kept(tmp_path):
    message = refused(table(tmp_path / "log.csv"), columns={"mdp_id": "note", "state_features": {"7": "speed"}})
    found = yaml.safe_load(message.partition("\n\n")[2])
    assert found == SUGGESTED | {"mdp_id": "note", "state_features": {"7": "speed"}}


def test_columns_without_a_guess_are_marked(tmp_path):
    (tmp_path / "log.csv").write_text("who,what\na,b\n")
    text = refused(tmp_path / "log.csv").partition("\n\n")[2]
    found = yaml.safe_load(text)
    assert set(found.values()) == {"???"}
    assert "has no column ???, which --columns" in refused(tmp_path / "log.csv", columns=found)


def test_map_column_is_suggested_as_state():
    text = suggest_columns({}, ["state_features", "action"], ["x", "obs_map", "y"], {"x": "number", "obs_map": "map"})
    assert yaml.safe_load(text) == {"state_features": "obs_map", "action": "???"}


@pytest.mark.parametrize(
    ("name", "available", "wanted"),
    [
        ("mdp_id", ["user", "episode_id"], "episode_id"),
        ("mdp_id", ["MDP-ID"], "MDP-ID"),
        ("terminated", ["done"], "done"),
        ("reward", ["rewardd"], "rewardd"),
        ("next_action", ["action"], None),
        ("propensity", ["colour"], None),
    ],
)
def test_common_names_are_recognized(name, available, wanted):
    assert likely_column(name, available) == wanted


@pytest.mark.parametrize("name", ["no", "a b", "é", "a: b", "#1", "1"])
def test_names_are_quoted_as_yaml_requires(name):
    text = suggest_columns({"mdp_id": name}, ["state_features"], [name], {name: "number"})
    assert yaml.safe_load(text) == {"mdp_id": name, "state_features": [name]}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.csv.gz"])
def test_separator_is_detected(tmp_path, separator, name):
    import gzip

    path = table(tmp_path / name, separator)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    log = read_log([path], columns=SUGGESTED)
    assert whole(log)["action"].to_list() == ["right", "left", "right", "left"]


def test_quoted_heading_may_contain_other_separators(tmp_path):
    (tmp_path / "log.csv").write_text('mdp_id,sequence_number,"state:a;b;c;d;e;f;g",action,reward\nx,0,1.5,left,1\n')
    assert whole(read_log([tmp_path / "log.csv"]))["state:a;b;c;d;e;f;g"].to_list() == [1.5]


def test_too_long_row_is_reported(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("mdp_id;sequence_number;state:0;action;reward\na;0;0,5;left;1\na;1;1;left;1;7\n")
    with pytest.raises(ConfigError, match="row 3 has 6 cells, and the heading has 5"):
        whole(read_log([path]))


def test_decimal_comma_is_rejected_with_a_hint(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("mdp_id;sequence_number;state:0;action;reward\na;0;0,5;left;1\n")
    with pytest.raises(ConfigError, match=r"row 2: state:0 is '0,5'; it must be a number \(with a point: 0\.5\)"):
        whole(read_log([path]))


def test_unused_columns_are_suggested(tmp_path):
    (tmp_path / "log.csv").write_text("mdp_id,sequence_number,state:0,action,reward,prob,note\nx,0,1.5,left,1,0.5,n\n")
    log = read_log([tmp_path / "log.csv"])
    assert log.notes == [
        f"{tmp_path}/log.csv: columns left out, since no column of a log has such a name: prob, note; if prob means "
        "propensity, --columns says so: propensity: prob"
    ]
