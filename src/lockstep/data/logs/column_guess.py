"""Suggest a `--columns` file for a log whose columns have other names than those of the schema."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence

import yaml

ColumnNames = str | dict[str, str]
"""The name of a column in the user's table; of a map also the column of each id."""
MEANINGS = {
    "mdp_id": "the trajectory: an episode, a user's session; text or a whole number",
    "sequence_number": "place in the trajectory, a whole number",
    "state_features": "what was known before the decision: one map, or a list of columns of numbers",
    "action": "what was done",
    "reward": "what followed, a number",
    "propensity": "with which probability the logged policy took the action",
    "log_probability": "its logarithm; of a continuous action that of the density",
    "possible_actions": "what could have been done",
    "next_state_features": "the state after the row",
    "next_action": "the action after the row",
    "possible_next_actions": "what could have been done after the row",
    "time_diff": "time to the next row",
    "terminated": "whether nothing follows the row",
    "truncated": "whether the trajectory was merely cut off here",
    "metrics": "more numbers to judge policies by: one map, or a list of columns",
}
"""The columns of the schema, in the order of the file, and their meaning."""
_COMMON_NAMES: Mapping[str, str] = {
    "mdp_id": "episodeid episode trajectoryid trajectory traj trajid sessionid session mdp userid user customerid "
    "customer visitor run",
    "sequence_number": "step timestep t sequence seq turn tick order position index time timestamp ts",
    "state_features": "state observation obs features context",
    "action": "actions act choice decision arm chosen actiontaken",
    "reward": "rewards rew r payoff gain score",
    "propensity": "actionprobability actionprob probability prob p pscore propensityscore",
    "log_probability": "logprob logp actionlogprobability actionlogprob logdensity",
    "possible_actions": "actionmask legalactions availableactions mask candidates",
    "next_state_features": "nextstate nextobservation nextobs",
    "next_action": "nextact",
    "possible_next_actions": "nextactionmask nextlegalactions",
    "time_diff": "dt elapsed",
    "terminated": "terminal done isterminal dones isdone",
    "truncated": "timeout timelimit",
}
"""Common names of columns, without case and underscores, the likeliest first."""
_NEAR = 0.8
_WIDTH = 40  # longest line whose comment is aligned
_UNKNOWN = "???"


def likely_column(name: str, available: Sequence[str]) -> str | None:
    """The likeliest column for a name of the schema; None without a candidate."""
    plain = {re.sub(r"[\W_]", "", column.lower()): column for column in reversed(available)}
    for other in (name.replace("_", ""), *_COMMON_NAMES.get(name, "").split()):
        if other in plain:
            return plain[other]
    near = difflib.get_close_matches(name.replace("_", ""), plain, n=1, cutoff=_NEAR)
    return plain[near[0]] if near else None


def suggest_columns(
    known: Mapping[str, ColumnNames], missing: Sequence[str], unused: Sequence[str], kinds: Mapping[str, str]
) -> str:
    """A `--columns` file as YAML, with a comment on each line.

    `known` are the user's names so far, by schema name; `missing` the required columns that the log lacks; `unused` its
    columns that are not assigned; `kinds` their kind, `number` or `map`, where known.
    """
    found, free = dict[str, ColumnNames | list[str]](known), list(unused)
    for name in (*missing, *(name for name in MEANINGS if name not in missing and name not in known)):
        column = likely_column(name, free)
        fits = name not in ("state_features", "next_state_features", "metrics") or kinds.get(column or "") == "map"
        if column is not None and fits:
            found[name] = column
            free.remove(column)
    if "state_features" in missing and "state_features" not in found:
        maps = [column for column in free if kinds.get(column) == "map"]
        numbers = [column for column in free if kinds.get(column) == "number"]
        found["state_features"] = maps[0] if maps else numbers or _UNKNOWN
        free = [column for column in free if column not in (maps[:1] or numbers)]
    for name in missing:
        found.setdefault(name, _UNKNOWN)
    lines = [(f"{name}: {_yaml(found[name])}", MEANINGS[name]) for name in MEANINGS if name in found]
    width = max((len(line) for line, _ in lines if len(line) <= _WIDTH), default=0)
    text = [f"{line.ljust(width)}  # {what}" for line, what in lines]
    return "\n".join([*text, *([f"# left out: {', '.join(free)}"] if free else [])])


def _yaml(value: ColumnNames | list[str]) -> str:
    """A name, a list of names or a map of ids to names, in a line of YAML."""
    if isinstance(value, dict) and all(key == column for key, column in value.items()):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").rstrip()  # a name alone is dumped as a document with an end
