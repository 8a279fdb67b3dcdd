"""What the files of a run say about its progress, read again and again while it trains."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from lockstep.cli.report.runs import ranks_of
from lockstep.config import settings
from lockstep.config.settings import value_of
from lockstep.distributed.timers import PHASES
from lockstep.record.checkpoint import FOLDER
from lockstep.record.console import learns
from lockstep.record.evaluations import mean_return
from lockstep.record.failure import read_failure
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import JsonLinesFollower, read_json
from lockstep.record.latest import latest_step
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RANKS_FILE, RUN_FILE, SUMMARY_FILE, read_config
from lockstep.record.run_status import is_running, status_of, written_at

RETURN = "evaluation return"
"""Name of the curve of evaluations."""
ESTIMATE = "estimate/weighted_sequential_dr"
"""The metric that estimates the return of a policy from logged data."""
_FIRST = (RETURN, "episode/return_mean_100", ESTIMATE, "time/steps_per_second")
"""Curves that come first, if a run has them."""
_HIDDEN = ("progress/", "episode/count")
_WINDOW = 10
"""Log intervals over which phases and the speed of the ETA are measured."""
_RECENT = 100
"""Lines among which the newest value of a metric is looked for."""
_TIME = "time_s"
_UNEVEN = 0.05
"""Difference in the share of waiting from which the slowest rank is named."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of a metric."""

    steps: list[float]
    seconds: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class RankTime:
    """Where one rank spent its time lately."""

    rank: int
    host: str | None
    shares: Mapping[str, float]
    """By phase, fraction of the time."""
    memory: int | None
    """Bytes in memory."""
    device_memory: int | None
    """The most bytes of its GPU that it has used."""


