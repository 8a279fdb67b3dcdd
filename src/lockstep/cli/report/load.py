"""Load measurements for the cost model from run directories and from files of `benchmarks/network.py`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.algorithms.replay import ReplayConfig
from lockstep.cli.report.fit import Point
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import Layout, Work
from lockstep.record.follow import read_json
from lockstep.record.run_dir import METRICS_FILE, RUN_FILE, SUMMARY_FILE
from lockstep.run import Run, load, to_dict

FEWEST_UPDATES = 10
"""Minimum number of updates between the first and last log line of a run."""

_PREFLIGHT_FILE, _POLICY_FILE = "preflight.json", "policy.safetensors"
_PARTS = (("env", "act"), ("learn", "other"), ("sync", "wait"))
_EXCLUDED = ("evaluate", "checkpoint")
# Settings that may differ between runs of the same costs.
_FREE = ("seed", "num_envs", "total_steps", "num_shards", "stop_return", "stop_when_solved", "non_finite", "trackers")
_FREE_ENDINGS = ("_every", "_episodes", "_greedy", "_s", "num_checkpoints")
_FREE_OF_ALGORITHM = (
    *("num_steps", "num_epochs", "num_minibatches"),
    *("updates_per_step", "batch_size", "learning_starts", "epsilon_start", "epsilon_end", "epsilon_steps"),
)


def load_points(paths: Sequence[Path]) -> tuple[list[Point], list[str]]:
    """The measurements in run directories and JSON files, and notes on runs that are skipped or incomplete.

    Raises:
        ConfigError: a path holds no measurement, or the runs differ in more than counts.
    """
    points, notes = list[Point](), list[str]()
    for path in paths:
        if path.is_dir():
            point, note = _of_run(path)
            points += [point] if point else []
            notes += [note] if note else []
        elif path.is_file():
            points += _of_file(path)
        else:
            raise ConfigError(f"{path} does not exist; give run directories, or a file of benchmarks/network.py")
    subjects = {point.subject: point for point in points}
    if len(subjects) > 1:
        one, other = [(p.name, s) for s, p in subjects.items()][:2]
        raise ConfigError(
            f"{one[0]} and {other[0]} do not cost the same ({_difference(one[1], other[1])}); give runs of one task, "
            "network and algorithm, which may differ in ranks, hosts and num_envs"
        )
    return points, notes


def seconds_per_update(run_dir: Path, learning_starts: int = 0) -> tuple[float, tuple[float, float, float], float]:
    """Seconds per update, in total and by part, and the number of updates measured.

    Measured from the first line of `metrics.jsonl` to the last, without evaluations and checkpoints. The time before
    the first line, with compilation and warm-up, does not count, nor do steps before `learning_starts`.
    """
    lines = lines_of_learning(run_dir, learning_starts)
    if len(lines) < 2:
        return 0.0, (0.0, 0.0, 0.0), 0.0
    first, last = lines[0], lines[-1]
    updates: float = last["progress/updates"] - first["progress/updates"]

    def seconds(phases: Sequence[str]) -> float:
        return sum(last[f"time/{phase}_s"] - first[f"time/{phase}_s"] for phase in phases)

    whole = last["time_s"] - first["time_s"] - seconds(_EXCLUDED)
    rollout, learning, messages = (seconds(phases) / max(updates, 1.0) for phases in _PARTS)
    return whole / max(updates, 1.0), (rollout, learning, messages), updates


def lines_of_learning(run_dir: Path, learning_starts: int) -> list[dict[str, Any]]:
    """The log lines of a run from `learning_starts` on, without any that was cut off when its writer was killed."""
    lines = list[dict[str, Any]]()
    for written in (run_dir / METRICS_FILE).read_bytes().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(written))
    return [line for line in lines if line["step"] >= learning_starts]


def _of_run(run_dir: Path) -> tuple[Point | None, str | None]:
    """The measurement in a run directory, and a note on what is missing or assumed."""
    try:
        run = load(run_dir / RUN_FILE)
    except ConfigError as error:
        return None, f"{run_dir}: not used: {error}"
    if not isinstance(run, Run):
        return None, f"{run_dir}: not used: it learned from a log, and the model knows the costs of environments"
    try:
        return _measured(run_dir, run)
    except ConfigError as error:
        return None, f"{run_dir}: not used: {error}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None, f"{run_dir}: not used: it has no {SUMMARY_FILE} or no metrics.jsonl that can be read"


def _measured(run_dir: Path, run: Run) -> tuple[Point | None, str | None]:
    """As `_of_run`; raises any error for damaged files."""
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text(encoding="utf-8"))
    starts = run.algorithm.learning_starts if isinstance(run.algorithm, ReplayConfig) else 0
    seconds, parts, updates = seconds_per_update(run_dir, starts)
    if summary["status"] == "failed" or summary["resumed_from"]:
        return None, f"{run_dir}: not used: it {'failed' if summary['status'] == 'failed' else 'was resumed'}"
    if updates < FEWEST_UPDATES:
        return None, (
            f"{run_dir}: not used: {updates:.0f} updates between its log lines, at least {FEWEST_UPDATES} are needed; "
            "train longer or lower log_every"
        )
    preflight = read_json(run_dir / _PREFLIGHT_FILE)
    layout = _layout(summary, preflight)
    note = f"{run_dir}: the cores of its hosts are not known: taken as enough" if layout.cores is None else None
    if layout.hosts > 1 and not layout.round_trip_s:
        return None, f"{run_dir}: not used: {_PREFLIGHT_FILE} does not say how far apart its {layout.hosts} hosts are"
    parameters = preflight.get("num_parameters")
    policy = run_dir / _POLICY_FILE
    num_bytes = 4 * parameters if parameters else policy.stat().st_size if policy.exists() else 0
    work = Work.of(run, num_bytes, summary["num_shards"] if run.num_shards else None)
    point = Point(str(run_dir), work, layout, seconds, parts, subject=_subject(run))
    return point, note


def _layout(summary: Mapping[str, Any], preflight: Mapping[str, Any]) -> Layout:
    """The ranks, hosts and network of a run; the round trip is twice the time of a small all-reduce."""
    hosts: list[dict[str, Any]] = preflight.get("hosts") or []
    names = {rank["host"] for rank in summary["ranks"]}
    cores = [host["cores"] for host in hosts if host.get("cores")]
    small: dict[str, float] = preflight.get("small") or {}
    large: dict[str, float] = preflight.get("large") or {}
    layout = Layout(ranks=summary["world_size"], hosts=len(hosts) or len(names), cores=min(cores, default=None))
    if layout.hosts == 1:
        return layout
    return replace(layout, round_trip_s=2 * small.get("seconds", 0.0), bandwidth=large.get("bytes_per_s"))


def _subject(run: Run) -> str:
    """The settings that decide the costs: all but seeds, periods and the counts in the model."""
    tree = to_dict(run)
    kept = {k: v for k, v in tree.items() if k not in _FREE and not k.endswith(_FREE_ENDINGS)}
    kept["algorithm"] = {k: v for k, v in tree["algorithm"].items() if k not in _FREE_OF_ALGORITHM}
    return settings.to_yaml(kept)


def _difference(one: str, other: str) -> str:
    pairs = zip(one.splitlines(), other.splitlines(), strict=False)
    mine, theirs = next(((a, b) for a, b in pairs if a != b), (one, other))
    return f"{mine.strip()} and {theirs.strip()}"


def _of_file(path: Path) -> list[Point]:
    """The points of a JSON file `{"points": [...]}`."""
    try:
        listed: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["points"]
        return [_of_entry(entry, f"{path}, point {number}") for number, entry in enumerate(listed)]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a file of points ({error}); benchmarks/network.py --points writes one"
        ) from None
    except KeyError as error:
        raise ConfigError(f"{path}: a point has no {error}; benchmarks/network.py --points writes them") from None


def _of_entry(entry: Mapping[str, Any], where: str) -> Point:
    parts = tuple(float(entry[name]) for name in ("rollout_s", "learning_s", "messages_s") if name in entry)
    epochs, seconds = int(entry["num_epochs"]), float(entry["seconds"])
    if not seconds > 0:
        raise ConfigError(f"{where}: seconds={seconds} must be greater than 0")
    return Point(
        str(entry.get("name", where)),
        Work(
            num_envs=int(entry["num_envs"]),
            num_steps=int(entry["num_steps"]),
            replay_ratio=epochs,
            gradient_steps=epochs * int(entry["num_minibatches"]),
            num_bytes=int(entry["num_bytes"]),
            num_shards=entry.get("num_shards"),
        ),
        Layout(
            ranks=int(entry["ranks"]),
            hosts=int(entry["hosts"]),
            cores=entry.get("cores"),
            round_trip_s=float(entry.get("round_trip_s", 0.0)),
            bandwidth=entry.get("bandwidth"),
        ),
        seconds,
        (parts[0], parts[1], parts[2]) if len(parts) == 3 else None,
        subject=str(entry.get("subject", "")),
    )
