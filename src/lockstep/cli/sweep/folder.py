"""The directory of a sweep: its runs, their configs and logs, and a record of what was started and how it ended.

| file | content |
|---|---|
| `sweep.yaml` | the sweep, by which it is continued |
| `events.jsonl` | one object per start and end of a run |
| `configs/NAME.yaml` | the complete config of a run |
| `logs/NAME.log` | what a run printed |
| `NAME/` | the run directory |
| `results.json` | scores of all runs, and their aggregates |
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.sweep.sweep_file import Sweep, dump_sweep
from lockstep.cli.sweep.trial import SweepRun, Trial
from lockstep.errors import ConfigError
from lockstep.launch.signals import signal_name
from lockstep.record.failure import read_failure
from lockstep.record.follow import JsonLinesFollower, read_end, read_json
from lockstep.record.json_lines import JsonLines
from lockstep.record.partial_files import remove_partial_files
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE, SWEEP_FILE, lock_run_dir
from lockstep.record.run_status import COMPLETE, is_running
from lockstep.system.files import write_atomically

if TYPE_CHECKING:
    from lockstep.run import AnyRun

EVENTS_FILE = "events.jsonl"
RESULTS_FILE = "results.json"
_ERROR = "lockstep: error: "
_LOG_END_BYTES = 1 << 14


class SweepFolder:
    """The directory of a sweep, open for writing by one process.

    Attributes:
        path: the directory, absolute.
        shown: its name for messages, relative to where the command was started.

    Raises:
        ConfigError: it has other files, cannot be written, or another process has it open.
    """

    def __init__(self, path: Path, sweep: Sweep, shown: str) -> None:
        self.path, self.shown = path, shown
        if path.exists() and not (path / SWEEP_FILE).exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"run_dir={path} already holds files and no sweep; choose another with --run-dir")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_run_dir(path, "runs this sweep", timeout_s=0.0)
            self._before = (path / SWEEP_FILE).read_bytes() if (path / SWEEP_FILE).exists() else None
            write_atomically(path / SWEEP_FILE, dump_sweep(sweep))
        except OSError as error:
            raise ConfigError(
                f"run_dir={path} cannot be written ({error.strerror}); choose another with --run-dir"
            ) from None
        self._ends = self._read_ends()
        self._events = JsonLines(path / EVENTS_FILE)

    def close(self) -> None:
        """Release the directory."""
        self._events.close()
        os.close(self._lock)

    def __enter__(self) -> "SweepFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; a start that is refused leaves the sweep as it was."""
        if self._before is not None and kind is not None and issubclass(kind, ConfigError):
            write_atomically(self.path / SWEEP_FILE, self._before)
        self.close()

    def sweep_run(self, trial: Trial, seed: int, *, retry_failed: bool) -> SweepRun:
        """The run of a trial with a seed, in the state that an earlier start left it."""
        name = f"{trial.name}/seed_{seed}" if trial.name else f"seed_{seed}"
        sweep_run = SweepRun(trial, seed, name, self.path / name)
        end = self._ends.get(name, {})
        tried_again = retry_failed or not end.get("begun", True)
        if self.is_complete(sweep_run):
            sweep_run.status = "done"
        elif end.get("status") == "pruned" or (end.get("status") == "failed" and not tried_again):
            sweep_run.status, sweep_run.reason = end["status"], end.get("reason")
        return sweep_run

    def is_complete(self, sweep_run: SweepRun) -> bool:
        """Whether a run has ended successfully."""
        return read_json(sweep_run.path / SUMMARY_FILE).get("status") in COMPLETE and not is_running(sweep_run.path)

    def config_path(self, sweep_run: SweepRun) -> Path:
        """The file of the config of a run."""
        return self.path / "configs" / f"{sweep_run.name}.yaml"

    def stored_config(self, sweep_run: SweepRun) -> Path | None:
        """The config of a run of an earlier start, or where that is gone, the one in its run directory."""
        return next((path for path in (self.config_path(sweep_run), sweep_run.path / RUN_FILE) if path.exists()), None)

    def check_config(self, sweep_run: SweepRun, run: "AnyRun") -> None:
        """Raise `ConfigError` if the run was started with other settings; paths are compared as absolute ones."""
        from lockstep.preflight.setting_paths import with_absolute_paths
        from lockstep.run import load

        stored = self.stored_config(sweep_run)
        if stored is None:
            return
        before, run = (with_absolute_paths(one) for one in (load(stored), run))
        if before != run:
            raise ConfigError(
                f"{sweep_run.name} of {self.path} has {_difference(before, run)} now; the runs of a sweep keep their "
                "settings: choose another directory with --run-dir"
            )

    def load_config(self, sweep_run: SweepRun) -> "AnyRun | None":
        """The config of a run of an earlier start; None if it is gone, or no config any more."""
        from lockstep.run import load

        try:
            return None if (stored := self.stored_config(sweep_run)) is None else load(stored)
        except ConfigError:
            return None

    def write_config(self, sweep_run: SweepRun, run: "AnyRun") -> None:
        """Write the config of a run that has none."""
        from lockstep.run import dump

        path = self.config_path(sweep_run)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, dump(run))

    def may_start(self, sweep_run: SweepRun) -> bool:
        """Whether no process of an earlier start still trains the run."""
        return not is_running(sweep_run.path)

    def is_begun(self, sweep_run: SweepRun) -> bool:
        """Whether the run has a directory to resume; removes the remains of one that was killed before it had one."""
        if (sweep_run.path / RUN_FILE).is_file():
            return True
        remove_partial_files(sweep_run.path)
        return False

    def log_path(self, sweep_run: SweepRun) -> Path:
        """The file for what a run prints."""
        path = self.path / "logs" / f"{sweep_run.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def record(self, event: str, sweep_run: SweepRun, **more: Any) -> None:
        """Append an event of a run; on a full disk it waits for the next one."""
        self._events.write({"time": round(time.time(), 3), "event": event, "run": sweep_run.name, **more})

    def failure_reason(self, sweep_run: SweepRun, code: int) -> str:
        """Why a run ended with this exit code, in one line."""
        return failure_reason(sweep_run.path, self.log_path(sweep_run), code)

    def _read_ends(self) -> dict[str, dict[str, Any]]:
        """The last end of each run that was not started again after it."""
        events = JsonLinesFollower(self.path / EVENTS_FILE)
        events.update()
        ends: dict[str, dict[str, Any]] = {}
        for entry in events.lines:
            name = str(entry.get("run"))
            if entry.get("event") == "end":
                ends[name] = entry
            else:
                ends.pop(name, None)
        return ends


def failure_reason(run_dir: Path, log: Path, code: int) -> str:
    """Why a run ended with this exit code, in one line: from its summary, its first failure, or its log."""
    found = None
    if code != ConfigError.exit_code:  # a start that was refused left the files of the one before it
        found = read_json(run_dir / SUMMARY_FILE).get("error") or (read_failure(run_dir) or {}).get("message")
    if not found and code < 0:
        found = f"ended by {signal_name(-code)}"
    found = found or _last_error(log) or f"exit code {code}; see {log}"
    return " ".join(str(found).removeprefix(_ERROR).split())


def _difference(before: "AnyRun", now: "AnyRun") -> str:
    """`learning_rate=0.001 instead of 0.01`, the first setting that differs."""
    from lockstep.config.settings import leaves
    from lockstep.run import to_dict

    old, new = leaves(to_dict(before)), leaves(to_dict(now))
    name = next(name for name in {**new, **old} if old.get(name) != new.get(name))
    return f"{name}={new.get(name)} instead of {old.get(name)}"


def _last_error(log: Path) -> str | None:
    """The last error that a run printed, else its last line."""
    lines = [line for line in read_end(log, _LOG_END_BYTES).decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    return (errors or lines or [None])[-1]
