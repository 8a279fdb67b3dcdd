"""The next row of each row, for small logs with known answers."""

import numpy as np
import polars as pl
import pytest

from lockstep.data.logs.column_names import LISTS
from lockstep.data.preparation.blocks import Encoder, item_hashes, name_hashes
from lockstep.data.preparation.lists import no_lists
from lockstep.data.preparation.next_rows import Rules, next_rows, order
from lockstep.errors import ConfigError


class Log:
    """Rows given as `(trajectory, number, more columns)`, in any order, and their timeline in theirs."""

    def __init__(self, *rows, kind="discrete", mark="last_row", limit=None, shared=None):
        table = [{"mdp_id": name, "sequence_number": number, "reward": 1.0, **more} for name, number, more in rows]
        if kind == "discrete":
            table = [{"action": "a", **row} for row in table]
        for row in table:
            for name in ("action", "next_action"):
                if isinstance(row.get(name), dict):
                    row |= {f"{name}:{key}": float(value) for key, value in row.pop(name).items()}
        frame = pl.DataFrame(table, infer_schema_length=None)
        frame = frame.with_columns(
            pl.lit(0, pl.UInt32).alias("_file"), pl.Series("_row", np.arange(1, len(rows) + 1, dtype=np.int64))
        )
        for name in set(LISTS) & set(frame.columns):
            if kind == "discrete":
                frame = frame.with_columns(pl.col(name).cast(pl.List(pl.String)))
        encoder = Encoder(kind)
        block = encoder.encode(frame)
        if shared is not None:
            shared = np.array([encoder.names[name] for name in shared], np.int32)
        self.block = block.take(order(block))
        empty = np.zeros(0, np.int32) if kind == "discrete" else np.zeros((0, len(encoder.action_ids)))
        for name in LISTS:
            self.block.lists.setdefault(name, no_lists(len(self.block), empty))
        self.line = next_rows(
            self.block,
            Rules(mark, limit, shared),
            lambda row: f"log, row {self.block.columns['row'][row]}",
            lambda items: (
                name_hashes(items, encoder.names) if kind == "discrete" else item_hashes(items, encoder.action_ids)
            ),
        )
        self._names = {number: name for name, number in encoder.names.items()}

    def of(self, name):
        """A property of each row, by the row's place in the log."""
        rows = self.block.columns["row"].tolist()
        return [value for _, value in sorted(zip(rows, getattr(self.line, name).tolist(), strict=True))]

    def following(self):
        """By the row's place in the log, the place of the row that follows."""
        rows = [*self.block.columns["row"].tolist(), None]
        pairs = zip(rows[:-1], self.line.following.tolist(), strict=True)
        return [rows[after] for _, after in sorted(pairs)]

    def offers(self, index):
        """Names that lists hold, by the row's place in the log; `None` where no list is known."""
        lists, rows = self.line.lists, self.block.columns["row"].tolist()
        found = {}
        for row, which in zip(rows, index.tolist(), strict=True):
            items = lists.items[lists.offsets[which] : lists.offsets[which + 1]].tolist()
            found[row] = None if which < 0 else "".join(self._names[item] for item in items)
        return [found[row] for row in sorted(found)]


def test_rows_are_ordered_by_sequence_number():
    log = Log(("x", 30, {}), ("y", 5, {}), ("x", 7, {}), ("x", -2, {}), ("y", 4, {}))
    assert log.following() == [None, None, 1, 3, 2]
    assert log.of("terminal") == [True, True, False, False, False]
    assert log.of("continues") == [False, False, True, True, True]
    assert log.of("time_diff") == [1, 1, 23, 9, 1]
    assert sorted(log.line.lengths.tolist()) == [2, 3]


def test_logged_time_diff_takes_precedence():
    log = Log(("x", 0, {"time_diff": 0.5}), ("x", 4, {"time_diff": None}), ("x", 6, {"time_diff": 9.0}))
    assert log.of("time_diff") == [0.5, 2, 9]


