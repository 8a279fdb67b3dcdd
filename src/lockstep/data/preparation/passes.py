"""The two passes of a preparation: scan all rows, then prepare whole trajectories in order."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.columns import columns, ragged_names
from lockstep.data.dataset_writer import DatasetWriter
from lockstep.data.features import Features, by_name, ordered
from lockstep.data.formulas import LARGEST
from lockstep.data.info import DatasetInfo
from lockstep.data.logs.column_names import LISTS, LOG_PROBABILITY_ROUNDING
from lockstep.data.preparation.blocks import Block, Encoder, item_hashes, name_hashes
from lockstep.data.preparation.decisions import Decisions, PreparedSchema, decisions
from lockstep.data.preparation.digest import Digest, Sums
from lockstep.data.preparation.hashing import Words
from lockstep.data.preparation.lists import Lists, no_lists, pad_columns
from lockstep.data.preparation.next_rows import NextRows, Rules, next_rows, order
from lockstep.data.preparation.prefetch import in_order, prefetch
from lockstep.data.preparation.progress import PassProgress, Report
from lockstep.data.preparation.rules import Counts, done_lines, summary_lines
from lockstep.data.preparation.scan import FeatureSample, LogContents, Sample, feature_sample_of, keys, select_columns
from lockstep.data.preparation.scratch import check_space
from lockstep.data.preparation.spill import Spill
from lockstep.errors import ConfigError
from lockstep.system.cores import usable_cores

CHECK_ROWS = 1000
_PENDING, _GROUP = 12, 8
"""Fractions of the memory for pending rows and for the rows of a group; the rest is for their copies."""
_MOST_THREADS = 4
_SMALL, _GROUPS = 1 << 24, 1 << 9
"""Small groups stay in the processor caches; large logs have about `_GROUPS` groups."""


@dataclass(slots=True)
class Scan:
    """Result of the first pass."""

    encoder: Encoder
    contents: LogContents
    sample: Sample
    spill: Spill | None
    num_samples: int
    num_rows: int
    continuous: bool
    """Whether actions are any numbers within bounds."""

    def features(self) -> FeatureSample:
        """The sample from which features are identified."""
        contents = self.contents if self.continuous else None
        return feature_sample_of(self.sample, self.encoder, self.num_samples, contents)


def scan_log(log: Any, directory: Path | None, num_samples: int, memory: int, progress: Report | None) -> Scan:
    """Read a log; write its rows to a directory, if given."""
    encoder, contents = Encoder(log.kind), LogContents()
    prefixes = ("state",) if log.kind == "discrete" else ("state", "action", "has_action", LISTS[0])
    sample, num_rows = Sample(num_samples, prefixes), 0
    spill = None if directory is None else Spill(directory, max(memory // _PENDING, 1))
    for frame, done in prefetch(_with_progress(log)):
        block = encoder.encode(frame)
        contents.add(block)
        sample.add(block, keys(block))
        num_rows += len(block)
        part = min(done / max(log.total_bytes, 1), 1.0)
        if spill is not None and spill.add(block):
            assert directory is not None
            check_space(directory, spill.bytes * (1 / max(part, 0.01) - 1))
        if progress is not None:
            progress(PassProgress("reading", num_rows, done, log.total_bytes))
    if spill is not None:
        spill.flush()
    continuous = log.kind == "parametric" and contents.continuous if log.continuous is None else log.continuous
    if continuous and contents.shared is not None:
        raise ConfigError(
            f"{log.paths[0]} lists possible actions, and continuous actions are any numbers within bounds; "
            "leave --kind continuous out, or possible_actions"
        )
    if continuous:
        _check_rare_numbers(log, contents)
    _check_named_alike(log, contents, encoder)
    _check_next_ids(log, contents)
    return Scan(encoder, contents, sample, spill, num_samples, num_rows, continuous)


def _check_rare_numbers(log: Any, contents: LogContents) -> None:
    """Refuse a number of continuous actions that few rows have, all with one value, as after a misspelled name.

    Other missing numbers are refused with their rows when these are prepared; this one would first lack bounds.
    """
    for name, (low, high) in contents.action_bounds.items():
        if low == high and (missing := contents.num_actions - contents.action_counts[name]):
            raise ConfigError(
                f"{log.paths[0]}: {missing} of {contents.num_actions} actions have no number {name}, which is {low:g} "
                "in the others; a continuous action has all of its numbers"
            )


def _check_named_alike(log: Any, contents: LogContents, encoder: Encoder) -> None:
    """Refuse discrete actions of which none that was taken is ever listed: what is listed was never tried."""
    taken, listed = contents.taken - {-1}, contents.listed - {-1}
    if log.actions is not None or not taken or not listed or taken & listed:
        return
    names = list(encoder.names)
    some = [", ".join(ordered(names[code] for code in codes)[:4]) for codes in (taken, listed)]
    raise ConfigError(
        f"{log.paths[0]}: no action that was taken ({some[0]}) is ever among the possible ones ({some[1]}); if one "
        "column has names and the other indices or marks, name all actions in the order of their indices: --actions A,B"
    )


def _check_next_ids(log: Any, contents: LogContents) -> None:
    """Refuse next states, or next actions, without an id of states, or actions: all of their numbers would be lost."""
    for kind, column in (("state", "state_features"), ("action", "action")):
        ids, coming = contents.names(kind), contents.names(f"next_{kind}")
        if not ids or not coming:
            continue
        if not set(ids) & set(coming):
            pairs = ", ".join(f"{name}: {other}" for name, other in zip(ids[:2], coming[:2], strict=False))
            raise ConfigError(
                f"{log.paths[0]}: next_{column} has {', '.join(coming[:4])}, and none of the ids of {column} "
                f"({', '.join(ids[:4])}); use the same ids, such as next_{column}: {{{pairs}}} in --columns"
            )
        if unknown := [name for name in coming if name not in ids]:
            log.note(f"next_{column}: left out, since {column} never has them: {', '.join(unknown[:8])}")
        if absent := [name for name in ids if name not in coming]:
            log.note(
                f"next_{column} never has these ids of {column}, which count as not known: {', '.join(absent[:8])}"
            )


def _with_progress(log: Any) -> Iterator[tuple[Any, int]]:
    last = None
    for frame in log.frames():
        if last is not None:
            yield last, log.done_bytes  # the log counts a table when the next one is read
        last = frame
    if last is not None:
        yield last, log.done_bytes


@dataclass(slots=True)
class _Group:
    num_rows: int
    """Rows of the log."""
    kept: Block
    successors: NextRows
    found: Decisions
    sums: Sums
    first_left_out: str
    """File and row of its first decision that is left out, for a message; empty without one."""


class Preparation:
    """The second pass.

    `actions` is the order of discrete actions, None: by name; `features` are those of states, and of actions unless
    they are discrete.
    """

    def __init__(
        self,
        scan: Scan,
        log: Any,
        max_episode_steps: int | None,
        actions: tuple[str, ...] | None,
        features: tuple[Features, Features | None],
    ) -> None:
        self._scan, self._paths, self._kind_is_given = scan, log.paths, log.continuous is not None
        names = scan.encoder.names
        self._actions = () if features[1] is not None else (actions or ordered(names))
        place = {name: number for number, name in enumerate(self._actions)}
        renumbered = np.array([place[name] for name in names], np.int32)
        metrics = tuple(name for name in by_name(scan.contents.names("metric")) if name != "reward")
        self.schema = PreparedSchema(features[0], metrics, features[1], self._actions, renumbered, scan.continuous)
        shared = None if scan.contents.differ or scan.contents.shared is None else self._items(scan.contents.shared)
        self._rules = Rules(scan.contents.mark, max_episode_steps, shared)
        self._digest = Digest(scan.contents.columns, names, self._hashes)
        self._check = Sample(CHECK_ROWS, ("row", "state", "action"))
        self._reward_sum = 0.0
        self._some_impossible = False
        self.first_left_out = ""
        self._as_logged = shared is not None
        self.counts = Counts()

    def write(self, writer: DatasetWriter, memory: int, progress: Report | None) -> None:
        """Write all rows. Raises `ConfigError` if rows contradict each other, or all are left out."""
        spill, done = self._scan.spill, 0
        assert spill is not None
        threads = min(usable_cores(), _MOST_THREADS)
        size = min(memory // (_GROUP * threads), max(_SMALL, spill.bytes // _GROUPS))
        for group in in_order(self._group, spill.groups(size), threads):
            self._append(writer, group)
            done += group.num_rows
            if progress is not None:
                progress(PassProgress("preparing", done, spill.bytes * done // max(spill.num_rows, 1), spill.bytes))
        if not self.counts.kept:
            raise ConfigError(
                f"{self._paths[0]}: no decision can be learned from: none is terminal, and no next state is known; "
                "log next_state_features, or mark what is terminal"
            )

    def info(self, options: Mapping[str, Any]) -> DatasetInfo:
        """Description of the written rows."""
        contents, schema = self._scan.contents, self.schema
        candidates = list[dict[str, float]]()
        if schema.action is not None and self._as_logged and self._rules.shared_list is not None:
            for item in self._rules.shared_list:
                known = zip(schema.action.ids, map(float, item), strict=True)
                candidates.append({name: value for name, value in known if value == value})
        few = schema.kind == "parametric" and self.counts.unknown > 0  # a row with one candidate has a certain choice
        return DatasetInfo(
            kind=schema.kind,
            num_rows=self.counts.kept,
            num_trajectories=self.counts.trajectories,
            state_features=schema.state.ids,
            state_size=schema.state.size,
            actions=self._actions,
            action_features=() if schema.action is None else schema.action.ids,
            action_size=0 if schema.action is None else schema.action.size,
            candidates=tuple(candidates),
            metrics=schema.metrics,
            has_propensity=bool(contents.columns & {"propensity", "log_probability"}),
            has_next_action=self.counts.next_actions > 0,
            has_possible_actions=bool(contents.columns & set(LISTS)) and not few,
            has_impossible_actions=self._some_impossible if schema.kind == "discrete" else None,
            reward_mean=self._reward_sum / self.counts.kept,
            digest=self._digest.rows,
            keys_digest=self._digest.keys,
            rules={
                "options": dict(options),
                "mark": self._rules.mark,
                "words": self.messages(),
                **self.counts.plain(),
            },
        )

    def messages(self, example: str = "") -> list[str]:
        """The summary for the user; `example` names a decision that is left out."""
        has_lists = not self.schema.continuous and bool(self._scan.contents.columns & set(LISTS))  # [] may mark an end
        lines = summary_lines(self.counts, self._rules, self.schema, has_lists=has_lists, example=example)
        logged = self._scan.contents.columns
        if "terminated" in logged and "truncated" not in logged:
            lines += done_lines(self.counts, self._rules.max_episode_steps)
        if "metric:reward" in logged:
            lines.append("the metric reward is left out: estimates call the column reward so; give it another name")
        if why := self._why_parametric():
            lines.append(why)
        if self.schema.continuous and self.schema.action is not None:
            bounds = ", ".join(
                f"{name} in {_interval(feature.min_value, feature.max_value)}"
                for name, feature in self.schema.action.items()
            )
            lines.append(f"bounds of actions (--set action_bounds, or --action-features, sets others): {bounds}")
        return lines

    def _why_parametric(self) -> str:
        """Why actions of numbers count as candidates; empty if they are none, or the user said so, by lists or kind."""
        contents = self._scan.contents
        if self.schema.kind != "parametric" or contents.columns & set(LISTS) or self._kind_is_given:
            return ""
        name, known = min(contents.action_counts.items(), key=lambda item: item[1])
        total = contents.num_actions
        return (
            f"actions count as candidates (parametric), since {total - known} of {total} have no number {name}; if "
            "they are continuous, complete the log: --kind continuous names the first such row"
        )

    def check_rows(self) -> dict[str, NDArray[Any]]:
        """Raw values of some rows."""
        _, block = self._check.read()
        found: dict[str, NDArray[Any]] = {
            "row": block.columns["row"],
            "state_value": block.table("state", self.schema.state.ids),
        }
        if self.schema.action is not None:
            found["action_value"] = block.table("action", self.schema.action.ids)
        return found

    @property
    def row_bytes(self) -> int:
        """Bytes of a prepared row, without the lists of parametric actions."""
        widths = columns(self.schema.kind, self.schema.sizes)
        plain = (entry for name, entry in widths.items() if name not in ragged_names(self.schema.kind))
        return sum(np.dtype(kind).itemsize * math.prod(shape) for kind, shape in plain)

    def _group(self, bins: tuple[int, int]) -> "_Group":
        """Read and prepare whole trajectories. Called from several threads: must not change state."""
        assert self._scan.spill is not None
        block = self._scan.spill.read(*bins)
        self._scan.contents.complete(block)
        block = block.take(order(block))
        block.lists = {name: self._lists(block, name) for name in LISTS}

        def where(row: int) -> str:
            return f"{self._paths[block.columns['file'][row]]}, row {block.columns['row'][row]}"

        key = keys(block)
        if self.schema.continuous:
            self._check_numbers(block, where)
        elif "log_probability" in block.columns:
            _check_probabilities(block, where, self._why_parametric())
        successors = next_rows(block, self._rules, where, self._hashes)
        sums = self._digest.sums(block, key, np.flatnonzero(successors.following < 0))
        found = decisions(block, successors, self.schema, key)
        first_left_out = ""
        if successors.left_out:
            left_out = np.flatnonzero(block.columns["has_action"] & ~successors.kept)
            first_left_out = f" (such as that of {where(int(left_out[0]))})"
        return _Group(len(block), block.take(found.kept_rows), successors, found, sums, first_left_out)

    def _check_numbers(self, block: Block, where: Callable[[int], str]) -> None:
        """Refuse a continuous action that lacks a number, or has one that no policy could take."""
        assert self.schema.action is not None
        ids = self.schema.action.ids
        missing = np.isnan(block.table("action", ids)) & block.columns["has_action"][:, None]
        if missing.any():
            row, column = (int(i) for i in np.argwhere(missing)[0])
            raise ConfigError(f"{where(row)}: action has no number {ids[column]}; a continuous action has all of them")
        for name in ("action", "next_action"):
            table = block.table(name, ids)
            for row, column in np.argwhere(np.abs(table) > LARGEST)[:1].tolist():
                raise ConfigError(
                    f"{where(row)}: number {ids[column]} of {name} is {table[row, column]:g}, which is too large for "
                    "32 bits; scale or correct it"
                )

    def _append(self, writer: DatasetWriter, group: "_Group") -> None:
        rows = group.found.columns
        self._digest.add(group.sums)
        self.first_left_out = self.first_left_out or group.first_left_out
        self._reward_sum = float(np.cumsum(np.append(self._reward_sum, rows["reward"].astype(np.float64)))[-1])
        if self.schema.kind == "discrete":
            self._some_impossible |= not rows["possible_actions"].all()
        rows["trajectory"] += self.counts.trajectories
        group.kept.columns["row"] = self.counts.kept + np.arange(len(group.found.kept_rows))
        self._check.add(group.kept, rows["key"])
        self._as_logged &= bool((group.found.lists >= 0).all())
        self.counts.add(group.successors, group.found)
        writer.append(rows)

    def _hashes(self, items: NDArray[Any]) -> Words:
        if self.schema.action is None:
            return name_hashes(items, self._scan.encoder.names)
        return item_hashes(items, self.schema.action.ids)

    def _items(self, items: NDArray[Any]) -> NDArray[Any]:
        """Items of lists with columns in the order of the action features."""
        if self.schema.action is None:
            return items
        coded = self._scan.encoder.action_ids
        return select_columns(pad_columns(items, (len(coded),)), coded, self.schema.action.ids)

    def _lists(self, block: Block, name: str) -> Lists:
        lists = block.lists.get(name)
        if lists is None:
            discrete = self.schema.action is None
            return no_lists(len(block), np.zeros(0, np.int32) if discrete else self._items(np.zeros((0, 0))))
        return Lists(lists.index, lists.offsets, self._items(lists.items))


def _interval(low: float | None, high: float | None) -> str:
    """`[low, high]` with as many digits as tell both apart."""
    assert low is not None and high is not None
    digits = next((count for count in (6, 10) if f"{low:.{count}g}" != f"{high:.{count}g}"), 17)
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def _check_probabilities(block: Block, where: Callable[[int], str], why_parametric: str) -> None:
    """Refuse the logarithm of a probability above 1: of candidates there is no density."""
    above = block.columns["log_probability"] > LOG_PROBABILITY_ROUNDING
    if above.any():
        row = int(above.argmax())
        way = why_parametric or "of continuous actions (--kind continuous) it is the logarithm of a density"
        raise ConfigError(
            f"{where(row)}: log_probability {block.columns['log_probability'][row]} is above 0, and a probability is "
            f"at most 1; {way}"
        )
