"""Decisions whose possible actions nothing tells: neither their row, nor the row before, nor a shared list."""

import json

import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.prepare import PrepareOptions, prepare_dataset

NAMED = ["a", "b", "c"]
CANDIDATES = [{"7": 1.0}, {"7": 2.0}, {"7": 3.0}]


def prepared(tmp_path, actions, lists):
    """Trajectories of one decision each, with these lists; returns the data and the printed lines."""
    rows = [
        {"mdp_id": f"x{i}", "sequence_number": 0, "state_features": {"1": i}, "action": actions[0], "reward": 1.0}
        | {"possible_actions": possible}
        for i, possible in enumerate(lists)
    ]
    log, printed = tmp_path / "log.jsonl", []
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = prepare_dataset([log], tmp_path / "data", PrepareOptions(), show=printed.append)
    return Dataset.open(out), [line for line in printed if "possible" in line]


@pytest.mark.parametrize(("actions", "has_lists"), [(NAMED, True), (CANDIDATES, False)])
def test_lists_that_nothing_tells_are_counted_and_not_called_filled_in(tmp_path, actions, has_lists):
    """Candidates: with the logged action alone its probability is 1, and every estimate would be wrong."""
    data, said = prepared(tmp_path, actions, [actions[:2], actions, None, actions[:1]])
    what = "every action counts" if has_lists else "the log counts as one without them"
    assert len(said) == 1 and said[0].startswith("1 decision") and what in said[0] and "filled in" not in said[0]
    assert data.info.has_possible_actions == has_lists
    assert (data.info.rules["unknown"], data.info.rules["filled"]) == (1, 0)
    if has_lists:
        assert (data.column("possible_actions")[:].sum(1) == 3).sum() == 2


@pytest.mark.parametrize("actions", [NAMED, CANDIDATES])
def test_lists_that_all_others_share_are_filled_in(tmp_path, actions):
    data, said = prepared(tmp_path, actions, [actions, None, actions])
    assert len(said) == 1 and "filled in by the list that all others have" in said[0]
    assert data.info.has_possible_actions
    assert (data.info.rules["unknown"], data.info.rules["filled"]) == (0, 1)
