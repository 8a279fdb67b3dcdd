"""Logs of continuous actions: maps and lists of numbers, bounds, densities, and what is refused."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import load_features
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.errors import ConfigError


def row(number, action, **more):
    made = {"mdp_id": "a", "sequence_number": number, "state_features": {"0": number + 0.5}, "reward": float(number)}
    return made | {"action": action, "terminated": number == 3} | more


def prepared(tmp_path, rows, name="data", suffix=".jsonl", **options):
    """Prepare rows; returns the data, in the order of the log, and the printed lines."""
    log = tmp_path / f"{name}{suffix}"
    if suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(log)
    else:
        log.write_text("".join(json.dumps(one) + "\n" for one in rows))
    printed = []
    path = prepare_dataset([log], tmp_path / name, PrepareOptions(**options), show=printed.append)
    return Dataset.open(path, verify=True), printed


ACTIONS = [[-2.0, 5.0], [0.0, 6.0], [2.0, 7.0], [1.0, 5.5]]
STATE = {f"x_{k}": k + 0.5 for k in range(12)}
SCALED = [[-1, -1], [0, 0], [1, 1], [0.5, -0.5]]


@pytest.mark.parametrize(
    ("actions", "suffix"),
    [
        ([{"7": a, "8": b} for a, b in ACTIONS], ".jsonl"),
        (ACTIONS, ".jsonl"),
        (ACTIONS, ".parquet"),
    ],
    ids=["maps", "lists", "lists in Parquet"],
)
def test_actions_are_scaled_from_the_bounds_of_the_log(tmp_path, actions, suffix):
    data, printed = prepared(tmp_path, [row(i, action) for i, action in enumerate(actions)], suffix=suffix)
    names = ("7", "8") if isinstance(actions[0], dict) else ("action_0", "action_1")
    assert (data.info.kind, data.info.action_features, data.info.action_size) == ("continuous", names, 2)
    bounds = {
        name: (feature.type, feature.min_value, feature.max_value) for name, feature in data.action_features.items()
    }
    assert bounds == dict(zip(names, [("continuous_action", -2.0, 2.0), ("continuous_action", 5.0, 7.0)], strict=True))
    rows = data.rows(np.arange(4))
    assert rows.action == pytest.approx(np.array(SCALED), abs=2e-6)
    assert rows.next_action[:3] == pytest.approx(np.array(SCALED[1:]), abs=2e-6)
    assert rows.has_next_action.tolist() == [1, 1, 1, 0] and rows.not_terminal.tolist() == [1, 1, 1, 0]
    assert np.isnan(rows.propensity).all() and rows.possible_actions.shape == (4, 0)
    assert any(f"{names[0]} in [-2, 2]" in line for line in printed)


def test_lists_of_many_numbers_keep_their_order(tmp_path):
    action = np.arange(12) + 0.25
    data, _ = prepared(tmp_path, [row(i, (action * (1 + i)).tolist()) for i in range(4)])
    assert data.info.action_features == tuple(f"action_{k:02}" for k in range(12))
    assert [feature.min_value for _, feature in data.action_features.items()] == action.tolist()


def test_numbered_features_of_a_simulator_keep_its_order(tmp_path):
    rows = [row(i, {f"u{k}": float(i - k) for k in range(11)}, state_features=STATE) for i in range(4)]
    data, _ = prepared(tmp_path, [one | {"metrics": {f"m{k}": 0.0 for k in range(11)}} for one in rows])
    assert data.info.state_features == tuple(STATE) == data.state_features.ids
    assert data.info.action_features == tuple(f"u{k}" for k in range(11)) == data.action_features.ids
    assert [feature.mean for _, feature in data.state_features.items()] == list(STATE.values())
    assert data.info.metrics[:3] == ("m0", "m1", "m10"), "no simulator numbers them: the order that data have stays"


def test_features_of_a_file_are_known_by_name_in_any_order(tmp_path):
    """A file of sorted keys has x_10 before x_2; a simulator numbers its observations."""
    rows = [row(i, {f"u{k}": float(i - k) for k in range(11)}, state_features=STATE) for i in range(4)]
    data, _ = prepared(tmp_path, rows)
    files = {name: tmp_path / f"{name}.json" for name in ("state_features", "action_features")}
    for name, file in files.items():
        file.write_text(json.dumps(json.loads((data.path / f"{name}.json").read_text()), sort_keys=True))
    assert load_features(files["state_features"]).ids[:3] == ("x_0", "x_1", "x_10")
    again, _ = prepared(tmp_path, rows, "again", **files)
    assert again.info.state_features == again.state_features.ids == tuple(STATE)
    assert (again.state_features, again.action_features) == (data.state_features, data.action_features)
    assert (again.column("state")[:] == data.column("state")[:]).all()


def test_data_of_an_earlier_version_pass_their_order_on(tmp_path):
    """Policies that learned from them have parameters in that order."""
    rows = [row(i, {"u": float(i)}, state_features=STATE) for i in range(4)]
    data, _ = prepared(tmp_path, rows)
    file = data.path / "state_features.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    again, _ = prepared(tmp_path, rows, "again", state_features=file)
    assert again.info.state_features == tuple(sorted(STATE))


def test_lists_that_look_one_hot_are_numbers_if_the_kind_is_given(tmp_path):
    rows = [row(i, [float(i == 0), float(i != 0)]) for i in range(4)]
    assert prepared(tmp_path, rows, "named")[0].info.kind == "discrete"
    assert prepared(tmp_path, rows, "numbers", kind="continuous")[0].info.kind == "continuous"


def test_density_is_the_logarithm_that_was_logged(tmp_path):
    rows = [row(i, action, log_probability=700.0 - i) for i, action in enumerate(ACTIONS)]
    data, _ = prepared(tmp_path, rows)
    assert data.info.has_propensity
    assert data.rows(np.arange(4)).propensity.tolist() == [700, 699, 698, 697], "a density of e^700 has no float32"
    rows = [row(i, action, propensity=0.25) for i, action in enumerate(ACTIONS)]
    assert prepared(tmp_path, rows, "other")[0].rows(np.arange(4)).propensity == pytest.approx([math.log(0.25)] * 4)


def test_log_probabilities_of_names_become_propensities(tmp_path):
    rows = [row(i, "left", log_probability=math.log(0.25)) for i in range(4)]
    data, printed = prepared(tmp_path, rows)
    assert data.column("propensity")[:] == pytest.approx([0.25] * 4)
    assert "propensities" not in "".join(printed)
    rare = [row(i, "left", log_probability=-120.0 if i else -1.0) for i in range(4)]
    data, printed = prepared(tmp_path, rare, "rare")
    assert (data.column("propensity")[:] > 0).all(), "float32 has no such number"
    assert any("propensities raised to 1.18e-38, the least that is kept: 3 decisions." in one for one in printed)


def test_bounds_are_printed_with_the_digits_that_tell_them_apart(tmp_path):
    _, printed = prepared(tmp_path, [row(i, [1e8 + 0.5 * i, 0.5 * i]) for i in range(4)])
    assert any("action_0 in [100000000, 100000001.5], action_1 in [0, 1.5]" in line for line in printed), printed


def test_bounds_can_be_given(tmp_path):
    rows = [row(i, action) for i, action in enumerate(ACTIONS)]
    data, _ = prepared(tmp_path, rows, norm={"action_bounds": "[-8, 8]"})
    assert data.rows(np.arange(4)).action == pytest.approx(np.array(ACTIONS) / 8)
    like = {"kind": "continuous", "action_features": tmp_path / "data" / "action_features.json"}
    rows = [one | {"log_probability": -1.0} for one in rows]
    rows[0]["action"] = [-16.0, 0.0]
    other, printed = prepared(tmp_path, rows, "other", **like)
    assert other.rows(np.arange(1)).action[0] == pytest.approx([-1, 0], abs=2e-6)
    assert any("is clipped to [-8, 8]" in line and "the log has -16 to 2" in line for line in printed)
    density = other.column("log_density")[:]
    assert np.isnan(density[0]) and (density[1:] == -1).all(), "the density of another action says nothing of the bound"


def test_actions_with_more_numbers_than_the_named_features_are_refused(tmp_path):
    """A density of three numbers says nothing about a policy of two."""
    prepared(tmp_path, [row(i, action) for i, action in enumerate(ACTIONS)])
    like = {"kind": "continuous", "action_features": tmp_path / "data" / "action_features.json"}
    longer = [row(i, [*action, 0.1 * i], log_probability=-1.0) for i, action in enumerate(ACTIONS)]
    said = r"actions of the log have 3 numbers, and --action-features .* has no action_2, but only action_0, action_1;"
    with pytest.raises(ConfigError, match=said):
        prepared(tmp_path, longer, "other", **like)
    assert not (tmp_path / "other").exists()
    said = r" 3 numbers, and --like .*/data has no action_2, .*: correct the log, or leave --like out$"
    with pytest.raises(ConfigError, match=said):
        prepared(tmp_path, longer, "other", **like, metrics=())
    of_names = [one | {"action": {"x": 0.1, "y": 0.2 * i}} for i, one in enumerate(longer)]
    with pytest.raises(ConfigError, match=r"^--like .*/data has none of the action features of the log \(x, y, "):
        prepared(tmp_path, of_names, "other", **like, metrics=())


def test_bounds_of_a_file_that_no_policy_could_take_are_refused(tmp_path):
    rows = [row(i, action) for i, action in enumerate(ACTIONS)]
    prepared(tmp_path, rows)
    file = tmp_path / "data" / "action_features.json"
    file.write_text(file.read_text().replace("-2.0", "-1e300"))
    with pytest.raises(ConfigError, match=r"the bounds \[-1e\+300, 2\] of action_0 are too large for 32 bits"):
        prepared(tmp_path, rows, "other", kind="continuous", action_features=file)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_bounds_hold_actions_that_were_rounded_to_32_bits(tmp_path, suffix):
    actions = [[float(np.float32(x)), float(np.float32(y))] for x, y in [(-0.4, 0.1), (0.4, -0.1), (0.1, 0), (0, 0)]]
    assert actions[1][0] > 0.4
    rows = [row(i, action) for i, action in enumerate(actions)]
    data, _ = prepared(tmp_path, rows, suffix=suffix, norm={"action_bounds": "[-0.4, 0.4]"})
    assert data.rows(np.arange(2)).action[:, 0] == pytest.approx([-1, 1], abs=2e-6)
    like = {"kind": "continuous", "action_features": tmp_path / "data" / "action_features.json"}
    _, printed = prepared(tmp_path, rows, "other", suffix, **like)
    assert not any("is clipped" in line for line in printed)
    rows[1]["action"] = [0.4001, -0.1]
    with pytest.raises(ConfigError, match=r"but the log has actions from -0\.4 to 0\.4001"):
        prepared(tmp_path, rows, "beyond", suffix, norm={"action_bounds": "[-0.4, 0.4]"})


def test_features_of_robots_keep_their_shape_and_are_scaled_up(tmp_path):
    """An angle with rare large values is no quantile, beyond whose ends a policy would see nothing."""
    angles = 0.1 * np.random.default_rng(0).standard_cauchy(2000)
    rows = [row(i, [a], state_features={"angle": a}, terminated=False) for i, a in enumerate(angles)]
    feature = prepared(tmp_path, rows)[0].state_features["angle"]
    assert (feature.type, feature.stddev) == ("continuous", pytest.approx(angles.std(ddof=1)))
    asked = prepared(tmp_path, rows, "asked", norm={"skip_quantiles": "false"})[0]
    assert asked.state_features["angle"].type == "quantile"
    named = [one | {"action": "left" if i % 2 else "right"} for i, one in enumerate(rows)]
    assert prepared(tmp_path, named, "named")[0].state_features["angle"].type == "quantile"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_last_state_needs_no_action_in_tables(tmp_path, suffix):
    columns = {"mdp_id": ["a"] * 3, "sequence_number": [0, 1, 2], "state:x": [0.1, 0.2, 0.3]}
    log = tmp_path / f"log{suffix}"
    frame = pl.DataFrame(columns | {"action:a": [0.5, -0.5, None], "reward": [1.0, 1.0, None]})
    frame.write_csv(log) if suffix == ".csv" else frame.write_parquet(log)
    data = Dataset.open(prepare_dataset([log], tmp_path / "data", PrepareOptions(), show=lambda _: None))
    assert (data.info.num_rows, data.info.action_features) == (2, ("a",))


def test_a_last_row_with_only_a_state_ends_the_episode_unless_it_is_marked_as_cut(tmp_path):
    rows = [row(i, action) | {"mdp_id": name} for name in "ab" for i, action in enumerate(ACTIONS)]
    for one in rows:
        del one["terminated"]
        if one["sequence_number"] == 3:
            del one["action"], one["reward"]
    data, printed = prepared(tmp_path, rows)
    assert data.info.rules["terminal"] == 2
    assert any("where no decision follows (the log marks nothing): 2 of 2" in line for line in printed)
    assert any("a row without an action follows 2 of them, and its state counts as the end" in line for line in printed)
    rows[3]["truncated"] = True
    data, printed = prepared(tmp_path, rows, "cut")
    assert data.info.rules["terminal"] == 1 and not any("precede a row" in line for line in printed)


@pytest.mark.parametrize("column", ["possible_actions", "possible_next_actions"])
def test_an_empty_list_marks_an_end_and_no_list_is_filled_in(tmp_path, column):
    rows = [row(i, action) for i, action in enumerate(ACTIONS)]
    for one in rows:
        del one["terminated"]
    data, printed = prepared(tmp_path, [*rows[:3], rows[3] | {column: []}])
    assert (data.info.kind, data.info.rules["terminal"]) == ("continuous", 1)
    assert any(f"its {column} are empty: 1 of 1" in line for line in printed)
    assert not any("possible actions" in line for line in printed)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"action_bounds": "[-8, 8]"}, {"action_features": "action_features.json"}, "has bounds, and so has action_"),
        ({"feature_overrides.action_0": "quantile"}, {}, "action_0, a number of continuous actions"),
        ({"feature_overrides.0": "quantile"}, {"state_features": "state_features.json"}, "type --state-features"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path, settings, options, message):
    rows = [row(i, action) for i, action in enumerate(ACTIONS)]
    prepared(tmp_path, rows)
    files = {name: tmp_path / "data" / file for name, file in options.items()}
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, rows, "other", norm=settings, **files)


def test_bounds_are_for_continuous_actions(tmp_path):
    with pytest.raises(ConfigError, match=r"action_bounds=.* is for continuous actions, and the log has none"):
        prepared(tmp_path, [row(i, "left") for i in range(4)], norm={"action_bounds": "[-8, 8]"})


def test_candidates_remain_parametric(tmp_path):
    offers = [{"7": 1.0}, {"7": 2.0}]
    rows = [row(i, offers[i % 2], possible_actions=offers) for i in range(4)]
    listed, printed = prepared(tmp_path, rows, "listed")
    assert listed.info.kind == "parametric" and not any("count as candidates" in line for line in printed)
    sparse = [row(i, {"7" if i % 2 else "8": 1.0 + i}) for i in range(4)]
    assert prepared(tmp_path, sparse, "sparse")[0].info.kind == "parametric", "not every action has all numbers"
    plain = [row(i, {"7": 1.0 + i}) for i in range(4)]
    asked, printed = prepared(tmp_path, plain, "asked", kind="parametric")
    assert asked.info.kind == "parametric" and not any("count as candidates" in line for line in printed)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_missing_number_says_why_actions_are_candidates(tmp_path, suffix):
    rows = [row(i, {"7": 1.0 + i, "8": None if i == 2 else float(i)}) for i in range(4)]
    data, printed = prepared(tmp_path, rows, suffix=suffix)
    assert data.info.kind == "parametric"
    assert any("since 1 of 4 have no number 8; if they are continuous, complete the log" in line for line in printed)


def test_a_density_beside_a_missing_number_says_why_it_counts_as_a_probability(tmp_path):
    rows = [row(i, {"7": 1.0 + i, "8": float(i)}, log_probability=0.5) for i in range(4)]
    assert prepared(tmp_path, rows)[0].info.kind == "continuous"
    rows[2]["action"]["8"] = None
    said = (
        r"row 1: log_probability 0\.5 is above 0, and a probability is at most 1; actions count as candidates "
        r"\(parametric\), since 1 of 4 have no number 8; .* --kind continuous names the first such row$"
    )
    with pytest.raises(ConfigError, match=said):
        prepared(tmp_path, rows, "gap")
    with pytest.raises(
        ConfigError, match=r"at most 1; of continuous actions \(--kind continuous\) it is the logarithm"
    ):
        prepared(tmp_path, rows, "asked", kind="parametric")


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"action": [1.0]}, {}, "row 3: action holds 1 numbers, and rows before hold 2"),
        ({"action": [1.0, "x"]}, {}, "row 3: action is .* must be a list of finite numbers"),
        ({"action": [1.0, None]}, {}, "row 3: action is .* must be a list of finite numbers"),
        ({"action": "left"}, {}, "row 3: action is 'left', and a list of numbers in other rows"),
        ({"action": {"7": 1.0}}, {}, "row 3: action is .*, and a list of numbers in other rows"),
        ({"propensity": 1.5}, {}, "row 3: propensity 1.5 .* the logarithm of a density as log_probability"),
        ({"propensity": 0.5, "log_probability": -1.0}, {}, "row 3: has both propensity and log_probability"),
        ({}, {"norm": {"action_bounds": "[-1, 1]"}}, "action_bounds=.*, but the log has actions from -2 to 2"),
        ({}, {"norm": {"action_bounds": "[1, -1]"}}, r"action_bounds=\[1.0, -1.0\] must be null, or a lower and an"),
        ({}, {"norm": {"action_bounds": "[null, 1]"}}, r"=\[None, 1\] must be null, or a lower and an upper"),
        ({}, {"norm": {"action_bounds": "4"}}, r"=4 must be null, or .* bound, such as \[-1, 1\]$"),
        ({}, {"norm": {"action_bounds": "[-1, 1e300]"}}, r"action_bounds=\[-1.0, 1e\+300\] are too large for 32 bits"),
        ({"action": [1e300, 5.0]}, {}, r"row 3: number action_0 of action is 1e\+300, which is too large for 32 bits"),
        ({"next_action": [2.0, -1e39]}, {}, r"row 3: number action_1 of next_action is -1e\+39, which is too large"),
        ({}, {"kind": "discrete"}, "a list holds names, maps, or a 0 or 1 for each action"),
    ],
)
def test_invalid_logs_are_refused(tmp_path, changes, options, message):
    rows = [row(i, action) for i, action in enumerate(ACTIONS)]
    rows[2] |= changes
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, rows, **options)


@pytest.mark.parametrize("text", ["[0.1, -0.2]", " [0, 1]", '{"7": 0.1}'])
def test_a_list_or_a_map_in_quotes_is_no_name_of_an_action(tmp_path, text):
    """So `json.dumps` writes a row of a CSV; there would be as many named actions as rows."""
    rows = [row(0, "left"), row(1, text)]
    said = f"row 2: action is the text {text!r}; write the list or map without quotes around it"
    with pytest.raises(ConfigError, match=re.escape(said)):
        prepared(tmp_path, rows)
    assert prepared(tmp_path, rows, "named", actions=("left", text))[0].info.actions == ("left", text)


def test_numbers_without_range_or_with_gaps_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"number 7 of the action is 1 in every row, .*--action-features FILE with bounds for each"
    ):
        prepared(tmp_path, [row(i, {"7": 1.0, "8": float(i)}) for i in range(4)])
    gaps = [row(i, {"7": 1.0 + i, "8": None if i == 2 else float(i)}) for i in range(4)]
    with pytest.raises(ConfigError, match="row 3: action has no number 8; a continuous action has all of them"):
        prepared(tmp_path, gaps, "gaps", kind="continuous")
    extra = [row(i, {"7": 1.0 + i} | ({"z": 0.5} if i == 3 else {})) for i in range(4)]
    said = r"extra\.jsonl: 3 of 4 actions have no number z, which is 0\.5 in the others; a continuous action has all of"
    with pytest.raises(ConfigError, match=said):
        prepared(tmp_path, extra, "extra", kind="continuous")
    names = [row(i, "left", log_probability=0.5) for i in range(4)]
    with pytest.raises(ConfigError, match=r"log_probability 0\.5 is above 0"):
        prepared(tmp_path, names, "names")
