"""Read the state and results of runs from their directories, including running and aborted ones."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import read_json
from lockstep.record.readable import check_readable
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RUN_FILE, SUMMARY_FILE, read_config
from lockstep.record.run_status import is_running, status_of

_FILES = (RUN_FILE, SUMMARY_FILE, METRICS_FILE)
DAMAGED = "damaged"
"""Status of a run whose files cannot be understood."""
_ESTIMATOR = "weighted_sequential_dr"


class MetricsRow(msgspec.Struct, gc=False):
    """The part of a line of `metrics.jsonl` that reports use. Other keys are skipped, not decoded."""

    step: Any = None
    time_s: Any = None
    training_return: Any = msgspec.field(name="episode/return_mean_100", default=None)
    estimate: Any = msgspec.field(name=f"estimate/{_ESTIMATOR}", default=None)
    logged: Any = msgspec.field(name="estimate/logged", default=None)


class EvaluationRow(msgspec.Struct, gc=False):
    """A line of `evaluations.jsonl`."""

    step: Any = None
    returns: Any = None


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """The state and results of one run; fields that its files do not have are None."""

    path: Path
    status: str
    """The status in `summary.json`, else `running`, or `cut short` for a run that ended without a summary.

    `damaged` if its files cannot be understood; `error` says why.
    """
    error: str | None
    settings: Mapping[str, Any]
    """By dotted name."""
    ranks: int | None
    steps: int
    """Environment steps; rows for logged data."""
    total_steps: int | None
    steps_per_second: float | None
    last_return: float | None
    best_return: float | None
    return_from: str | None
    """`evaluation`, or `training` (mean of the last 100 episodes or more) if no evaluation gave a return."""
    estimate: tuple[float, float | None, float | None] | None
    """Estimated discounted return of the policy (weighted sequential doubly robust) and its interval."""
    estimate_is_doubtful: bool
    """Whether no estimate of a trajectory is reliable, by the verdict of the run's estimates."""
    logged: float | None
    """Mean discounted return of the logged data."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories in `paths` and below them, without duplicates; unreadable directories below are left out.

    Raises:
        ConfigError: a path does not exist, cannot be read, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        check_readable(path)
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give run directories, or a directory of them, such as runs/")
        below = runs_below(path)
        if not below:
            raise ConfigError(
                f"{path} holds no run (no {RUN_FILE}); give run directories, or a directory of them, such as runs/"
            )
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def runs_below(path: Path) -> list[Path]:
    """The run directories in `path` and below it, at any depth; runs are not searched for others."""
    return list(_below(path, set()))


def is_run(path: Path) -> bool:
    """Whether a directory holds the files of a run."""
    return any((path / name).is_file() for name in _FILES)


def read_run(path: Path) -> FoundRun:
    """Read a run directory; missing, truncated or damaged files are skipped."""
    try:
        summary = read_json(path / SUMMARY_FILE)
        return found_run(path, summary, read_metrics(path), read_evaluations(path))
    except Exception as error:  # files of another program may hold anything, and other runs are still to be shown
        return damaged_run(path, error)


def damaged_run(path: Path, error: Exception) -> FoundRun:
    """A run whose files cannot be understood."""
    return FoundRun(
        path=path,
        status=DAMAGED,
        error=damage_of(error),
        settings={},
        ranks=None,
        steps=0,
        total_steps=None,
        steps_per_second=None,
        last_return=None,
        best_return=None,
        return_from=None,
        estimate=None,
        estimate_is_doubtful=False,
        logged=None,
    )


def printable(text: str) -> str:
    """A text that can be printed: names of directories need not be UTF-8."""
    return text.encode(errors="replace").decode()


def damage_of(error: Exception) -> str:
    """Why files cannot be understood, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def found_run(
    path: Path, summary: Mapping[str, Any], metrics: Sequence[MetricsRow], evaluations: Sequence[EvaluationRow]
) -> FoundRun:
    """The state and results of a run from the content of its files."""
    config = settings.leaves(read_config(path))
    if "algo" in config:
        config["algo"] = summary.get("algo") or config["algo"]  # the summary names an algorithm of one's own
    last, best, source = _returns(metrics, evaluations, summary)
    running = is_running(path)
    counted: Mapping[str, Any] = {} if running else summary
    step, seconds = (number_of(metrics[-1].step), number_of(metrics[-1].time_s)) if metrics else (None, None)
    speed = number_of(counted.get("steps_per_second")) or (step / seconds if step and seconds else None)
    return FoundRun(
        path=path,
        status=status_of(summary, running=running),
        error=None if running else summary.get("error"),
        settings=config,
        ranks=whole_number_of(summary.get("world_size")) or None,
        steps=int(number_of(counted.get("env_steps")) or step or 0),
        total_steps=whole_number_of(config.get("total_steps")),
        steps_per_second=speed,
        last_return=last,
        best_return=best,
        return_from=source,
        estimate=_estimate(metrics, summary),
        estimate_is_doubtful=_is_doubtful(summary),
        logged=_last_number(line.logged for line in reversed(metrics)),
    )


