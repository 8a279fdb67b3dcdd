"""Read the state and results of runs from their directories, including running and aborted ones."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.follow import read_json
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RUN_FILE, SUMMARY_FILE, read_config
from lockstep.record.run_status import is_running, status_of

_FILES = (RUN_FILE, SUMMARY_FILE, METRICS_FILE)
_DEPTH = 3
"""Maximum depth of the search for runs below a directory."""
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
    """The status in `summary.json`, else `running`, or `cut short` for a run that ended without a summary."""
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
    """`evaluation`, or `training` (mean of the last 100 episodes) if there was no evaluation."""
    estimate: tuple[float, float | None, float | None] | None
    """Estimated discounted return of the policy (weighted sequential doubly robust) and its interval."""
    logged: float | None
    """Mean discounted return of the logged data."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories in `paths` and below them, without duplicates.

    Raises:
        ConfigError: a path does not exist, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give run directories, or a directory of them, such as runs/")
        below = list(_below(path, _DEPTH))
        if not below:
            raise ConfigError(
                f"{path} holds no run (no {RUN_FILE}); give run directories, or a directory of them, such as runs/"
            )
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> FoundRun:
    """Read a run directory; missing, truncated or damaged files are skipped."""
    summary = read_json(path / SUMMARY_FILE)
    return found_run(path, summary, read_metrics(path), read_evaluations(path))


def found_run(
    path: Path, summary: Mapping[str, Any], metrics: Sequence[MetricsRow], evaluations: Sequence[EvaluationRow]
) -> FoundRun:
    """The state and results of a run from the content of its files."""
    config = settings.leaves(read_config(path))
    last, best, source = _returns(metrics, evaluations, summary)
    running = is_running(path)
    counted: Mapping[str, Any] = {} if running else summary
    step, seconds = (_number(metrics[-1].step), _number(metrics[-1].time_s)) if metrics else (None, None)
    speed = _number(counted.get("steps_per_second")) or (step / seconds if step and seconds else None)
    return FoundRun(
        path=path,
        status=status_of(summary, running=running),
        error=None if running else summary.get("error"),
        settings=config,
        ranks=summary.get("world_size") or None,
        steps=int(_number(counted.get("env_steps")) or step or 0),
        total_steps=config.get("total_steps"),
        steps_per_second=speed,
        last_return=last,
        best_return=best,
        return_from=source,
        estimate=_estimate(metrics, summary),
        logged=next((value for line in reversed(metrics) if (value := _number(line.logged))), None),
    )


def _below(path: Path, depth: int) -> Iterator[Path]:
    if any((path / name).is_file() for name in _FILES):
        yield path
    elif path.is_dir() and depth > 0:
        with suppress(OSError):  # no permission
            for inner in sorted(path.iterdir()):
                if inner.is_dir():
                    yield from _below(inner, depth - 1)


def _returns(
    metrics: Sequence[MetricsRow], evaluations: Sequence[EvaluationRow], summary: Mapping[str, Any]
) -> tuple[float | None, float | None, str | None]:
    means = [mean for line in evaluations if (mean := mean_return(line)) is not None]
    if not means and (mean := _number(summary.get("eval_return_mean"))) is not None:
        means = [mean]
    if means:
        return means[-1], max(means), "evaluation"
    means = [mean for line in metrics if (mean := _number(line.training_return)) is not None]
    return (means[-1], max(means), "training") if means else (None, None, None)


def _estimate(
    metrics: Sequence[MetricsRow], summary: Mapping[str, Any]
) -> tuple[float, float | None, float | None] | None:
    found: Any = summary.get("estimates")
    for key in ("estimates", "reward", _ESTIMATOR):
        found = settings.value_of(found, key)
    value = _number(settings.value_of(found, "value"))
    if value is not None:
        return value, _number(settings.value_of(found, "low")), _number(settings.value_of(found, "high"))
    values = (_number(line.estimate) for line in reversed(metrics))
    value = next((value for value in values if value is not None), None)
    return None if value is None else (value, None, None)


def mean_return(row: EvaluationRow) -> float | None:
    """The mean return of an evaluation, without episodes whose return is not a number."""
    values = row.returns
    numbers = [_number(value) for value in cast(list[Any], values)] if isinstance(values, list) else []
    known = [value for value in numbers if value is not None]
    return fmean(known) if known else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a file is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


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
