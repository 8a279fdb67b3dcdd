"""Prepared random logs equal the result of a plain loop over their rows."""

import json
import random

import numpy as np
import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import save_features
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from made_data import as_it_is

IDS, ACTION_IDS = ("0", "1", "2"), ("7", "8")


def log_of(kind, seed):
    """Trajectories that end, are cut or just stop; states with holes; lists that are missing, empty or incomplete."""
    draws = random.Random(seed)
    rows = []
    for trajectory in range(40):
        length, number, ends = draws.randint(1, 8), draws.randint(-5, 5), draws.choice(["over", "cut", "stops"])
        for i in range(length):
            last = i == length - 1
            offers = ["a", "b", "c"] if kind == "discrete" else [{"7": j + 0.5, "8": draws.random()} for j in range(3)]
            offers = draws.sample(offers, draws.randint(1, 3))
            one = {
                "mdp_id": f"t{trajectory}",
                "sequence_number": number,
                "state_features": {name: draws.gauss(0, 1) for name in IDS if draws.random() < 0.8},
                "action": draws.choice(offers)
                if draws.random() < 0.9
                else ("b" if kind == "discrete" else {"8": 0.25}),
                "possible_actions": draws.choice([offers, offers, offers, [], None]),
                "reward": draws.gauss(0, 1),
                "terminated": last and ends == "over",
                "next_state_features": {"0": draws.random()} if last and ends == "cut" else None,
                "next_action": draws.choice([one_of(kind), None]) if last and ends == "cut" else None,
            }
            rows.append(one)
            number += draws.randint(1, 4)
    draws.shuffle(rows)
    return rows


def one_of(kind):
    """Any action."""
    return "c" if kind == "discrete" else {"7": 9.0}


def offered(row):
    """Possible actions of a row, its own at the end if it is not among them; `None` if nothing is known."""
    known = row["possible_actions"] or []
    return known + [row["action"]] * (row["action"] not in known) if known else None


def plainly(rows):
    """The successor of each row by an independent implementation of the rules; rows that are left out are absent."""
    trajectories, found = {}, {}
    for one in sorted(rows, key=lambda one: one["sequence_number"]):
        trajectories.setdefault(one["mdp_id"], []).append(one)
    for name, steps in trajectories.items():
        for one, after in zip(steps, [*steps[1:], None], strict=True):
            state = after["state_features"] if after else one["next_state_features"]
            if state is None and not one["terminated"]:
                continue
            action = after["action"] if after else one["next_action"]
            if after:
                possible = offered(after) or ([after["action"]] if isinstance(after["action"], dict) else None)
            elif isinstance(one["action"], dict):
                possible = [action] if action else offered(one) or [one["action"]]
            else:
                possible = None
            over = one["terminated"]
            found[name, one["sequence_number"]] = {
                "state": one["state_features"],
                "next_state": {} if over else state,
                "action": one["action"],
                "next_action": None if over else action,
                "possible_actions": offered(one) or ([one["action"]] if isinstance(one["action"], dict) else None),
                "possible_next_actions": [] if over else possible,
                "terminal": over,
                "time_diff": after["sequence_number"] - one["sequence_number"] if after else 1,
                "reward": one["reward"],
            }
    return found


def numbers(some, ids):
    """A map as numbers, 0 where absent."""
    return [np.float32(some.get(name, 0.0)) for name in ids]


def expected(one, kind):
    """A row as the columns of prepared data have it."""
    made = {
        "state": numbers(one["state"], IDS),
        "next_state": numbers(one["next_state"], IDS),
        "terminal": int(one["terminal"]),
        "time_diff": one["time_diff"],
        "reward": np.float32(one["reward"]),
    }
    if kind == "discrete":
        place = {"a": 0, "b": 1, "c": 2, None: -1}
        made |= {"action": place[one["action"]], "next_action": place[one["next_action"]]}
        for name in ("possible_actions", "possible_next_actions"):
            known = ["a", "b", "c"] if one[name] is None else one[name]
            made[name] = [int(letter in known) for letter in "abc"]
        return made
    made["action"] = numbers(one["action"], ACTION_IDS)
    made["next_action"] = numbers(one["next_action"] or {}, ACTION_IDS)
    for name in ("possible_actions", "possible_next_actions"):
        made[name] = [numbers(item, ACTION_IDS) for item in one[name]]
    made["action_index"] = one["possible_actions"].index(one["action"])
    return made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_prepared_random_logs_match_a_plain_loop(tmp_path, kind, seed):
    rows = log_of(kind, seed)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    save_features(as_it_is(IDS), tmp_path / "state.json")
    save_features(as_it_is(ACTION_IDS), tmp_path / "action.json")
    files = {"state_features": tmp_path / "state.json"}
    if kind == "parametric":
        files["action_features"] = tmp_path / "action.json"
    prepare_dataset(
        [tmp_path / "log.jsonl"], tmp_path / "out", PrepareOptions(**files), memory=30_000, show=lambda _: None
    )
    data = Dataset.open(tmp_path / "out", verify=True)
    plain = plainly(rows)
    assert data.info.num_rows == len(plain) < len(rows)
    by_reward = {float(np.float32(one["reward"])): expected(one, kind) for one in plain.values()}
    names = next(iter(by_reward.values())).keys()
    columns = {name: data.column(name)[:] for name in names if kind == "discrete" or not name.startswith("possible")}
    lists = {name: data.ragged(name)[:] for name in names - columns.keys()}
    for i in range(len(plain)):
        row = by_reward[float(columns["reward"][i])]
        for name, column in columns.items():
            assert column[i].tolist() == pytest.approx(row[name]), name
        for name, ragged in lists.items():
            items = ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]].tolist()
            assert items == [pytest.approx(item) for item in row[name]], name
    trajectory, number, goes_on = (data.column(name)[:] for name in ("trajectory", "sequence_number", "continues"))
    np.testing.assert_array_equal(goes_on[:-1] == 1, trajectory[1:] == trajectory[:-1])
    assert (np.diff(number)[goes_on[:-1] == 1] > 0).all()
    assert len(np.unique(trajectory)) == data.info.num_trajectories == trajectory[-1] + 1
