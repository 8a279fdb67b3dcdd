"""Columns that only some files of a log have mean the same however rows are grouped in memory."""

import re

import numpy as np
import pytest

from lockstep.data.dataset import Dataset
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.errors import ConfigError
from made_logs import parametric, row, write

MEMORY = (1 << 30, 1000)
"""One group of all rows, and many small ones."""


def episodes(prefix, made=row, **columns):
    """20 trajectories of 3 decisions; a column may depend on the place in the trajectory."""
    action = {"action": lambda i: "lr"[i % 2]} if made is row else {"action": lambda i: {"7": float(i % 2)}}
    return [
        made(i, mdp_id=f"{prefix}{k}") | {name: value(i) for name, value in (action | columns).items()}
        for k in range(20)
        for i in range(3)
    ]


def prepared(tmp_path, memory, first, second):
    """Data of a log of two files."""
    files = [write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("first", first), ("second", second))]
    out = tmp_path / f"out_{memory}"
    return Dataset.open(prepare_dataset(files, out, PrepareOptions(), memory=memory, show=lambda line: None))


def same(tmp_path, first, second):
    """The data, which are equal for one group and for many."""
    one, other = (prepared(tmp_path, memory, first, second) for memory in MEMORY)
    assert one.info == other.info
    for name in ("state", "action", "terminal", "continues", "key", "next_state"):
        np.testing.assert_array_equal(one.column(name)[:], other.column(name)[:], err_msg=name)
    return one


def test_ends_that_one_file_marks(tmp_path):
    """The last decisions of the other file are not known to be ends, and are left out."""
    data = same(tmp_path, episodes("a", terminated=lambda i: i == 2), episodes("b"))
    assert len(data) == 60 + 40
    assert data.column("terminal")[:].sum() == 20
    assert data.info.rules["mark"] == "terminated"


@pytest.mark.parametrize("memory", MEMORY)
def test_a_metric_that_one_file_has_is_refused(tmp_path, memory):
    with pytest.raises(ConfigError, match=re.escape("the metric cost is missing; log it for every decision")):
        prepared(tmp_path, memory, episodes("a", metrics=lambda i: {"cost": 1.0}), episodes("b"))


def test_lists_that_one_file_has(tmp_path):
    """The digest is that of one group, in which rows without a list are together with rows that have one."""
    data = same(tmp_path, episodes("a", possible_actions=lambda i: ["l", "r"]), episodes("b"))
    assert data.info.digest == "aca8003e1093589dbf8e763552f2e9c0"


@pytest.mark.parametrize("made", [row, parametric])
def test_a_file_without_any_action(tmp_path, made):
    """A trajectory that is only a final state, without a column of actions in its group."""
    possible = ["l", "r"] if made is row else [{"7": 0.0}, {"7": 1.0}]
    final = made(0, mdp_id="z", action=None, reward=None, possible_actions=[])
    data = same(tmp_path, episodes("a", made, possible_actions=lambda i: possible), [final])
    assert len(data) == 40