def test_sequence_numbers_may_be_as_far_apart_as_64_bits_hold():
    log = Log(("x", -(2**63), {}), ("x", 0, {}), ("x", 2**63 - 1, {}))
    assert log.of("time_diff") == [2.0**63, 2.0**63, 1]
    assert (log.line.single_steps, log.line.longer_steps) == (0, 2)


def test_a_missing_row_is_detected_among_nanoseconds():
    """As float64, times of today are 256 apart: 100 and 120 later are the same."""
    start, told = 1_700_000_000_000_000_000, {"time_diff": 100.0, "has_next_state": True, "next_state:1": 1.0}
    log = Log(("x", start, {**told, "state:1": 0.0}), ("x", start + 120, {**told, "state:1": 2.0}))
    assert log.line.gaps == 1
    assert log.following() == [None, None]


@pytest.mark.parametrize(
    ("mark", "over", "open_"),
    [
        ("terminated", {"terminated": True}, {"terminated": False}),
        ("terminated", {"truncated": False}, {"truncated": True}),
        ("possible_next_actions", {"possible_next_actions": []}, {"possible_next_actions": ["a"]}),
        ("possible_actions", {"possible_actions": []}, {"possible_actions": ["a"]}),
        ("next_action", {"next_action": None}, {"next_action": "a"}),
        ("next_state", {"has_next_state": False, "next_state:1": None}, {"has_next_state": True, "next_state:1": 2.0}),
    ],
)
def test_marked_last_decision_is_terminal(mark, over, open_):
    known = {"has_next_state": True, "next_state:1": 2.0, "state:1": 1.0}
    rest = {name: value for name, value in known.items() if name not in over}
    goes_on = {**open_, "truncated": None} if "truncated" in open_ else open_
    goes_on = {**rest, **goes_on, "state:1": 0.0, "has_next_state": True, "next_state:1": 1.0}
    log = Log(
        ("x", 0, goes_on),
        ("x", 1, {**rest, **over}),
        ("y", 0, goes_on),
        ("y", 1, {**rest, **open_}),
        mark=mark,
    )
    assert log.of("terminal") == [False, True, False, False]
    assert log.of("kept") == [True, True, True, True]
    assert log.following() == [2, None, 4, None]


def test_decision_without_outcome_is_left_out_but_its_state_is_used():
    rows = [("x", i, {"possible_actions": ["a"]}) for i in range(3)]
    log = Log(*rows, ("y", 0, {"possible_actions": []}), mark="possible_actions")
    assert log.of("kept") == [True, True, False, True]
    assert log.of("continues") == [True, False, False, False], "the row after the second is not kept"
    assert log.following() == [2, 3, None, None]
    assert log.line.left_out == 1


@pytest.mark.parametrize("mark", ["possible_actions", "possible_next_actions", "last_row"])
def test_last_row_without_action_is_only_a_state(mark):
    lists = {} if mark == "last_row" else {"possible_actions": ["a"]}
    end = {"action": None, "reward": None, "possible_actions": [] if lists else None}
    log = Log(("x", 0, lists), ("x", 1, lists), ("x", 2, end), ("y", 0, lists), ("y", 1, lists), mark=mark)
    assert log.of("kept")[:3] == [True, True, False]
    assert log.of("terminal")[:3] == [False, True, False]
    assert log.following()[:3] == [2, 3, None]
    assert log.of("continues")[:3] == [True, False, False]
    assert log.line.lengths.sum() == 4
    assert log.line.final_states == (mark == "last_row"), "an empty list marks the end"


@pytest.mark.parametrize("mark", ["possible_actions", "possible_next_actions", "next_state", "last_row"])
def test_last_row_without_action_that_has_possible_actions_is_where_the_trajectory_was_cut(mark):
    cut = {"action": None, "reward": None, "possible_actions": ["b"]}
    log = Log(("x", 0, {"possible_actions": ["a"]}), ("x", 1, {"possible_actions": ["a"]}), ("x", 2, cut), mark=mark)
    assert log.of("kept") == [True, True, False]
    assert log.of("terminal") == [False, False, False]
    assert log.offers(log.line.next_index)[:2] == ["a", "b"]
    assert log.line.final_states == log.line.left_out == 0