class WatchedRun:
    """A run directory that is read as it grows; nothing in it is changed.

    Attributes:
        path: the directory, which need not exist yet.
        config: the settings, by dotted name; empty before they are written.
        summary: the result; empty before the end.
        running: whether a process trains the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = {}
        self.summary: Mapping[str, Any] = {}
        self.running = False
        self._metrics = JsonLinesFollower(path / METRICS_FILE, keep=_RECENT)
        self._evaluations = JsonLinesFollower(path / EVALUATIONS_FILE)
        self._ranks = JsonLinesFollower(path / RANKS_FILE, keep=_WINDOW + 1)
        self._curves: dict[str, Curve] = {}
        """By metric, and `_TIME`, which has all steps. Extended as lines are read: there may be a million of them."""
        self._config_written_at = 0.0
        self._saved_step = 0
        self._hosts: dict[int, str] = {}

    def update(self) -> None:
        """Read what is new."""
        with suppress(OSError):
            changed_at = (self.path / RUN_FILE).stat().st_mtime
            if changed_at != self._config_written_at:
                self.config = settings.leaves(read_config(self.path))
                self._config_written_at = changed_at
        for follower in (self._metrics, self._evaluations, self._ranks):
            follower.update()
        if self._metrics.began_anew:
            self._curves.clear()
        for line in self._metrics.added:
            self._extend_curves(line)
        self._saved_step = latest_step(self.path) or 0
        self.running = is_running(self.path)
        self.summary = read_json(self.path / SUMMARY_FILE)
        if not self._hosts:
            self._hosts = dict(_hosts(read_json(self.path / "preflight.json")))

    def _extend_curves(self, line: Mapping[str, Any]) -> None:
        step, seconds = number_of(line.get("step")), number_of(line.get(_TIME))
        for name in line:
            if "/" in name or name == _TIME:
                curve, value = self._curves.setdefault(name, Curve([], [], [])), number_of(line[name])
                if step is not None and seconds is not None and value is not None:
                    curve.steps.append(step)
                    curve.seconds.append(seconds)
                    curve.values.append(value)

    @property
    def exists(self) -> bool:
        """Whether the run has begun to write."""
        return bool(self.config or self._metrics.lines or self.summary)

    @property
    def status(self) -> str:
        """`running`, the status of the result, or `cut short` for a run that ended without one."""
        return status_of(self.summary, running=self.running)

    @property
    def problem(self) -> str | None:
        """Why the run failed, in one line."""
        if self.status not in ("failed", "cut short"):
            return None
        found = self.summary.get("error") or (read_failure(self.path) or {}).get("message")
        return None if not found else " ".join(str(found).split())

    @property
    def unit(self) -> str:
        """What `step` counts."""
        return "rows" if "data" in self.config else "steps"

    @property
    def step(self) -> int:
        """Environment steps so far, by the last line of metrics or the newest checkpoint; rows of logged data."""
        ended = None if self.running else whole_number_of(self.summary.get("env_steps"))
        return ended or max(whole_number_of(self._last_value("step")) or 0, self._saved_step)

    @property
    def total_steps(self) -> int | None:
        """Environment steps of the whole run, if they are known."""
        return whole_number_of(self.config.get("total_steps"))

    @property
    def devices_per_process(self) -> int:
        """The number of ranks that one process drives; `rank_times` has an entry per process."""
        return whole_number_of(self.config.get("devices_per_process")) or 1

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks; None if no file tells it yet."""
        ended = whole_number_of(self.summary.get("world_size"))
        return ended or ranks_of(len(self.rank_times()), self.devices_per_process)

    @property
    def solved_at_step(self) -> int | None:
        """The step at which the run has reached its return, once it has ended."""
        return None if self.running else whole_number_of(self.summary.get("solved_at_step"))

    @property
    def elapsed_s(self) -> float:
        """Seconds of training at the last line of metrics."""
        return number_of(self._last_value("time_s")) or 0.0

    @property
    def steps_per_second(self) -> float | None:
        """Speed between the last two lines."""
        return number_of(self._last_value("time/steps_per_second"))

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last step at the recent speed, evaluations included; None where there is no such speed.

        The first line, with compilation, tells no speed, nor do lines without gradient steps while a replay buffer is
        filled. Also None unless the run is in progress.
        """
        recent = self._recent_lines()
        if not self.running or not self.total_steps or len(recent) < 2:
            return None
        (step, elapsed), (first_step, first_elapsed) = recent[0], recent[-1]
        if step <= first_step or elapsed <= first_elapsed:
            return None
        return max(self.total_steps - step, 0) * (elapsed - first_elapsed) / (step - first_step)

    def _recent_lines(self) -> list[tuple[int, float]]:
        """Step and seconds of the last lines, the newest first; with a replay buffer only since learning continued."""
        has_replay = "algorithm.learning_starts" in self.config
        found: list[tuple[int, float]] = []
        for line in reversed(self._metrics.lines[-_WINDOW - 1 :]):
            if not learns(line, has_replay=has_replay):
                break
            step, elapsed = whole_number_of(line.get("step")), number_of(line.get("time_s"))
            if step is not None and elapsed is not None:
                found.append((step, elapsed))
        return found

    @property
    def silent_s(self) -> float | None:
        """Seconds since the files were last written."""
        changed = written_at(self.path)
        return max(0.0, time.time() - changed) if changed else None

    @property
    def last_evaluation(self) -> tuple[int, float, int] | None:
        """Step, mean return and number of episodes of the last evaluation that has a return."""
        for entry in reversed(self._evaluations.lines):
            step, mean = whole_number_of(entry.get("step")), mean_return(entry.get("returns"))
            if step is not None and mean is not None:
                return step, mean, len(entry["returns"])
        return None

    def latest(self, name: str) -> float | None:
        """The last value of a metric, if one of the last lines has it."""
        for line in reversed(self._metrics.lines):
            if (value := number_of(line.get(name))) is not None:
                return value
        return None

    def _last_value(self, name: str) -> object:
        """A value of the last line of metrics."""
        return self._metrics.lines[-1].get(name) if self._metrics.lines else None

    def checkpoints(self) -> list[tuple[int, float]]:
        """Step and age in seconds of each checkpoint, the oldest step first."""
        found: list[tuple[int, float]] = []
        for path in (self.path / FOLDER).glob("step_*"):
            with suppress(OSError, ValueError):
                found.append((int(path.name.removeprefix("step_")), max(0.0, time.time() - path.stat().st_mtime)))
        return sorted(found)

    def names(self) -> list[str]:
        """The curves that there are: returns first, then the others by name."""
        known = self._curves.keys() - {_TIME}
        rest = sorted(name for name in known if not name.startswith(_HIDDEN) and name not in _FIRST)
        first = [name for name in _FIRST if name in known or (name == RETURN and self._evaluations.lines)]
        return [*first, *rest]

    def first_name(self) -> str | None:
        """The first curve with at least two points, else the first."""
        names = self.names()
        return next((name for name in names if len(self.curve(name).values) > 1), names[0] if names else None)

    def curve(self, name: str) -> Curve:
        """All values of a metric, or of the mean return of evaluations."""
        if name == RETURN:
            return self._returns()
        return self._curves.get(name, Curve([], [], []))

    def _returns(self) -> Curve:
        found = [(number_of(line.get("step")), mean_return(line.get("returns"))) for line in self._evaluations.lines]
        points = [(step, value) for step, value in found if step is not None and value is not None]
        lines = self.curve(_TIME)
        times = lines.seconds or [0.0]
        seconds = [times[min(bisect_left(lines.steps, step), len(times) - 1)] for step, _ in points]  # of the next line
        return Curve([step for step, _ in points], seconds, [value for _, value in points])

    def rank_times(self) -> list[RankTime]:
        """Where each rank spent its time since some lines ago; where one process drives several ranks, each process."""
        lines = [line for line in self._ranks.lines[-_WINDOW - 1 :] if _has_phases(line)]
        if not lines:
            return []
        last: Mapping[str, Sequence[float]] = lines[-1]["phases_s"]
        before: Mapping[str, Sequence[float]] = lines[0]["phases_s"]
        spent = [_since(last, before, rank) for rank in range(min(len(last[phase]) for phase in PHASES))]
        memory, device_memory = (_counts(lines[-1].get(name), len(spent)) for name in ("memory", "device_memory"))
        found: list[RankTime] = []
        for rank, seconds in enumerate(spent):
            whole = sum(seconds.values()) or 1.0
            shares = {phase: value / whole for phase, value in seconds.items()}
            found.append(RankTime(rank, self._hosts.get(rank), shares, memory[rank], device_memory[rank]))
        return found

    @staticmethod
    def slowest(times: Sequence[RankTime]) -> RankTime | None:
        """The rank for which the others wait; None if they are even."""
        if len(times) < 2:
            return None
        found = min(times, key=lambda one: one.shares["wait"])
        others = fmean(one.shares["wait"] for one in times if one is not found)
        return found if others - found.shares["wait"] > _UNEVEN else None


def _counts(given: object, size: int) -> list[int | None]:
    """As many counts as there are ranks; None for what is not known."""
    known = [whole_number_of(value) for value in cast(list[Any], given)] if isinstance(given, list) else []
    return [*known[:size], *[None] * (size - len(known))]


def _has_phases(line: Mapping[str, Any]) -> bool:
    """Whether a line of `ranks.jsonl` has the seconds of each rank in each phase."""
    found = line.get("phases_s")
    if not isinstance(found, dict):
        return False
    columns = [cast(Mapping[str, Any], found).get(phase) for phase in PHASES]
    return all(
        isinstance(column, list) and all(number_of(value) is not None for value in cast(list[Any], column))
        for column in columns
    )


def _hosts(preflight: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The host of each rank, from `preflight.json`."""
    hosts = preflight.get("hosts")
    for host in cast(list[Any], hosts) if isinstance(hosts, list) else []:
        name, ranks = value_of(host, "host"), value_of(host, "ranks")
        if isinstance(name, str) and isinstance(ranks, list):
            for rank in cast(list[Any], ranks):
                if isinstance(rank, int):
                    yield rank, name


def _since(last: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]], rank: int) -> dict[str, float]:
    """Seconds of a rank in each phase; since its start if that was after `before`."""
    try:
        spent = {phase: last[phase][rank] - before[phase][rank] for phase in PHASES}
        if sum(spent.values()) > 0 and min(spent.values()) >= 0:
            return spent
    except (KeyError, IndexError):
        pass
    return {phase: last[phase][rank] for phase in PHASES}
