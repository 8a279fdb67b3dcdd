"""The directory of one run. Rank 0 writes the shared files."""

import fcntl
import json
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, cast

from lockstep.config import settings
from lockstep.distributed.arguments import check_number
from lockstep.errors import ConfigError
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import JsonLinesFollower, last_line, read_json
from lockstep.record.json_lines import JsonLines, finite
from lockstep.record.numbers import json_object, row, scalars, seconds, whole
from lockstep.record.refused import is_refused, remove_refused
from lockstep.record.summary import empty_summary
from lockstep.record.tensorboard import TensorBoard, videos_of
from lockstep.record.trackers.interface import evaluation_metrics
from lockstep.run import AnyRun, to_dict
from lockstep.system.files import not_writable, sync_file, write_atomically

_LOCK_TIMEOUT_S = 3.0  # for processes that are ending

RUN_FILE = "run.yaml"
INIT_FROM_FILE = "init_from.txt"
SUMMARY_FILE = "summary.json"
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
RANKS_FILE = "ranks.jsonl"
SWEEP_FILE = "sweep.yaml"
"""In a directory of several runs, which a sweep has started."""


class RunDir:
    """A run directory, open for writing.

    Rank 0 makes it with `create`; others `join` it. A file appears with its first entry. Works without Lockstep's
    training loop: `RunDir.create(None, {"lr": 1e-3}, name="mine")` in your own loop.
    """

    def __init__(self, path: Path | str, made: Sequence[Path] = ()) -> None:
        self.path = path = Path(path)
        """The directory."""
        self._made = made
        self._metrics = JsonLines(path / METRICS_FILE)
        self._evaluations = JsonLines(path / EVALUATIONS_FILE)
        self._ranks = JsonLines(path / RANKS_FILE)
        self._tensorboard = TensorBoard(path / "tensorboard")

    @classmethod
    def create(
        cls,
        path: Path | str | None,
        run: AnyRun | Mapping[str, Any] | None = None,
        name: str | None = None,
        init_from: Path | str | None = None,
    ) -> "RunDir":
        """Make the directory and write `run.yaml`, or leave nothing behind.

        A loop that resumes a run opens its directory with `join`, then calls `rewind`.

        Args:
            path: where; must not exist, be empty, or hold a run that was refused before its first step. `None`: a new
                one below `runs/`.
            run: the config to store: a `Run`, any mapping of plain values, or `None` to store none. Numbers of NumPy
                and paths are stored as plain ones and as text.
            name: start of the default directory's name instead of task and algorithm; what no file name has, as the
                `/` of `ALE/Pong-v5`, becomes `-`.
            init_from: the policy that the run starts from, stored for a resumption before the first checkpoint.

        Raises:
            ConfigError: the directory holds files already or cannot be written, or a value of `run` is not plain.
        """
        config = _config_of(run)
        files: dict[str, str | bytes] = {}
        if init_from is not None:
            files[INIT_FROM_FILE] = os.fsencode(Path(init_from).absolute()) + b"\n"
        if config is not None:
            files[RUN_FILE] = settings.to_yaml(config)
        made: list[Path] = []
        written: list[Path] = []
        try:
            if path is None:
                target = _make_default(_file_name(name or "") or default_name(config), made)
            else:
                target = _make_empty(Path(path), made)
            with _locked(target):
                remove_refused(target)
                _check_empty(target)  # once more: another process may have begun the same run
                for file, content in files.items():
                    write_atomically(target / file, content)
                    written.append(target / file)
        except OSError as error:
            for file in written:
                file.unlink(missing_ok=True)
            for directory in reversed(made):
                with suppress(OSError):
                    directory.rmdir()
            where = path if path is not None else Path("runs").absolute()
            raise ConfigError(
                f"run_dir={where} cannot be written ({error.strerror}); choose another with --run-dir"
            ) from None
        return cls(target, made)

    @classmethod
    def join(cls, path: Path | str) -> "RunDir":
        """Open a directory that another process made."""
        if not Path(path).is_dir():
            raise ConfigError(f"run_dir={path} does not exist")
        return cls(Path(path))

    def write_metrics(self, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Add one line to `metrics.jsonl`, then the same to TensorBoard. Raises `ConfigError` for what is no number."""
        step, numbers = whole(step), scalars(metrics)
        self._metrics.write({"step": step, "time_s": seconds(time_s), **numbers})
        self._metrics.warn_if_moved()
        self._tensorboard.write(step, numbers)

    def write_evaluation(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Add one evaluation, episode by episode, to `evaluations.jsonl`, and its means to TensorBoard.

        Raises `ConfigError` for what are no numbers, and for another number of lengths than of returns.
        """
        step = whole(step)
        of_episodes, steps_of_episodes = row(returns, "returns"), row(lengths, "lengths")
        check_number(len(steps_of_episodes), len(of_episodes), "lengths", "return")
        self._evaluations.write({"step": step, "returns": of_episodes, "lengths": steps_of_episodes})
        self._tensorboard.write(step, evaluation_metrics(of_episodes, steps_of_episodes))

    def write_ranks(
        self,
        step: int,
        time_s: float,
        phases_s: Mapping[str, Sequence[float]],
        memory: Sequence[int],
        device_memory: Sequence[int] = (),
    ) -> None:
        """Add a line to `ranks.jsonl`: the seconds that each rank spent in each phase so far, and its memory in bytes.

        The peak of its GPU's memory is added if a rank computes on a GPU.
        """
        line = {"step": step, "time_s": round(time_s, 6), "phases_s": phases_s, "memory": memory}
        self._ranks.write(line | ({"device_memory": device_memory} if any(device_memory) else {}))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` as a whole: a reader sees the old one or the new one.

        `lockstep runs`, `report` and `watch` read, where they are given, `status` (`finished`, `solved` or `failed`;
        without it the run counts as finished), `error`, `task`, `algo`, `world_size`, `env_steps` and
        `steps_per_second`. Raises `ConfigError` for a value that JSON cannot hold; arrays become lists, paths text.
        """
        _write_json(self.path / SUMMARY_FILE, json_object(summary, "summary"))

    def flush(self) -> None:
        """Write what is buffered for TensorBoard and what waits for space, before a checkpoint that counts on it."""
        self._tensorboard.flush()
        for lines in (self._metrics, self._evaluations, self._ranks):
            lines.flush()

    def sync(self) -> None:
        """Sync the lines so far to the disk, before a checkpoint that counts on them. Any thread may call it."""
        for name in (METRICS_FILE, EVALUATIONS_FILE, RANKS_FILE):
            with suppress(FileNotFoundError):
                sync_file(self.path / name)

    def rewind(self, step: int, evaluated_at: int) -> None:
        """Remove metrics after `step`, evaluations and their videos after `evaluated_at`, and the result."""
        self._metrics.rewind(step)
        self._evaluations.rewind(evaluated_at)
        self._ranks.rewind(step)
        for evaluation, video in videos_of(self.path).items():
            if evaluation > evaluated_at:  # else its pictures would be shown before, and in place of, the new ones
                video.unlink(missing_ok=True)
        self._tensorboard.rewind(step)
        self._repeat_evaluations(step)
        (self.path / SUMMARY_FILE).unlink(missing_ok=True)

    def _repeat_evaluations(self, after: int) -> None:
        """Write kept evaluations after a step to TensorBoard again, which forgets all that it has after the step."""
        evaluations = JsonLinesFollower(self.path / EVALUATIONS_FILE)
        evaluations.update()
        for line in evaluations.lines:
            step = whole_number_of(line.get("step"))
            if step is not None and step > after:
                found = evaluation_metrics(_numbers(line.get("returns")), _numbers(line.get("lengths")))
                self._tensorboard.write(step, found)

    def discard(self) -> None:
        """Remove what `create` made, if the run did not begin. A directory with other files is kept."""
        with suppress(OSError):
            for file in (RUN_FILE, INIT_FROM_FILE):
                (self.path / file).unlink(missing_ok=True)
            for directory in reversed(self._made):
                directory.rmdir()

    def close(self) -> None:
        """Flush and close what is open."""
        self._metrics.close()
        self._evaluations.close()
        self._ranks.close()
        self._tensorboard.close()

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_run_dir(
    run_dir: Path, what: str = "trains this run", timeout_s: float = _LOCK_TIMEOUT_S, setting: str = "run_dir"
) -> int:
    """Lock the run, so that no other process continues it; returns a descriptor that holds the lock until it is closed.

    Raises:
        ConfigError: another process holds the lock; names `what` that does, and the `setting` that chose the folder.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC)
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise ConfigError(
                    f"{setting}={run_dir} is in use: another process {what}; wait for its end, or stop it"
                ) from None
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return descriptor
        else:
            return descriptor


@contextmanager
def _locked(run_dir: Path) -> Generator[None]:
    """Hold the lock of a run."""
    descriptor = lock_run_dir(run_dir, "or a CheckpointManager of this one uses it (make the RunDir first)")
    try:
        yield
    finally:
        os.close(descriptor)


def write_config(run_dir: Path, run: AnyRun) -> None:
    """Update `run.yaml` to the config of a resumed run."""
    text = settings.to_yaml(to_dict(run))
    try:
        if (run_dir / RUN_FILE).read_text(encoding="utf-8") != text:
            write_atomically(run_dir / RUN_FILE, text)
    except OSError as error:
        raise not_writable(run_dir / RUN_FILE, error) from None


def read_init_from(run_dir: Path) -> Path | None:
    """The policy that a run started from, if any."""
    path = run_dir / INIT_FROM_FILE
    try:
        return Path(os.fsdecode(path.read_bytes().removesuffix(b"\n")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None


def mark_failed(
    run_dir: Path, error: str, status: str = "failed", processes: int | None = None, restarts: int | None = None
) -> None:
    """Write to `summary.json` how a run ended, if its ranks could not.

    Other entries are kept. Without a summary, counters and returns are those of the last lines of `metrics.jsonl` and
    `evaluations.jsonl`.
    """
    summary = read_json(run_dir / SUMMARY_FILE) or _summary_from_metrics(run_dir)
    summary |= {"status": status, "error": error}
    devices = read_config(run_dir).get("devices_per_process", 1)  # each of them is a rank
    ranks = processes and processes * devices
    known = {"world_size": ranks, "num_shards": summary.get("num_shards") or ranks, "restarts": restarts}
    summary |= {name: value for name, value in known.items() if value is not None}
    _write_json(run_dir / SUMMARY_FILE, summary)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def _summary_from_metrics(run_dir: Path) -> dict[str, Any]:
    """The summary of a run whose ranks left none, from the last lines of its files."""
    summary = empty_summary(read_config(run_dir))
    last, evaluated = last_line(run_dir / METRICS_FILE), last_line(run_dir / EVALUATIONS_FILE)
    steps, seconds = whole_number_of(last.get("step")) or 0, number_of(last.get("time_s")) or 0.0
    summary |= {
        "env_steps": steps,
        "updates": whole_number_of(last.get("progress/updates")) or 0,
        "episodes": whole_number_of(last.get("progress/episodes")) or 0,
        "wall_time_s": seconds,
        "steps_per_second": steps / seconds if seconds else 0.0,
        "return_mean_100": number_of(last.get("episode/return_mean_100")),
        "phases_s": {name: number_of(last.get(f"time/{name}_s")) or 0.0 for name in summary["phases_s"]},
    }
    if returns := _numbers(evaluated.get("returns")):
        mean, deviation = fmean(returns), pstdev(returns)
        summary |= {"eval_return_mean": mean, "eval_return_std": deviation, "eval_episodes": len(returns)}
    return summary


def _numbers(values: object) -> list[float]:
    """The finite numbers of a list in a file."""
    listed = cast(list[Any], values) if isinstance(values, list) else []
    return [found for value in listed if (found := number_of(value)) is not None]


def read_config(run_dir: Path) -> Mapping[str, Any]:
    """The content of `run.yaml`, unvalidated: other versions and custom loops may have other settings."""
    found: object = None
    with suppress(OSError, UnicodeDecodeError, ConfigError):
        found = settings.parse((run_dir / RUN_FILE).read_text(encoding="utf-8"), RUN_FILE)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def is_own_loop(run_dir: Path) -> bool:
    """Whether a loop of one's own recorded there: its config, if any, is none that Lockstep trains by."""
    config = read_config(run_dir)
    if not config:
        return not (run_dir / RUN_FILE).exists() and (run_dir / METRICS_FILE).exists()
    return "ml_framework" not in config  # Lockstep writes all settings; others may have a task and an algo, too


def default_name(config: Mapping[str, Any] | None) -> str:
    """Task, or folder of logged data, and algorithm; of one's own environment, `path/to/file.py:Class`, the class."""
    data = config.get("data") if config else None  # of a loop of one's own: anything
    named = {**config, "task": Path(data).name} if config and isinstance(data, str) else config
    words = [str(named[key]).rpartition(":")[2] for key in ("task", "algo") if key in named] if named else []
    return _file_name("-".join(words)) or "run"


def _file_name(words: str) -> str:
    """The words as a part of a path: `ALE/Pong-v5` is no folder in a folder."""
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in words).strip("-.")


def _config_of(run: Any) -> dict[str, Any] | None:
    """What `run.yaml` is to hold. Raises `ConfigError` for what is neither settings nor a config."""
    if run is None:
        return None
    if isinstance(run, Mapping):
        return settings.plain(run)
    if not is_dataclass(run):
        raise ConfigError(
            f"run={run!r} must be a Run or a mapping of settings; of parsed command-line arguments give vars(args)"
        )
    return dict(to_dict(cast(AnyRun, run)))


def _make_empty(path: Path, made: list[Path]) -> Path:
    if path.is_dir():
        if not is_refused(path):
            _check_empty(path)
        return path
    if path.exists():
        raise ConfigError(f"run_dir={path} is a file; choose another with --run-dir")
    for parent in reversed(path.absolute().parents):
        if not parent.exists():
            _make(parent, made)
    _make(path, made)
    return path


def _check_empty(path: Path) -> None:
    if any(path.iterdir()):
        raise ConfigError(f"run_dir={path} already holds files; choose another with --run-dir, or remove it")


def _make_default(name: str, made: list[Path]) -> Path:
    parent = Path("runs")
    first = parent / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1, 1000):
        candidate = first if attempt == 1 else first.with_name(f"{first.name}-{attempt}")
        if not parent.exists():
            _make(parent, made)
        # Two runs of the same second: `mkdir` decides. A run that is refused may remove `runs/` meanwhile.
        with suppress(FileExistsError, FileNotFoundError):
            candidate.mkdir()
            made.append(candidate)
            return candidate
    raise ConfigError(f"run_dir={first} and 998 like it exist; choose one with --run-dir")


def _make(path: Path, made: list[Path]) -> None:
    path.mkdir(exist_ok=True)
    made.append(path)
