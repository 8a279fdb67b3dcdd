"""Next states and next actions have the ids of states and actions; others would be lost."""

import numpy as np
import polars as pl
import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.errors import ConfigError

COLUMNS = {"state_features": ["x", "v"], "action": ["push"]}


def prepared(tmp_path, **columns):
    """Data of transitions, a trajectory each, and the printed lines."""
    draws = np.random.default_rng(0).normal(size=(5, 40))
    made = {"mdp_id": range(40), "sequence_number": 0, "reward": 1.0, "terminated": False}
    made |= dict(zip(("x", "v", "next_x", "next_v", "push"), draws, strict=True)) | {"next_push": draws[4] / 2}
    pl.DataFrame(made).write_parquet(tmp_path / "log.parquet")
    printed = []
    options = PrepareOptions(columns=COLUMNS | columns, kind="continuous")
    path = prepare_dataset([tmp_path / "log.parquet"], tmp_path / "data", options, show=printed.append)
    return Dataset.open(path), printed


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"next_state_features": ["next_x", "next_v"]},
            r"next_state_features has next_v, next_x, and none of the ids of state_features \(v, x\); use the same "
            r"ids, such as next_state_features: \{v: next_v, x: next_x\}",
        ),
        (
            {"next_state_features": {"x": "next_x", "v": "next_v"}, "next_action": ["next_push"]},
            r"next_action has next_push, and none of the ids of action \(push\)",
        ),
    ],
)
def test_other_ids_are_refused(tmp_path, columns, message):
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, **columns)


def test_the_same_ids_are_taken(tmp_path):
    columns = {"next_state_features": {"x": "next_x", "v": "next_v"}, "next_action": {"push": "next_push"}}
    data, printed = prepared(tmp_path, **columns)
    assert (np.abs(data.rows(np.arange(40)).next_state) > 0).all() and not any("next_" in line for line in printed)


def test_some_other_ids_are_left_out_with_a_word(tmp_path):
    data, printed = prepared(tmp_path, next_state_features={"x": "next_x", "w": "next_v"})
    assert (data.rows(np.arange(40)).next_state[:, 0] == 0).all()
    assert "next_state_features: left out, since state_features never has them: w" in printed
    assert any("never has these ids of state_features, which count as not known: v" in line for line in printed)
