"""Counts of a preparation, and messages about its rules for the user."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lockstep.data.preparation.decisions import LEAST_PROPENSITY, Decisions, PreparedSchema
from lockstep.data.preparation.next_rows import NextRows, Rules

_MARKS = {
    "terminated": "the log marks it (terminated, or not truncated)",
    "possible_next_actions": "its possible_next_actions are empty",
    "possible_actions": "its possible_actions are empty",
    "next_action": "it has no next_action",
    "next_state": "it has no next_state_features",
    "last_row": "no decision follows (the log marks nothing)",
}
_MANY = 3
"""At least this many trajectories, and a tenth of all, of the largest length indicate a step limit."""
_SHOWN = 10
"""Names of actions in the summary."""
_MANY_TERMINATED, _SHORTEST_LIMIT = 10, 50
"""Of trajectories that are marked as terminated at least this many, of at least this length. Hardly a task of Gym has a
lower limit, and sessions that really end with their last possible decision are mostly shorter."""


@dataclass(slots=True)
class Counts:
    """Counts of the rows of a log, by outcome."""

    kept: int = 0
    """Decisions that were written."""
    trajectories: int = 0
    terminal: int = 0
    cut: int = 0
    """Trajectories truncated by the step limit."""
    left_out: int = 0
    """Decisions that are not terminal and whose next state is unknown."""
    gaps: int = 0
    """Rows whose next row is missing."""
    single_steps: int = 0
    """Rows whose next row has the next sequence number."""
    longer_steps: int = 0
    """Rows whose next row has a larger one, except where the logged `time_diff` says so."""
    filled: int = 0
    """Decisions whose possible actions were missing or empty, and filled in."""
    unknown: int = 0
    """Decisions whose possible actions nothing tells."""
    final_states: int = 0
    """Terminal decisions that a row without an action follows, of which no list says whether anything is possible."""
    added: int = 0
    """Decisions whose action was not among the possible ones."""
    raised: int = 0
    """Decisions whose propensity is, or was raised to, the least that is kept."""
    no_propensity: int = 0
    """Decisions without a propensity, or without a density of a continuous action."""
    next_actions: int = 0
    """Decisions whose next action is known."""
    shortest: int = 0
    longest: int = 0
    num_longest: int = 0
    num_longest_terminal: int = 0

    def add(self, successors: NextRows, found: Decisions) -> None:
        """Count a group of whole trajectories; `found.columns["trajectory"]` continues from previous groups."""
        columns = found.columns
        self.kept += len(found.kept_rows)
        if len(found.kept_rows):
            self.trajectories = int(columns["trajectory"][-1]) + 1
        self.terminal += int(columns["terminal"].sum())
        known = columns.get("has_next_action")
        self.next_actions += int((columns["next_action"] >= 0).sum() if known is None else known.sum())
        self.added += found.added
        self.raised += int((columns["propensity"] == LEAST_PROPENSITY).sum()) if "propensity" in columns else 0
        self.no_propensity += int(np.isnan(columns["propensity" if "propensity" in columns else "log_density"]).sum())
        self.cut += successors.cut
        self.left_out += successors.left_out
        self.gaps += successors.gaps
        self.single_steps += successors.single_steps
        self.longer_steps += successors.longer_steps
        self.filled += successors.filled
        self.unknown += successors.unknown
        self.final_states += successors.final_states
        self._add_lengths(successors)

    def _add_lengths(self, successors: NextRows) -> None:
        lengths = successors.lengths
        if not lengths.any():
            return
        shortest = int(lengths[lengths > 0].min())
        self.shortest = min(self.shortest or shortest, shortest)
        if (longest := int(lengths.max())) > self.longest:
            self.longest, self.num_longest, self.num_longest_terminal = longest, 0, 0
        at_end = np.add.reduceat(successors.terminal, np.flatnonzero(successors.first), dtype=np.int64) > 0
        self.num_longest += int((lengths == self.longest).sum())
        self.num_longest_terminal += int((at_end & (lengths == self.longest)).sum())

    def indicate_limit(self, least: int) -> bool:
        """Whether at least `least` trajectories, and a tenth of all, have the largest length and are terminal."""
        return 10 * self.num_longest_terminal >= max(self.trajectories, 10 * least)

    def plain(self) -> dict[str, Any]:
        """For `dataset.json`."""
        return asdict(self)


def summary_lines(counts: Counts, rules: Rules, schema: PreparedSchema, *, has_lists: bool, example: str) -> list[str]:
    """Lines for the user.

    `has_lists`: the log names possible actions; `example`: the file and row of a decision that is left out, in words.
    """
    c = counts
    lengths = f"{c.shortest} to {c.longest}" if c.shortest < c.longest else str(c.longest)
    found = [
        f"{_decisions(c.kept)} in {_trajectories(c.trajectories)} of {lengths}, {schema.kind} actions{_names(schema)}",
        f"terminal: the last decision of a trajectory where {_MARKS[rules.mark]}: {c.terminal} of {c.trajectories}",
    ]
    found += _end_lines(c, rules)
    if c.left_out:
        found.append(
            f"left out: {_decisions(c.left_out)}{example}. Nothing tells what followed the last decision of a "
            "trajectory that is not terminal and has no next_state_features; log these, or mark the end (terminated)"
        )
    if c.gaps:
        found.append(f"the row after {_decisions(c.gaps)} is missing from the log; the logged next_* columns are used")
    if 0 < c.longer_steps <= c.single_steps:
        found.append(
            f"the sequence_number grows by more than 1 after {_decisions(c.longer_steps)}, by 1 after {c.single_steps}"
            ": are rows missing (a split by rows, not by trajectories)? What was logged next counts as what followed"
        )
    if c.no_propensity:
        some = (
            f"{c.no_propensity} of {_decisions(c.kept)} without a" if c.no_propensity < c.kept else "no decision has a"
        )
        what = "log_probability (the logarithm of a density)" if schema.continuous else "propensity"
        found.append(f"{some} {what}: estimates that weight the log need one for every decision")
    if has_lists:
        found += _list_lines(c, rules, schema.kind)
    if c.raised:
        found.append(
            f"propensities raised to {LEAST_PROPENSITY:.3g}, the least that is kept: {_decisions(c.raised)}. Such rows "
            "have huge weights, which estimates should not rest on; check how the log computed them"
        )
    return found


def _end_lines(c: Counts, rules: Rules) -> list[str]:
    """How trajectories end."""
    found, limit, marked = list[str](), rules.max_episode_steps, rules.mark == "terminated"
    if c.final_states and not marked:
        found.append(
            f"a row without an action follows {c.final_states} of them, and its state counts as the end of the "
            "episode; where the trajectory was merely cut there, mark that: truncated"
        )
    if limit is not None:
        unless = "; where the log marks an end, that counts" if marked else ""
        found.append(
            f"not terminal: the end of {_trajectories(c.cut)} of {limit} decisions (--max-episode-steps){unless}"
        )
    elif not marked and c.longest > 1 and c.indicate_limit(_MANY):
        found.append(
            f"{c.num_longest_terminal} trajectories end with decision {c.longest}, which is the longest, and count as "
            f"terminal: if a limit of steps cut them off, prepare with --max-episode-steps {c.longest} (in a workflow "
            "file: max_episode_steps)"
        )
    if not c.terminal:
        found.append("no decision is terminal: values bootstrap at the end of every trajectory")
    return found


def _list_lines(c: Counts, rules: Rules, kind: str) -> list[str]:
    """Possible actions that the log does not have as they are learned from."""
    found = list[str]()
    if c.filled:
        source = "the list that all others have" if rules.shared_list is not None else "what the row before says"
        found.append(f"{_decisions(c.filled)} without possible actions; filled in by {source}")
    if c.unknown:
        known = "every action counts as possible there"
        if kind == "parametric":
            known = "the log counts as one without them, since only the action that was taken is known there"
        found.append(
            f"{_decisions(c.unknown)} without possible actions, and neither the row before nor a list that all rows "
            f"share tells them; {known}"
        )
    if c.added:
        found.append(f"{_decisions(c.added)} took an action that was not among the possible ones; it was added to them")
    return found


def done_lines(counts: Counts, max_episode_steps: int | None) -> list[str]:
    """A warning if `terminated` is true at what looks like a limit of steps, as the `done` of old Gym was.

    For logs without `truncated`. A log that has it tells limits apart, and so does one with a trajectory of the largest
    length that is not terminated.
    """
    c = counts
    if c.num_longest_terminal < c.num_longest or c.longest < _SHORTEST_LIMIT or not c.indicate_limit(_MANY_TERMINATED):
        return []
    if max_episode_steps not in (None, c.longest):
        return []
    return [
        f"all {c.num_longest} trajectories of {c.longest} decisions, the largest number, are marked as terminated: if "
        "that is the done of old Gym, which was also true at a limit of steps, nothing is learned of what would have "
        f"followed; leave the column out (terminated: null in --columns) and add --max-episode-steps {c.longest} (in a "
        "workflow file: columns, max_episode_steps)"
    ]


def _names(schema: PreparedSchema) -> str:
    """The first names of discrete actions, so that one which was not meant is seen: another spelling, or a `nan`."""
    more = f" and {len(schema.actions) - _SHOWN} more" if len(schema.actions) > _SHOWN else ""
    shown = (name if name == name.strip() else repr(name) for name in schema.actions[:_SHOWN])
    return f": {', '.join(shown)}{more}" if schema.actions else ""


def _decisions(number: int) -> str:
    return f"{number} decision{'s' * (number != 1)}"


def _trajectories(number: int) -> str:
    return "1 trajectory" if number == 1 else f"{number} trajectories"
