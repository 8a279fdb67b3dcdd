"""Check the columns of a reader, and join them to one table."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import polars as pl

from lockstep.data.logs.actions import CONTINUOUS, Actions
from lockstep.data.logs.column_names import ACTIONS, LOG_PROBABILITY_ROUNDING
from lockstep.data.logs.maps import Maps, SourceRows

_WANTED = {"discrete": "names", "parametric": "maps of features"}


@dataclass(slots=True)
class RawRows:
    """Unchecked rows of a reader, without the columns that the log lacks."""

    where: SourceRows
    file: int
    """Index of the file among those of the log."""
    scalars: dict[str, pl.Series] = field(default_factory=dict[str, pl.Series])
    """`mdp_id` String, `sequence_number` Int64, flags Boolean, and the columns of `NUMBERS` Float64."""
    maps: dict[str, Maps] = field(default_factory=dict[str, Maps])
    """By prefix: `state`, `next_state`, `metric`."""
    actions: dict[str, Actions] = field(default_factory=dict[str, Actions])
    """`action` and `next_action`."""
    lists: dict[str, pl.Series] = field(default_factory=dict[str, pl.Series])
    """`possible_actions` and `possible_next_actions`."""

    @property
    def kind(self) -> str | None:
        """`discrete` or `parametric`; None if these rows have no actions."""
        for actions in self.actions.values():
            if isinstance(actions, Maps):
                if actions.given.any():
                    return "parametric"
            elif actions.null_count() < len(actions):
                return "discrete"
        for series in self.lists.values():
            if series.list.len().sum():
                return _kind_of(series)
        return None


def frame(found: RawRows, kind: str) -> pl.DataFrame:
    """The table of these rows, with the columns of `lockstep.data.logs.format.Log`.

    Raises:
        ConfigError: a row violates the schema. The message names file and row.
    """
    where = found.where
    _check_kind(found, kind)
    _check_scalars(found, kind)
    state = found.maps["state"]
    if not state.given.all():
        where.refuse(int(np.argmin(state.given)), "state_features is missing; a row with no feature known has {}")
    _check_decisions(found)
    columns = {name: s for name, s in found.scalars.items() if name == "reward" or s.null_count() < len(s)}
    for prefix, maps in found.maps.items():
        if maps.given.any():
            columns |= maps.columns(f"{prefix}:")
            if prefix == "next_state":
                columns["has_next_state"] = pl.Series(maps.filled)
    for name, actions in found.actions.items():
        if isinstance(actions, Maps):
            columns |= actions.columns(f"{name}:")
        elif kind == "discrete" and (name == "action" or actions.null_count() < len(actions)):
            columns[name] = actions
    for name, series in found.lists.items():
        if series.null_count() < len(series) and _kind_of(series) in (kind, None):
            columns[name] = series if kind == "discrete" or _kind_of(series) else series.cast(pl.List(pl.Struct({})))
    columns["_file"] = pl.Series(np.full(len(where.row), found.file, np.uint32))
    columns["_row"] = pl.Series(where.row)
    return pl.DataFrame([series.alias(name) for name, series in columns.items()])


def _kind_of(lists: pl.Series) -> str | None:
    """The kind of lists; None if all are empty."""
    if isinstance(cast(pl.List, lists.dtype).inner, pl.Struct):
        return "parametric"
    return "discrete" if lists.list.len().sum() else None


def _check_kind(found: RawRows, kind: str) -> None:
    for name, actions in found.actions.items():
        here = isinstance(actions, Maps)
        some: Any = actions.given if here else actions.is_not_null().to_numpy()
        if some.any() and here != (kind == "parametric"):
            _refuse_kind(found.where, int(np.argmax(some)), name, kind)
    for name, series in found.lists.items():
        if _kind_of(series) not in (kind, None):
            some = (series.list.len() > 0).fill_null(value=False).to_numpy()
            if some.any():
                _refuse_kind(found.where, int(np.argmax(some)), name, kind)


def _refuse_kind(where: SourceRows, row: int, name: str, kind: str) -> None:
    other = "parametric" if kind == "discrete" else "discrete"
    hint = f"; {CONTINUOUS}" if kind == "parametric" and name in ACTIONS else ""
    where.refuse(row, f"{name} holds {_WANTED[other]}, but actions of this log are {_WANTED[kind]} ({kind}){hint}")


def _check_scalars(found: RawRows, kind: str) -> None:
    where = found.where
    mdp_id = found.scalars["mdp_id"]
    for name, bad, way in (
        ("mdp_id", mdp_id.is_null() | (mdp_id == ""), "every row needs the name of its trajectory"),
        ("sequence_number", found.scalars["sequence_number"].is_null(), "every row needs its place in the trajectory"),
    ):
        where.refuse_first(bad, lambda _, name=name, way=way: f"{name} is missing; {way}")
    if (propensity := found.scalars.get("propensity")) is not None:
        bad, wanted = (propensity <= 0) | (propensity > 1), "is not a probability in (0, 1]; leave out what is unknown"
        if kind != "discrete":
            wanted += ", and log the logarithm of a density as log_probability"
        where.refuse_first(bad.fill_null(value=False), lambda row: f"propensity {propensity[row]} {wanted}")
    if (logged := found.scalars.get("log_probability")) is not None:
        if propensity is not None:
            where.refuse_first(
                (logged.is_not_null() & propensity.is_not_null()),
                lambda _: "has both propensity and log_probability; log one of them",
            )
        if kind == "discrete":
            bad, wanted = logged > LOG_PROBABILITY_ROUNDING, "is above 0, and a probability is at most 1"
            where.refuse_first(bad.fill_null(value=False), lambda row: f"log_probability {logged[row]} {wanted}")
    if (time_diff := found.scalars.get("time_diff")) is not None:
        bad, wanted = time_diff < 0, "is negative; it must be 0 or more"
        where.refuse_first(bad.fill_null(value=False), lambda row: f"time_diff {time_diff[row]} {wanted}")


def _check_decisions(found: RawRows) -> None:
    """Require an action and a reward of every row, except of one that is only a state.

    That is a row with neither, or one whose possible actions are []. `next_rows` requires that no row follows it.
    """
    action, reward = found.actions["action"], found.scalars["reward"]
    acted = action.given if isinstance(action, Maps) else action.is_not_null().to_numpy()
    rewarded = reward.is_not_null().to_numpy()
    over = ~acted & ~rewarded
    if (possible := found.lists.get("possible_actions")) is not None:
        over |= (possible.list.len() == 0).fill_null(value=False).to_numpy()
    for name, known in (("action", acted), ("reward", rewarded)):
        if (bad := ~known & ~over).any():
            found.where.refuse(
                int(np.argmax(bad)),
                f"{name} is missing; log it, or end the trajectory before this row. Only a row that is the last state "
                "of a trajectory has neither action nor reward",
            )
