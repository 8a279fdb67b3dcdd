"""Estimates as a text for the user, and as a line of metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.estimators.importance import DECISION, TRAJECTORY
from lockstep.estimators.recommendation import compared, short, with_interval
from lockstep.record.text import aligned

ESTIMATES_FILE = "estimates.json"
"""The file name in a run directory."""
METRICS = tuple(
    f"estimate/{name}"
    for name in ("decision_logged", *DECISION, "logged", *TRAJECTORY, "effective_rows", "effective_trajectories")
)
"""The metrics: estimates of the reward, and effective sample sizes."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The results of `estimates`, and the data and policy that they belong to."""

    found: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return dict(self.found)

    def metrics(self) -> dict[str, float]:
        """The available values by the names of `METRICS`."""
        reward: dict[str, Any] = {**self.found["logged"]["reward"], **self.found["estimates"]["reward"]}
        named = {f"estimate/{name}": one["value"] for name, one in reward.items()}
        sizes: dict[str, float | None] = self.found["effective_sample_size"]
        named |= {f"estimate/effective_{of}": size for of, size in sizes.items()}
        return {name: value for name, value in named.items() if value is not None}

    def text(self) -> str:
        """A table for each column, then warnings, then the recommended estimates."""
        found = self.found
        lines = [
            f"{found['num_trajectories']} trajectories, {found['num_rows']} rows; {found['confidence']:.0%} intervals"
        ]
        for column in found["estimates"]:
            lines += ["", *_table(column, found["logged"][column], found["estimates"][column])]
        lines += ["", *(f"warning: {warning}" for warning in found["warnings"])]
        lines += ["recommended estimates:", *(f"  {line}" for line in found["verdict"]["words"])]
        return "\n".join(lines)

    def line(self) -> str:
        """One line: the recommended estimate of the policy, if there is one."""
        found, reward = self.found, self.found["estimates"]["reward"]
        for level, base in (("trajectory", "logged"), ("decision", "decision_logged")):
            if (name := found["verdict"][level]) is not None:
                what = "a trajectory, discounted" if level == "trajectory" else "one decision"
                logged = found["logged"]["reward"][base]
                estimate = f"{with_interval(reward[name])} by {name}, {compared(reward[name], logged)}"
                return f"estimated reward of {what}: {estimate}"
        line = f"no estimate of the policy's reward is reliable: {found['verdict']['reasons']['trajectory']}"
        if "fitted_q" in reward and not found["logged"]["reward"]["logged"]["constant"]:
            line += f"; fitted_q says {with_interval(reward['fitted_q'])}, from the models alone"
        return line


def _table(column: str, logged: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    parts = (
        (f"{column} of a trajectory, discounted", "logged", TRAJECTORY),
        (f"{column} of one decision, in the states of the log", "decision_logged", DECISION),
    )
    for title, base, names in parts:
        yield title
        rows = [["", "value", "low", "high", "normalized"], ["logged", *_cells(logged[base])]]
        rows += [[short(name), *_cells(found[name])] for name in names if name in found]
        yield from aligned(rows)
        for name in names:
            if name in found and "bias" in found[name]:
                bias, missing = found[name]["bias"], found[name]["missing_weight"]
                average = f"; its weights average {1 - missing:.2f} where 1 is expected" if missing > 0 else ""
                yield f"  clipping changed clipped_ips by {bias:.3g}{average}"


def _cells(one: Mapping[str, Any]) -> list[str]:
    return ["-" if one.get(name) is None else f"{one[name]:.5g}" for name in ("value", "low", "high", "normalized")]
