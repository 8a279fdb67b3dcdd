"""From logs to prepared data: known columns, equal bytes for any order, atomic results."""

import bz2
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import save_features
from lockstep.data.preparation import passes as preparation
from lockstep.data.prepare import PrepareOptions, identify_features, prepare_dataset, sample_features
from lockstep.errors import ConfigError, RunError
from made_data import as_it_is

REAL = Path(__file__).parents[4] / "shared" / "data" / "cartpole_parametric.json.bz2"


def silent(text):
    """Discard a line."""


def write_log(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(name, number, state, action, reward=0.0, **more):
    return {
        "mdp_id": name,
        "sequence_number": number,
        "state_features": state,
        "action": action,
        "reward": reward,
        **more,
    }


def features(path, *ids):
    """A file by which features are their own normalization."""
    save_features(as_it_is(ids), path)
    return path


def prepare(tmp_path, rows, name="out", **options):
    """Prepare rows with states of the features 1 and 2 as they are; returns the data and the printed lines."""
    options = {"state_features": features(tmp_path / "state.json", "1", "2"), **options}
    if rows and isinstance(rows[0]["action"], dict):
        options["action_features"] = features(tmp_path / "action.json", "7", "8")
    printed = []
    log = write_log(tmp_path / f"{name}.jsonl", rows)
    return Dataset.open(
        prepare_dataset([log], tmp_path / name, PrepareOptions(**options), show=printed.append), verify=True
    ), printed


def by_place(data, *names):
    """Columns of all rows, ordered by the reward, which tests give as the place of a row in the log."""
    order = np.argsort(data.column("reward")[:], kind="stable")
    return [data.column(name)[:][order].tolist() for name in names]


def contents(directory):
    """Bytes of all files, except the path of the log."""
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    about = json.loads(found.pop("dataset.json"))
    return found, about["info"]


def many(seed=0, trajectories=60, kind="discrete"):
    """A log of all sorts of rows: sparse states, lists that differ, cut and ended trajectories."""
    draws = random.Random(seed)
    rows = []
    for trajectory in range(trajectories):
        length = draws.randint(1, 9)
        for i in range(length):
            if kind == "discrete":
                offers = draws.sample(["a", "b", "c"], draws.randint(1, 3))
            else:
                offers = [{"7": draws.randint(0, 3), "8": draws.random()} for _ in range(draws.randint(1, 4))]
            state = {str(j): draws.gauss(0, 1) for j in range(4) if draws.random() < 0.9}
            more = {"possible_actions": offers, "propensity": draws.random() or 1, "metrics": {"cost": draws.random()}}
            more |= {"terminated": i == length - 1 and trajectory % 3 != 0}
            rows.append(row(f"trajectory {trajectory}", 3 * i, state, draws.choice(offers), draws.random(), **more))
    return rows


def test_discrete_columns_match_expected_values(tmp_path):
    rows = [
        row("x", 0, {"1": 10.0, "2": 0.5}, "left", 0, possible_actions=["left", "right"], propensity=0.25),
        row("x", 2, {"1": 11.0}, "right", 1, possible_actions=["right"], propensity=None),
        row("x", 5, {"2": 12.5}, "left", 2, possible_actions=["right"], propensity=1.0),
        row("y", 0, {"1": 20.0}, "right", 3, possible_actions=["left"], propensity=1.0),
    ]
    for number, one in enumerate(rows):
        one["metrics"] = {"reward": 9.0, "cost": 0.5 * number}
    data, printed = prepare(tmp_path, rows)
    info = data.info
    assert (info.kind, info.num_rows, info.num_trajectories) == ("discrete", 4, 2)
    assert (info.actions, info.metrics, info.state_features) == (("left", "right"), ("cost",), ("1", "2"))
    assert (info.has_propensity, info.has_next_action, info.has_possible_actions) == (True, True, True)
    assert info.has_impossible_actions
    assert info.reward_mean == 1.5
    state, after = by_place(data, "state", "next_state")
    assert state == [[10, 0.5], [11, 0], [0, 12.5], [20, 0]], "absent features are 0"
    assert after == [[11, 0], [0, 12.5], [0, 0], [0, 0]]
    assert by_place(data, "action", "next_action") == [[0, 1, 0, 1], [1, 0, -1, -1]]
    possible, possible_next = by_place(data, "possible_actions", "possible_next_actions")
    assert possible == [[1, 1], [0, 1], [1, 1], [1, 1]], "the action that was taken was possible"
    assert possible_next == [[0, 1], [1, 1], [0, 0], [0, 0]]
    assert by_place(data, "terminal", "continues", "time_diff") == [[0, 0, 1, 1], [1, 1, 0, 0], [2, 3, 1, 1]]
    assert by_place(data, "metrics", "sequence_number") == [[[0.0], [0.5], [1.0], [1.5]], [0, 2, 5, 0]]
    assert by_place(data, "propensity")[0][::2] == [0.25, 1.0]
    assert np.isnan(by_place(data, "propensity")[0][1])
    assert sorted(set(data.column("trajectory")[:].tolist())) == [0, 1]
    assert len({tuple(key) for key in data.column("key")[:].tolist()}) == 4
    assert "the metric reward is left out: estimates call the column reward so; give it another name" in printed
    assert "2 decisions took an action that was not among the possible ones; it was added to them" in printed
    check = data.check_rows()
    raw = {reward: check["state_value"][i] for i, reward in enumerate(data.column("reward")[:][check["row"]])}
    np.testing.assert_array_equal([raw[i] for i in range(4)], [[10, 0.5], [11, np.nan], [np.nan, 12.5], [20, np.nan]])


def test_parametric_columns_match_expected_values(tmp_path):
    a, b, c = {"7": 1.0}, {"8": 2.0}, {"7": 3.0, "8": 4.0}
    rows = [
        row("x", 0, {"1": 1.0}, b, 0, possible_actions=[a, b, c], possible_next_actions=[a]),
        row("x", 1, {"1": 2.0}, a, 1, possible_actions=[a], possible_next_actions=[c, b], next_action=c),
        row("x", 2, {"1": 3.0}, c, 2, possible_actions=[], possible_next_actions=[]),
        row("y", 0, {"1": 4.0}, a, 3, possible_actions=[c], possible_next_actions=[b, b]),
    ]
    rows[3] |= {"next_state_features": {"1": 5.0}, "next_action": b}
    data, _ = prepare(tmp_path, rows)
    order = np.argsort(data.column("reward")[:])
    assert by_place(data, "action", "action_index") == [[[0, 2], [1, 0], [3, 4], [1, 0]], [1, 0, 0, 1]]
    own, ahead = (data.ragged(name)[order] for name in ("possible_actions", "possible_next_actions"))
    assert own.offsets.tolist() == [0, 3, 4, 6, 8]
    assert own.values.tolist() == [[1, 0], [0, 2], [3, 4], [1, 0], [3, 4], [0, 2], [3, 4], [1, 0]]
    assert ahead.offsets.tolist() == [0, 1, 3, 3, 5]
    assert ahead.values.tolist() == [[1, 0], [3, 4], [0, 2], [0, 2], [0, 2]]
    assert by_place(data, "next_action", "has_next_action") == [[[1, 0], [3, 4], [0, 0], [0, 2]], [1, 1, 0, 1]]
    assert by_place(data, "next_state", "terminal") == [[[2, 0], [3, 0], [0, 0], [5, 0]], [0, 0, 1, 0]]
    assert data.info.candidates == (), "rows offer different actions"


@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_a_logged_next_action_is_among_the_possible_next_ones(tmp_path, kind):
    """As the action of a decision is: a list that lacks it gets it, at its end."""
    actions = [{"7": 1.0}, {"7": 2.0}, {"7": 3.0}] if kind == "parametric" else ["a", "b", "c"]
    a, b, c = actions
    listed = [[a, b], [a], None, [c], [b, a]]
    rows = [
        row(f"x {i}", 0, {"1": 1.0}, a, i, possible_actions=actions, next_state_features={"1": 5.0}, next_action=coming)
        | {"possible_next_actions": possible}
        for i, (possible, coming) in enumerate(zip(listed, [b, c, b, b, c], strict=True))
    ]
    rows += [row("end", i, {"1": 1.0}, a, 9, possible_actions=[a, c], terminated=i == 1) for i in range(2)]
    data, _ = prepare(tmp_path, rows)
    order = np.argsort(data.column("reward")[:], kind="stable")[:5]
    if kind == "parametric":
        found = data.ragged("possible_next_actions")[order]
        values = np.split(found.values[:, 0], found.offsets[1:-1])
        assert [one.tolist() for one in values] == [[1, 2], [1, 3], [2], [3, 2], [2, 1, 3]]
    else:
        masks = data.column("possible_next_actions")[:][order]
        assert masks.tolist() == [[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]], "no list: all are possible"


@pytest.mark.parametrize("given", [{"7": 3.0}, None])
def test_unknown_candidates_default_to_the_action_taken(tmp_path, given):
    rows = [
        row("x", 0, {"1": 1.0}, {"7": 1.0}, 0),
        row("x", 1, {"1": 2.0}, {"8": 2.0}, 1, next_state_features={"1": 9.0}, next_action=given),
    ]
    rows[0]["next_state_features"], rows[0]["next_action"] = {"1": 2.0}, {"8": 2.0}
    data, _ = prepare(tmp_path, rows, max_episode_steps=2)
    order = np.argsort(data.column("reward")[:])
    assert data.ragged("possible_actions")[order].values.tolist() == [[1, 0], [0, 2]]
    expected = [[0, 2], [3, 0]] if given else [[0, 2], [0, 2]]
    assert data.ragged("possible_next_actions")[order].values.tolist() == expected
    assert not data.info.has_possible_actions
    assert not data.info.restricts_actions


def test_shared_list_becomes_the_candidates(tmp_path):
    offers = [{"8": 2.0}, {"7": 1.0, "8": 0.0}]
    rows = [row("x", i, {"1": 1.0}, offers[i % 2], i, possible_actions=offers) for i in range(3)]
    assert prepare(tmp_path, rows)[0].info.candidates == ({"8": 2.0}, {"7": 1.0, "8": 0.0})
    rows[1]["action"] = {"7": 5.0}
    assert prepare(tmp_path, rows, "other")[0].info.candidates == (), "one row had an action of its own"


def test_the_order_of_named_possible_actions_means_nothing(tmp_path):
    def log(*, ordered):
        draws = random.Random(0)
        rows = many(trajectories=20)
        for here, after in zip(rows, [*rows[1:], None], strict=True):
            follows = after is not None and after["mdp_id"] == here["mdp_id"]
            here["possible_next_actions"] = list(after["possible_actions"]) if follows else []
        for one in rows:
            for name in ("possible_actions", "possible_next_actions"):
                one[name] = sorted(one[name]) if ordered else draws.sample(one[name], len(one[name]))
        return rows

    ordered, _ = prepare(tmp_path, log(ordered=True), "ordered")
    mixed, _ = prepare(tmp_path, log(ordered=False), "mixed")
    assert contents(mixed.path) == contents(ordered.path)


def test_a_list_that_all_rows_share_may_have_several_orders(tmp_path):
    rows = [row("x", 0, {"1": 1.0}, "a", 0, possible_actions=["a", "b"])]
    rows += [row("y", 0, {"1": 1.0}, "a", 1, possible_actions=["b", "a"])]
    rows += [row("y", 1, {"1": 1.0}, "a", 2, possible_actions=None)]
    rows += [row("z", 0, {"1": 1.0}, "c", 3)]
    data, _ = prepare(tmp_path, rows)
    assert by_place(data, "possible_actions")[0][2] == [1, 1, 0], "the list of the others, without c"


@pytest.mark.skipif(not REAL.exists(), reason="the real log is not here")
def test_real_log_is_prepared_by_each_rule(tmp_path):
    data = Dataset.open(prepare_dataset([REAL], tmp_path / "all", PrepareOptions(), show=silent))
    info, rules = data.info, data.info.rules
    assert (info.num_rows, info.num_trajectories, info.state_features) == (3925, 26, ("0", "1", "2", "3"))
    assert info.candidates == ({"4": 1.0}, {"5": 1.0})
    assert (rules["terminal"], rules["filled"], rules["left_out"], rules["longest"]) == (26, 26, 0, 200)
    assert any("prepare with --max-episode-steps 200" in line for line in rules["words"])
    data = Dataset.open(prepare_dataset([REAL], tmp_path / "cut", PrepareOptions(max_episode_steps=200), show=silent))
    assert (data.info.rules["terminal"], data.info.rules["cut"], data.info.num_rows) == (10, 16, 3925)
    terminal, continues = (data.column(name)[:] for name in ("terminal", "continues"))
    raw = [json.loads(line) for line in bz2.decompress(REAL.read_bytes()).splitlines()]
    after = {(one["mdp_id"], one["sequence_number"]): one["next_state_features"] for one in raw}
    lengths = {one["mdp_id"]: 1 + max(o["sequence_number"] for o in raw if o["mdp_id"] == one["mdp_id"]) for one in raw}
    ends = [state for (name, number), state in after.items() if number + 1 == lengths[name] == 200]
    expected = data.state_features.normalize(np.array([[end[i] for i in "0123"] for end in ends]))
    found = data.column("next_state")[:][(terminal == 0) & (continues == 0)]
    assert sorted(found.tolist()) == sorted(expected.tolist()), "a cut episode goes on from the logged next state"
    offered = data.ragged("possible_next_actions")[:]
    np.testing.assert_array_equal(np.diff(offered.offsets), np.where(terminal, 0, 2))


@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_bytes_are_independent_of_order_files_and_memory(tmp_path, monkeypatch, kind):
    rows = many(kind=kind)
    prepare_dataset([write_log(tmp_path / "log.jsonl", rows)], tmp_path / "one", PrepareOptions(), show=silent)
    random.Random(1).shuffle(rows)
    for i in range(5):
        write_log(tmp_path / "logs" / f"{i}.jsonl", rows[i::5])
    groups = []
    next_rows = preparation.next_rows
    monkeypatch.setattr(
        preparation, "next_rows", lambda block, *rest: groups.append(len(block)) or next_rows(block, *rest)
    )
    prepare_dataset([tmp_path / "logs"], tmp_path / "other", PrepareOptions(), memory=20_000, show=silent)
    assert len(groups) > 5
    assert max(groups) < len(rows) / 3, "a group holds more than its part of the memory"
    assert sum(groups) == len(rows)
    (files, info), (others, other) = contents(tmp_path / "one"), contents(tmp_path / "other")
    assert info == other
    assert files.keys() == others.keys()
    assert [name for name in files if files[name] != others[name]] == []


def test_digest_depends_on_contents_not_order(tmp_path):
    rows = many(trajectories=5)
    first = prepare(tmp_path, rows, "first")[0].info
    assert prepare(tmp_path, rows[::-1], "second")[0].info.digest == first.digest
    for number, (name, value) in enumerate(
        [("reward", 0.25), ("action", "other"), ("propensity", 0.125), ("possible_actions", ["c", "b", "a"])]
    ):
        changed = [dict(one) for one in rows]
        changed[3][name] = value
        assert rows[3][name] != value
        info = prepare(tmp_path, changed, f"changed {number}")[0].info
        assert info.digest != first.digest, f"{name} does not count"
        assert info.keys_digest == first.keys_digest
    moved = [dict(one) for one in rows]
    moved[-1]["sequence_number"] += 1
    assert prepare(tmp_path, moved, "moved")[0].info.keys_digest != first.keys_digest


@pytest.mark.parametrize(("action", "possible"), [("left", [1, 1]), (1, ["left", "right"]), ([0, 1], ["right"])])
def test_names_of_one_column_and_marks_of_the_other_are_refused(tmp_path, action, possible):
    """What is marked would be two more actions, which are always possible and never tried."""
    rows = [row("a", i, {"1": 1.0 * i}, action, possible_actions=possible) for i in range(3)]
    with pytest.raises(ConfigError, match=r"no action that was taken .* --actions A,B"):
        prepare(tmp_path, rows)
    found, _ = prepare(tmp_path, rows, "named", actions=("left", "right"))
    assert found.info.actions == ("left", "right")


@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_a_final_state_with_possible_actions_is_where_its_trajectory_was_cut(tmp_path, kind):
    offers = ["a", "b"] if kind == "discrete" else [{"7": 1.0, "8": 0.0}, {"7": 0.0, "8": 2.0}]
    rows = list[dict]()
    for name, last in (("cut", offers), ("over", None)):
        for i in range(2):
            rows.append(row(name, i, {"1": 1.0 + i}, offers[0], len(rows), possible_actions=offers))
        rows.append(row(name, 2, {"1": 9.0}, None, None, possible_actions=last))
    data, lines = prepare(tmp_path, rows)
    order = np.argsort(data.column("reward")[:], kind="stable")
    assert data.column("terminal")[:][order].tolist() == [0, 0, 0, 1]
    assert data.column("next_state")[:][order][:, 0].tolist()[:2] == [2.0, 9.0]
    assert any(line.startswith("a row without an action follows 1 of them") for line in lines)


def test_decisions_of_one_step_do_not_look_cut_off(tmp_path):
    rows = [row(f"t{i}-{k}", 0, {"1": 1.0 * i}, "go") for i in range(30) for k in range(2)]
    assert not [line for line in prepare(tmp_path, rows)[1] if "--max-episode-steps" in line]
    assert [line for line in prepare(tmp_path, [*rows, *({**one, "sequence_number": 1} for one in rows)], "two")[1]
            if "--max-episode-steps 2" in line]  # fmt: skip


def test_a_limit_of_steps_is_not_suggested_where_the_log_marks_its_ends(tmp_path):
    rows = [row(f"t{i}", k, {"1": 1.0 * i}, "go", terminated=k == 1) for i in range(30) for k in range(2)]
    assert not [line for line in prepare(tmp_path, rows)[1] if "--max-episode-steps" in line]
    data, said = prepare(tmp_path, rows, "limited", max_episode_steps=2)
    assert (data.info.rules["terminal"], data.info.rules["cut"]) == (30, 0)
    assert [line for line in said if "(--max-episode-steps); where the log marks an end, that counts" in line]


def terminated_at(limit, lengths, **more):
    """Rows of 12 episodes of `limit` decisions, and of others; the last decision of each is marked `terminated`."""
    return [
        row(f"t{i}", k, {"1": 1.0 * i}, "go", terminated=k == length - 1, **more)
        for i, length in enumerate([*lengths, *[limit] * 12])
        for k in range(length)
    ]


def test_the_done_of_old_gym_is_suspected_where_all_that_reach_a_limit_are_terminated(tmp_path):
    rows = terminated_at(50, lengths=[7, 49])
    for name, options in (("data", {}), ("limited", {"max_episode_steps": 50})):
        _, printed = prepare(tmp_path, rows, name, **options)
        (said,) = (line for line in printed if "the done of old Gym" in line)
        assert said.startswith("all 12 trajectories of 50 decisions") and "--max-episode-steps 50 (in a w" in said
    data, printed = prepare(tmp_path, rows, "as advised", max_episode_steps=50, columns={"terminated": None})
    assert (data.info.rules["terminal"], data.info.rules["cut"]) == (2, 12)
    assert not [line for line in printed if "old Gym" in line]


@pytest.mark.parametrize(
    "rows",
    [
        terminated_at(50, [7], truncated=False),
        [one | {"terminated": one["terminated"] and one["mdp_id"] != "t3"} for one in terminated_at(50, [7])],
        terminated_at(49, [7]),
        terminated_at(50, [51]),
        terminated_at(50, [1] * 120),
    ],
    ids=["truncated is logged", "one is not terminated", "short sessions", "one goes on", "few reach it"],
)
def test_the_done_of_old_gym_is_not_suspected_of(tmp_path, rows):
    assert not [line for line in prepare(tmp_path, rows)[1] if "old Gym" in line]


def test_action_names_set_the_order(tmp_path):
    rows = [row("x", i, {"1": 1.0}, action, i) for i, action in enumerate(["up", "down"])]
    data, _ = prepare(tmp_path, rows, actions=("up", "left", "down"))
    assert data.info.actions == ("up", "left", "down")
    assert by_place(data, "action", "possible_actions") == [[0, 2], [[1, 1, 1], [1, 1, 1]]]


@pytest.mark.parametrize(
    ("metrics", "way"),
    [
        ((), "of the --like data; leave out the trajectories that have it, or prepare those data again with --actions"),
        (None, "; name all of them in --actions (in a workflow file: actions)"),
    ],
)
def test_a_new_action_is_refused_with_a_way_out_that_is_open(tmp_path, metrics, way):
    """`--like` sets the metrics, and does not go with `--actions`."""
    rows = [row("x", i, {"1": 1.0, "2": 0.0}, name) for i, name in enumerate("abc")]
    with pytest.raises(ConfigError, match=re.escape('action "c" is not one of the actions a, b')) as refused:
        prepare(tmp_path, rows, actions=("a", "b"), metrics=metrics)
    assert way in str(refused.value)


def test_numeric_actions_are_ordered_by_number(tmp_path):
    rows = [row("x", i, {"1": 1.0}, str(action), i) for i, action in enumerate([10, 9, 2])]
    assert prepare(tmp_path, rows)[0].info.actions == ("2", "9", "10")


def test_prepared_data_is_reused(tmp_path):
    rows = many(trajectories=4)
    log, out, printed = write_log(tmp_path / "log.jsonl", rows), tmp_path / "out", []
    prepare_dataset([log], out, PrepareOptions(), show=printed.append)
    before = (out / "dataset.json").stat()
    prepare_dataset([log], out, PrepareOptions(), show=printed.append, replace=False)
    assert printed[-1] == f"{out} is prepared already"
    assert (out / "dataset.json").stat() == before
    with pytest.raises(ConfigError, match="add --force to replace it"):
        prepare_dataset([log], out, PrepareOptions(max_episode_steps=50), show=silent, replace=False)
    prepare_dataset([log], out, PrepareOptions(max_episode_steps=50), show=silent)
    info = Dataset.open(out).info
    assert info.rules["options"]["max_episode_steps"] == 50
    write_log(log, rows[:-2])
    prepare_dataset([log], out, PrepareOptions(max_episode_steps=50), show=silent)
    assert Dataset.open(out, verify=True).info.num_rows < info.num_rows, "the log that was changed was not read again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "out"]


@pytest.mark.parametrize("how", ["missing", "a byte"])
def test_damaged_data_are_prepared_again(tmp_path, how):
    log, out, printed = write_log(tmp_path / "log.jsonl", many(trajectories=4)), tmp_path / "out", []
    prepare_dataset([log], out, PrepareOptions(), show=silent)
    column = out / "part_00000" / "reward.npy"
    whole = column.read_bytes()
    if how == "missing":
        column.unlink()
    else:
        column.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    prepare_dataset([log], out, PrepareOptions(), show=printed.append, replace=False)
    assert printed[0] == f"{out} is damaged and prepared again"
    assert column.read_bytes() == whole


def test_a_damaged_description_is_replaced_where_that_is_allowed(tmp_path):
    log, out = write_log(tmp_path / "log.jsonl", many(trajectories=4)), tmp_path / "out"
    prepare_dataset([log], out, PrepareOptions(), show=silent)
    (out / "dataset.json").write_text("{")
    with pytest.raises(ConfigError, match="add --force to replace it"):
        prepare_dataset([log], out, PrepareOptions(), show=silent, replace=False)
    prepare_dataset([log], out, PrepareOptions(), show=silent)
    Dataset.open(out, verify=True)


def test_edited_features_file_invalidates_prepared_data(tmp_path):
    log, out = write_log(tmp_path / "log.jsonl", many(trajectories=4)), tmp_path / "out"
    prepare_dataset([log], out, PrepareOptions(), show=silent)
    path, printed = out / "state_features.json", []
    path.write_text(re.sub(r'"mean": [-0-9.e]+', '"mean": 10', path.read_text()))
    prepare_dataset([log], out, PrepareOptions(state_features=path), show=printed.append)
    assert printed[-1] != f"{out} is prepared already"
    assert Dataset.open(out, verify=True).column("state")[:].mean() < -1


def test_features_missing_from_the_file_are_skipped_and_reported(tmp_path):
    rows = [row("x", i, {"1": 1.0, "3": 5.0}, "a", i) for i in range(2)]
    data, printed = prepare(tmp_path, rows)
    assert data.info.state_features == ("1", "2")
    assert any(line.startswith("state features that") and line.endswith("left out: 3") for line in printed)
    assert any(line.startswith("state features of") and line.endswith("no row has: 2") for line in printed)
    with pytest.raises(
        ConfigError, match=r"--state-features .*state.json has none of the state features of the log \(5"
    ):
        prepare(tmp_path, [row("x", 0, {"5": 1.0}, "a")], "other")


@pytest.mark.parametrize("when", ["reading", "preparing", "finishing"])
def test_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch, when):
    def stop(*_, **__):
        raise KeyboardInterrupt

    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    where = {"reading": (preparation.Spill, "flush"), "preparing": (preparation, "decisions")}
    target, name = where.get(when, (preparation.Preparation, "check_rows"))
    monkeypatch.setattr(target, name, stop)
    with pytest.raises(KeyboardInterrupt):
        prepare_dataset([log], tmp_path / "out", PrepareOptions(), show=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_late_bad_row_leaves_nothing_and_is_reported(tmp_path):
    rows = [*many(trajectories=4), row("x", 0, {"1": 1.0}, "a"), row("x", 0, {"1": 2.0}, "a")]
    log = write_log(tmp_path / "log.jsonl", rows)
    numbers = f"log.jsonl, row ({len(rows) - 1}|{len(rows)})"
    with pytest.raises(
        ConfigError, match=rf"{numbers}: mdp_id and sequence_number=0 are those of .*{numbers}; log each"
    ):
        prepare_dataset([log], tmp_path / "out", PrepareOptions(), show=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_equal_ids_of_two_files_may_be_different_decisions(tmp_path):
    """Recordings of two policies with one seed have the same ids."""
    logs = [write_log(tmp_path / f"{name}.jsonl", [row("0-0-0", 0, {"1": 1.0}, name)]) for name in ("left", "right")]
    with pytest.raises(ConfigError, match=r"log each decision once, or, if these are .* another --seed, or give its"):
        prepare_dataset(logs, tmp_path / "out", PrepareOptions(), show=silent)
    twice = write_log(tmp_path / "twice.jsonl", [row("0-0-0", 0, {"1": 1.0}, "left")] * 2)
    with pytest.raises(
        ConfigError, match=r"log each decision once, or, .* of one second, number them within their trajectory$"
    ):
        prepare_dataset([twice], tmp_path / "out", PrepareOptions(), show=silent)


@pytest.mark.parametrize("name", ["out", "out[1]*"])
def test_leftovers_of_killed_processes_are_removed(tmp_path, name):
    log, out = write_log(tmp_path / "log.jsonl", many(trajectories=4)), tmp_path / name
    prepare_dataset([log], out, PrepareOptions(), show=silent)
    (tmp_path / f".{name}.abc.unfinished").mkdir()
    (tmp_path / f".{name}.abc.unfinished" / "run_00000").write_bytes(b"half")
    (tmp_path / f".{name}.abc.replaced").mkdir()
    out.rename(tmp_path / f".{name}.abc.replaced" / "data")  # killed between the two renames of a replacement
    printed = []
    prepare_dataset([log], out, PrepareOptions(), show=printed.append)
    assert printed == [f"{out} is prepared already"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", name]


@pytest.mark.parametrize("what", ["nothing", "an empty directory", "prepared data"])
def test_a_link_stays_and_the_data_are_where_it_points(tmp_path, what):
    disk, link = tmp_path / "disk", tmp_path / "data"
    disk.mkdir()
    link.symlink_to("disk/mine")
    first = write_log(tmp_path / "first.jsonl", many(trajectories=4))
    log = write_log(tmp_path / "log.jsonl", many(trajectories=5))
    if what == "an empty directory":
        (disk / "mine").mkdir()
    elif what == "prepared data":
        prepare_dataset([first], link, PrepareOptions(), show=silent)
    assert prepare_dataset([log], link, PrepareOptions(), show=silent) == disk / "mine"
    assert link.is_symlink()
    assert Dataset.open(link).info.num_trajectories == 5
    assert [path.name for path in disk.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "disk", "first.jsonl", "log.jsonl"]


def test_a_place_where_no_lock_can_be_made_is_refused(tmp_path):
    """The lock times out there, as where another process has it."""
    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    with pytest.raises(
        ConfigError, match=r"--out /proc/lockstep-none cannot be written \(.*\); name another directory"
    ):
        prepare_dataset([log], Path("/proc/lockstep-none"), PrepareOptions(), show=silent)


def test_too_small_disk_is_reported_in_advance(tmp_path, monkeypatch):
    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    monkeypatch.setattr(
        "lockstep.data.preparation.scratch.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})()
    )
    with pytest.raises(RunError, match=r"preparing takes about .* more of the disk of .*, which has 1e-06 GB"):
        prepare_dataset([log], tmp_path / "out", PrepareOptions(), show=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    monkeypatch.setattr(preparation.Spill, "flush", full)
    with pytest.raises(RunError, match="is full; nothing was prepared"):
        prepare_dataset([log], tmp_path / "out", PrepareOptions(), show=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_log_without_usable_decisions_is_rejected(tmp_path):
    rows = [row("x", 0, {"1": 1.0}, "a", terminated=False), row("y", 0, {"1": 1.0}, "a", terminated=False)]
    with pytest.raises(ConfigError, match="no decision can be learned from"):
        prepare(tmp_path, rows)


def test_merged_samples_equal_the_sample_of_the_whole(tmp_path):
    rows = many(trajectories=80, kind="parametric")
    parts = [rows[: len(rows) // 3], rows[len(rows) // 4 :]]  # some rows are in both
    options = PrepareOptions(norm={"num_samples": 40})
    whole = sample_features([write_log(tmp_path / "whole.jsonl", rows)], options)
    samples = [sample_features([write_log(tmp_path / f"{i}.jsonl", part)], options) for i, part in enumerate(parts)]
    assert len(whole.keys) == 40
    assert 10 < len(set(whole.action_row.tolist())) < 30, (
        "what was possible counts, too, and leaves room for fewer rows"
    )
    assert identify_features(samples, options) == identify_features([whole], options)
    assert identify_features(samples[:1], options) != identify_features([whole], options)
    for order in (rows, rows[::-1]):
        again = sample_features([write_log(tmp_path / "again.jsonl", order)], options)
        np.testing.assert_array_equal(again.state, whole.state)
        np.testing.assert_array_equal(again.keys, whole.keys)


def test_feature_overrides_set_types(tmp_path):
    log = write_log(tmp_path / "log.jsonl", many(trajectories=4, kind="parametric"))
    norm = {"feature_overrides": {"2": "do_not_preprocess", "7": "do_not_preprocess"}}
    data = Dataset.open(prepare_dataset([log], tmp_path / "out", PrepareOptions(norm=norm), show=silent))
    assert data.action_features is not None
    assert (data.state_features["2"].type, data.action_features["7"].type) == ("do_not_preprocess",) * 2
    norm["feature_overrides"]["99"] = "binary"
    with pytest.raises(ConfigError, match="feature_overrides names the feature 99, which no row of the log has"):
        prepare_dataset([log], tmp_path / "other", PrepareOptions(norm=norm), show=silent)


def test_action_features_are_rejected_for_named_actions(tmp_path):
    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    options = PrepareOptions(action_features=features(tmp_path / "action.json", "7"))
    with pytest.raises(ConfigError, match="actions of this log are names, not features"):
        prepare_dataset([log], tmp_path / "out", options, show=silent)


def test_both_passes_report_progress(tmp_path):
    reported = []
    log = write_log(tmp_path / "log.jsonl", many(trajectories=4))
    prepare_dataset([log], tmp_path / "out", PrepareOptions(), show=silent, progress=reported.append)
    rows = len(log.read_text().splitlines())
    assert [(one.name, one.rows, one.fraction) for one in reported] == [("reading", rows, 1), ("preparing", rows, 1)]
    assert reported[0].total_bytes == log.stat().st_size
