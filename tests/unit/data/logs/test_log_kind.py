"""The kind of a log's actions is that of the first rows that have one."""

import pytest

from lockstep.data.logs.format import KINDS, read_log
from lockstep.errors import ConfigError
from made_logs import parametric, row, whole, write


def final_states(path):
    """A file with states alone, that nothing follows."""
    return write(path, [row(i, mdp_id=f"z{i}", action=None, reward=None, possible_actions=[]) for i in range(2)])


@pytest.mark.parametrize(("made", "kind"), [(row, "discrete"), (parametric, "parametric")])
def test_rows_without_an_action_may_come_first(tmp_path, made, kind):
    log = read_log([final_states(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", [made(0), made(1)])])
    assert log.kind == kind
    assert len(whole(log)) == 4


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_log_without_any_action_is_refused(tmp_path, kind):
    with pytest.raises(ConfigError, match=r"a\.jsonl: no row of the log has an action; log the action of every"):
        read_log([final_states(tmp_path / "a.jsonl")], kind=kind)
