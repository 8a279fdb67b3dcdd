"""Data for estimates are compared between nodes before the training, not at the first estimate after it."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest

import made_data
from lockstep import ConfigError, World
from lockstep.run import OfflineRun
from lockstep.session.offline import session as session_module
from lockstep.session.offline.session import OfflineSession


class TwoNodes:
    """The `Comm` of node 0 of two. Node 1 holds the same data, with the `changes` to the data of one path."""

    def __init__(self, path="", **changes):
        self.path, self.changes, self.compared = str(path), changes, []

    def gather_object(self, value, tag):
        if tag != "data of all machines":
            return [value, value]
        _, summary = value
        self.compared.append(summary["path"])
        return [value, [1, summary | (self.changes if summary["path"] == self.path else {})]]


def opened(run, comm):
    session = object.__new__(OfflineSession)
    session.run, session.comm = run, comm
    session.world = World(rank=0, size=2, node_rank=0, local_rank=0, local_size=1)
    session._spec, session.summary = None, {}
    session.journal = SimpleNamespace(say=print, warn=print)
    session.open_data()
    return session


@pytest.fixture
def run(tmp_path):
    data, held_out = made_data.discrete(tmp_path / "data"), made_data.discrete(tmp_path / "eval", rows=90)
    return OfflineRun(data=str(data), eval_data=str(held_out))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"digest": "of others"}, "nodes 0 and 1 have 90 rows in common under .*eval but are not copies of each other"),
        ({"max_episode_steps": 7}, "nodes 0 and 1 hold data with different max_episode_steps under .*eval"),
    ],
)
def test_eval_data_that_do_not_belong_together_are_refused_before_training(run, changes, match):
    with pytest.raises(ConfigError, match=match):
        opened(run, TwoNodes(run.eval_data, **changes))


def test_estimates_use_the_layout_that_was_found_then(run):
    comm = TwoNodes()
    session = opened(run, comm)
    assert comm.compared == [run.data, run.eval_data]
    assert session._eval_layout.rows_of_node == (90, 90)
    with patch.object(session_module, "estimate", side_effect=ZeroDivisionError) as estimate:
        session.timers = SimpleNamespace(enter=lambda _: None)
        session._offline_backend, session._policy = SimpleNamespace(scorer=lambda *_: None), None
        with pytest.raises(ZeroDivisionError):
            session.estimate()
    assert estimate.call_args.kwargs["layout"] is session._eval_layout


def test_without_eval_data_the_data_are_compared_once(run):
    comm = TwoNodes()
    session = opened(OfflineRun(data=run.data), comm)
    assert comm.compared == [run.data]
    assert session._eval_layout.kind == "same"