def test_step_limit_truncates_full_length_trajectories_only():
    known = {"has_next_state": True, "next_state:1": 0.0, "state:1": 0.0}
    rows = [(name, i, known) for name, length in (("x", 3), ("y", 2)) for i in range(length)]
    log = Log(*rows, limit=3)
    assert log.of("terminal") == [False, False, False, False, True]
    assert log.of("kept") == [True] * 5
    assert log.line.cut == 1
    without = Log(*[(name, i, {}) for name, i, _ in rows], limit=3)
    assert without.of("kept") == [True, True, False, True, True], "no next state was logged"
    with pytest.raises(
        ConfigError, match=r"log, row 3: is decision 3 of its trajectory, but --max-episode-steps says 2"
    ):
        Log(*rows, limit=2)


@pytest.mark.parametrize(
    ("marks", "terminal"),
    [
        ({"terminated": True}, True),
        ({"terminated": True, "truncated": False}, True),
        ({"terminated": False}, False),
        ({"truncated": False}, True),
        ({"truncated": None}, False),
    ],
)
def test_a_marked_end_wins_over_the_step_limit(marks, terminal):
    """An episode may end with the last step that it may have."""
    known = {"has_next_state": True, "next_state:1": 0.0, "state:1": 0.0}
    going = [("x", i, known | dict.fromkeys(marks, False)) for i in range(2)]
    cut = ("y", 0, known | ({"truncated": True} if "truncated" in marks else {"terminated": False}))
    log = Log(*going, ("x", 2, known | marks), cut, mark="terminated", limit=3)
    assert log.of("terminal") == [False, False, terminal, False]
    assert log.line.cut == (not terminal)


def test_missing_row_is_detected_by_time_diff_and_state():
    rows = [
        ("x", 0, {"state:1": 0.0, "next_state:1": 1.0, "time_diff": 1.0, "has_next_state": True}),
        ("x", 2, {"state:1": 2.0, "next_state:1": 3.0, "time_diff": 1.0, "has_next_state": True}),
    ]
    log = Log(*rows, mark="last_row")
    assert log.following() == [None, None]
    assert log.of("terminal") == [False, True]
    assert log.of("kept") == [True, True]
    assert log.of("continues") == [False, False]
    assert log.line.gaps == 1
    del rows[0][2]["time_diff"], rows[1][2]["time_diff"]
    with pytest.raises(
        ConfigError, match=r"log, row 1: next_state_features 1 is not that of the row that follows.*row 2"
    ):
        Log(*rows)


@pytest.mark.parametrize("marks", [{"terminated": True}, {"terminated": True, "truncated": False}])
def test_an_end_that_a_row_marks_is_one_although_the_next_row_is_missing(marks):
    """Episodes of one user under one id, each with its last state."""
    known = {"time_diff": 1.0, "has_next_state": True}
    log = Log(
        ("x", 0, known | {"state:1": 0.0, "next_state:1": 1.0} | marks),
        ("x", 9, known | {"state:1": 5.0, "next_state:1": 6.0} | dict.fromkeys(marks, False)),
        ("x", 20, known | {"state:1": 7.0, "next_state:1": 8.0} | marks),
        mark="terminated",
    )
    assert log.of("terminal") == [True, False, True]
    assert log.of("kept") == [True, True, True]
    assert log.of("next_index") == [-1, -1, -1]
    assert log.following() == [None, None, None]
    assert log.line.gaps == 1


def test_states_compare_equal_within_float32_precision():
    number = 1 / 3
    rows = [
        ("x", 0, {"state:1": 0.0, "next_state:1": float(np.float32(number)), "has_next_state": True}),
        ("x", 1, {"state:1": number, "next_state:1": 0.0, "has_next_state": False}),
    ]
    assert Log(*rows).following() == [2, None]