def ranks_of(processes: object, devices: object) -> int | None:
    """The number of ranks: each device of a process (`devices_per_process`) is one; None if unknown."""
    count, each = whole_number_of(processes), whole_number_of(devices)
    return count * (1 if each is None else each) if count else None


def _below(path: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """`seen`: the directories that were searched, by device and inode, since links may lead in a circle."""
    if is_run(path):
        yield path
        return
    status = path.stat()
    if not path.is_dir() or (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if _is_directory(entry))
    for name in names:
        with suppress(OSError):  # no permission, or removed meanwhile
            yield from _below(path / name, seen)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link into a closed directory, or to itself
        return False


def _returns(
    metrics: Sequence[MetricsRow], evaluations: Sequence[EvaluationRow], summary: Mapping[str, Any]
) -> tuple[float | None, float | None, str | None]:
    means = [mean for line in evaluations if (mean := mean_return(line.returns)) is not None]
    if not means and (mean := number_of(summary.get("eval_return_mean"))) is not None:
        means = [mean]
    if means:
        return means[-1], max(means), "evaluation"
    means = [mean for line in metrics if (mean := number_of(line.training_return)) is not None]
    return (means[-1], max(means), "training") if means else (None, None, None)


def _estimate(
    metrics: Sequence[MetricsRow], summary: Mapping[str, Any]
) -> tuple[float, float | None, float | None] | None:
    found: Any = summary.get("estimates")
    for key in ("estimates", "reward", _ESTIMATOR):
        found = settings.value_of(found, key)
    value = number_of(settings.value_of(found, "value"))
    if value is not None:
        return value, number_of(settings.value_of(found, "low")), number_of(settings.value_of(found, "high"))
    value = _last_number(line.estimate for line in reversed(metrics))
    return None if value is None else (value, None, None)


def _last_number(values: Iterable[object]) -> float | None:
    """The first of the values, which have the last one first, that is a number; lines without one have None."""
    return next((found for value in values if value is not None and (found := number_of(value)) is not None), None)


def _is_doubtful(summary: Mapping[str, Any]) -> bool:
    verdict: object = settings.value_of(summary.get("estimates"), "verdict")
    return verdict is not None and settings.value_of(verdict, "trajectory") is None


def read_metrics(path: Path) -> list[MetricsRow]:
    """The lines of the run's `metrics.jsonl`, without damaged ones."""
    return _rows(path / METRICS_FILE, MetricsRow)


def read_evaluations(path: Path) -> list[EvaluationRow]:
    """The lines of the run's `evaluations.jsonl`, without damaged ones."""
    return _rows(path / EVALUATIONS_FILE, EvaluationRow)


def _rows(path: Path, kind: type[Row]) -> list[Row]:
    try:
        content = path.read_bytes()
    except OSError:
        return []
    decoder = msgspec.json.Decoder(kind)
    with suppress(msgspec.DecodeError):
        return decoder.decode_lines(content)
    rows: list[Row] = []
    for line in content.splitlines():
        with suppress(msgspec.DecodeError):  # cut off when its writer was killed
            rows.append(decoder.decode(line))
    return rows
