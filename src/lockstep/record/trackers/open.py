"""Find the trackers that a run names, and send them what rank 0 records."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lockstep.config import settings
from lockstep.envs.load import load_object, portable
from lockstep.errors import ConfigError
from lockstep.record.follow import read_json
from lockstep.record.trackers import background
from lockstep.record.trackers.background import BackgroundCalls
from lockstep.record.trackers.code_version import code_version
from lockstep.record.trackers.interface import TrackedRun, Tracker
from lockstep.run import AnyRun, to_dict
from lockstep.system.files import write_atomically

IDS_FILE = "trackers.json"
_KNOWN = {
    "wandb": "lockstep.record.trackers.wandb_tracker:WandbTracker",
    "mlflow": "lockstep.record.trackers.mlflow_tracker:MlflowTracker",
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise `ConfigError` for a tracker whose package is not installed, or a class that cannot be imported."""
    for name in names:
        if name not in _KNOWN:
            load_object(name, "trackers")
        elif find_spec(name) is None:
            raise ConfigError(f"trackers={name} needs the package {name}: pip install 'lockstep-rl[{name}]'")


class Trackers:
    """The trackers of a run, each in a thread of its own.

    Args:
        names: of the trackers; none on other ranks than 0.
        run: the config.
        run_dir: the run directory; the ids of the tracker's runs are kept in its `trackers.json`.
        warn: prints a warning; called from any thread.
    """

    def __init__(self, names: Sequence[str], run: AnyRun, run_dir: Path, warn: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._warn = warn
        self._lock = threading.Lock()
        self._ids = read_json(run_dir / IDS_FILE)
        self._sent = set(self._videos())  # those of an earlier start of a resumed run
        self._running: list[tuple[Tracker, BackgroundCalls]] = []
        self._framework = run.ml_framework
        config = settings.leaves(to_dict(run))
        for name in names:
            try:
                tracker: Tracker = load_object(_KNOWN.get(name, name), "trackers")()
            except Exception as error:
                warn(f"trackers={name} cannot be used ({type(error).__name__}: {error}); training continues without it")
                continue
            self._running.append((tracker, BackgroundCalls(portable(name), self._starter(tracker, name, config), warn)))

    def rewound(self) -> None:
        """Send videos again that were removed, once they are there: the run directory has been rewound."""
        self._sent.intersection_update(self._videos())

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send one line of metrics, without numbers that are not finite."""
        kept = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._submit(lambda tracker: tracker.metrics(step, kept))

    def evaluation(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Send one evaluation, and videos that are new."""
        self._submit(lambda tracker: tracker.evaluation(step, list(returns), list(lengths)))
        self._send_videos(step)

    def finish(self, summary: Mapping[str, Any], files: Sequence[str]) -> None:
        """Send the result and these files of the run directory."""
        copy = dict(summary)
        step = copy["env_steps"]
        self._send_videos(step)
        for path in (self._run_dir / name for name in files):
            if path.exists():
                self._submit(lambda tracker, path=path: tracker.file(path, step))
        self._submit(lambda tracker: tracker.finish(copy))

    def close(self, timeout_s: float = background.CLOSE_TIMEOUT_S) -> None:
        """Wait for what was not sent yet, at most `timeout_s` in all."""
        until = time.monotonic() + timeout_s
        for tracker, calls in self._running:
            if not calls.close(max(until - time.monotonic(), 0.0)) and hasattr(tracker, "abandon"):
                with suppress(Exception):  # of a user's class: the run has ended well
                    tracker.abandon()
        self._running.clear()

    def _submit(self, call: Callable[[Tracker], object]) -> None:
        for tracker, calls in self._running:
            calls.submit(lambda tracker=tracker: call(tracker))

    def _send_videos(self, step: int) -> None:
        for video in self._videos():
            if video not in self._sent:
                self._sent.add(video)
                self._submit(lambda tracker, video=video: tracker.file(video, step))

    def _videos(self) -> list[Path]:
        return sorted((self._run_dir / "videos").glob("*.gif"))

    def _starter(self, tracker: Tracker, name: str, config: Mapping[str, Any]) -> Callable[[], None]:
        """The first call: start the tracker's run and keep its id."""
        key = portable(name)

        def start() -> None:
            directory = self._run_dir.absolute()
            earlier = self._ids.get(key)
            tracked = TrackedRun(
                name=directory.name, directory=directory, config=config, code=code_version(self._framework), id=earlier
            )
            self._keep_id(key, tracker.start(tracked))

        return start

    def _keep_id(self, key: str, number: str) -> None:
        """Write the ids, from which a resumed run continues."""
        with self._lock:
            self._ids[key] = number
            try:
                write_atomically(self._run_dir / IDS_FILE, json.dumps(self._ids, indent=2) + "\n")
            except OSError as error:
                self._warn(
                    f"{IDS_FILE} cannot be written ({error.strerror}); once resumed, this run will be another one in "
                    f"trackers={key}"
                )
