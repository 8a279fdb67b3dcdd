"""Do two libraries differ in what they learn? The rows of learning.py, by an exact test of permutations.

A row of Lockstep is compared with those of another library that have the same task, algorithm and steps. p is the share
of all ways to deal the returns out to two groups of these sizes whose means differ at least as much. With three seeds
each it cannot be less than 0.1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import permutation_test

NEUTRAL = ("ml_framework", "stop_when_solved")
"""Settings that another library does not have."""


def permutation_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The two-sided p of a difference between the means, over all ways to deal the numbers out."""

    def difference(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
        return np.abs(one.mean(axis) - other.mean(axis))

    return permutation_test((ours, theirs), difference, n_resamples=np.inf, alternative="greater").pvalue


def table(rows: list[dict], libraries: Mapping[str, str]) -> str:
    """A markdown table: of each task and algorithm that both have trained with two or more seeds."""
    groups: dict[tuple, dict[str, list[float]]] = {}
    for row in rows:
        settings = dict(change.split("=", 1) for change in row["changes"])
        settings = {name: value for name, value in settings.items() if name not in NEUTRAL}
        if row["ranks"] == 1 and {"algo", "total_steps"} == {*settings}:
            of_command = groups.setdefault((row["target"], row["algo"], int(settings["total_steps"])), {})
            of_command.setdefault(row["library"], []).append(row["eval_return_mean"])
    lines = ["| task | algorithm | steps | Lockstep | the other | theirs - ours | p |", "|---" * 7 + "|"]
    for (task, algo, steps), found in sorted(groups.items()):
        ours = found.pop("lockstep", [])
        for library, theirs in sorted(found.items()):
            if min(len(ours), len(theirs)) > 1:
                difference, p = np.mean(theirs) - np.mean(ours), permutation_p(ours, theirs)
                lines.append(
                    f"| {task} | {algo} | {steps:,} | {_described(ours)} | {libraries[library]}: {_described(theirs)} "
                    f"| {difference:+,.0f} | {p:.2f} |"
                )
    return "\n".join(lines)


def _described(returns: list[float]) -> str:
    return f"{np.mean(returns):,.0f} ({len(returns)} seeds)"