def test_feature_missing_in_one_row_is_rejected():
    first = {"state:1": 0.0, "next_state:1": 1.0, "next_state:2": None, "has_next_state": True}
    second = {"state:1": 1.0, "state:2": 5.0, "has_next_state": False}
    with pytest.raises(ConfigError, match="next_state_features 2 is not that of the row that follows"):
        Log(("x", 0, first), ("x", 1, second))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"next_action": "b"}, {"next_action": None}, "row 1: next_action is not that of the row that follows"),
        (
            {"possible_next_actions": ["b"]},
            {"possible_actions": ["a"]},
            "row 1: possible_next_actions are not the possible_actions of the row that follows",
        ),
        ({"action": None}, {}, "row 1: there is no action, but a row follows in its trajectory"),
        ({"terminated": True}, {"terminated": True}, "row 1: terminated is true, but log, row 2 follows"),
        ({"truncated": True}, {"truncated": True}, "row 1: truncated is true, but log, row 2 follows"),
        ({"reward": None}, {}, "row 1: reward is missing"),
        ({"metric:cost": 1.0}, {"metric:cost": None}, "row 2: the metric cost is missing"),
    ],
)
def test_error_names_the_contradicting_row(first, second, message):
    with pytest.raises(ConfigError, match=message):
        Log(("x", 0, first), ("x", 1, second))


def test_error_names_both_duplicate_rows():
    with pytest.raises(
        ConfigError,
        match=r"log, row [13]: mdp_id and sequence_number=4 are those of log, row [13]; log .* of one second",
    ):
        Log(("x", 4, {}), ("x", 5, {}), ("x", 4, {}))


def test_error_names_the_contradicting_action_feature():
    with pytest.raises(ConfigError, match="row 1: next_action 8 is not that of the row that follows"):
        Log(
            ("x", 0, {"action": {"7": 1}, "next_action": {"7": 1, "8": 2}}),
            ("x", 1, {"action": {"7": 1}, "next_action": {"7": 0}}),
            kind="parametric",
        )


def test_missing_possible_actions_come_from_the_previous_row():
    log = Log(
        ("x", 0, {"possible_actions": ["a"], "possible_next_actions": ["a", "b"]}),
        ("x", 1, {"possible_actions": [], "possible_next_actions": ["b"]}),
        ("x", 2, {"possible_actions": None, "possible_next_actions": []}),
        mark="possible_next_actions",
    )
    assert log.offers(log.line.lists.index) == ["a", "ab", "b"]
    assert log.offers(log.line.next_index) == ["ab", "b", None]
    assert log.line.filled == 2


def test_missing_possible_actions_come_from_the_shared_list():
    rows = [("x", 0, {"possible_actions": ["b", "a"]}), ("x", 1, {"possible_actions": None}), ("x", 2, {})]
    rows = [(name, i, {"possible_actions": None, "has_next_state": True, **more}) for name, i, more in rows]
    log = Log(*rows, mark="next_action", shared="ab")
    assert log.offers(log.line.lists.index) == ["ab", "ab", "ab"]
    assert log.offers(log.line.next_index) == ["ab", "ab", None]
    log = Log(*rows, mark="next_action")
    assert log.offers(log.line.lists.index) == ["ab", None, None]
    assert (log.line.filled, log.line.unknown) == (0, 2)


def test_trajectories_with_equal_first_hash_are_separated():
    log = Log(*[(name, i, {}) for i in range(3) for name in ("x", "y")])
    block = log.block
    block.columns["hash_0"][:] = 7
    mixed = block.take(np.array([0, 3, 1, 4, 2, 5]))
    ordered = mixed.take(order(mixed))
    assert ordered.columns["sequence_number"].tolist() == [0, 1, 2, 0, 1, 2]
    assert len(set(ordered.columns["hash_1"][:3].tolist())) == 1
