"""`lockstep train --profile N`: record N updates on all ranks in one trace file, for ui.perfetto.dev.

Each rank records its phases and the events of its framework's profiler. Rank 0 merges them into `profile.json.gz`, in
the trace event format of Chrome, with one process per rank on a common clock.
"""

import gzip
import math
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np

from lockstep.distributed.timers import PHASES, RecordedTimers
from lockstep.errors import ConfigError
from lockstep.record.text import counted
from lockstep.run import AnyRun, Run
from lockstep.session.gradient_schedule import updates_before_learning
from lockstep.system.files import write_atomically

PROFILE_FILE = "profile.json.gz"
WARMUP_UPDATES = 3
"""Updates with gradient steps before the recorded ones: caches, memory pools and compiled code are ready then."""

_CLOCK = "lockstep.clock"
_PHASE_THREAD = 0
_THREAD_NAMES = ("thread_name", "thread_sort_index")
_COMPRESSION = 3
_UNUSED_ARGUMENTS = ("External id", "Record function id", "Ev Idx", "_src")

Event = dict[str, Any]


class Tracer(Protocol):
    """The profiler of a framework, for this process."""

    def start(self) -> None:
        """Start recording."""
        ...

    def mark(self, name: str) -> None:
        """Record a short event with this name."""
        ...

    def stop(self) -> list[Event]:
        """Stop; the events since `start` in Chrome's format, their times in microseconds of any clock."""
        ...


class Profile:
    """Records some updates of this rank, and merges the traces of all ranks.

    Args:
        updates: which of this start; a compiled loop of several begins and ends them later.
        timers: of this rank.
        tracer: of this rank.
        gather: `comm.gather_object`.
        name: of this rank in the trace.
        file: written by rank 0, which is the process that `is_writer`.
    """

    def __init__(
        self,
        updates: range,
        timers: RecordedTimers,
        tracer: Tracer,
        gather: Callable[[Any, str], list[Any]],
        *,
        name: str,
        file: Path,
        is_writer: bool,
    ) -> None:
        self._recorded = updates
        self._timers = timers
        self._tracer = tracer
        self._gather = gather
        self._name = name
        self._file = file
        self._is_writer = is_writer
        self._updates = 0
        self._started_at: int | None = None
        self._clock_ns = self._monotonic_ns = 0
        self.is_over = False

    def advance(self, updates: int) -> str | None:
        """Count updates of this start; start and end the recording. *Collective* at its end.

        Returns:
            A line for the user when the file has been written.
        """
        self._updates += updates
        if self.is_over:
            return None
        if self._started_at is None:
            if self._updates >= self._recorded.start:
                self._start()
            return None
        return self.end() if self._updates - self._started_at >= len(self._recorded) else None

    def end(self) -> str | None:
        """Write what has been recorded; *collective*. Called again at the end of training, for short runs."""
        if self.is_over:
            return None
        self.is_over = True
        if self._started_at is None or self._updates == self._started_at:
            return (
                f"note: no profile: training ended after {self._updates} updates, and the first "
                f"{self._recorded.start} of this start, or the first call of a compiled loop, only warm up"
            )
        trace = self._clock_ns, self._stop()
        packed = np.frombuffer(zlib.compress(msgspec.json.encode(trace), _COMPRESSION), np.uint8)
        everyone = cast(list[np.ndarray], self._gather(packed, "profile"))
        if self._is_writer:
            traces: list[tuple[int, list[Event]]] = [
                msgspec.json.decode(zlib.decompress(one.tobytes())) for one in everyone
            ]
            content = gzip.compress(msgspec.json.encode(merged(traces)), _COMPRESSION, mtime=0)
            try:
                write_atomically(self._file, content)
            except OSError as error:
                return f"warning: no profile: {self._file} cannot be written ({error.strerror})"
        recorded = self._updates - self._started_at
        return f"profile of {recorded} updates: {self._file} (open it at https://ui.perfetto.dev)"

    def _start(self) -> None:
        self._tracer.start()
        self._tracer.mark(_CLOCK)  # the first event may take long
        self._clock_ns, self._monotonic_ns = time.time_ns(), time.monotonic_ns()
        self._tracer.mark(_CLOCK)
        self._started_at = self._updates
        self._timers.start_recording()

    def _stop(self) -> list[Event]:
        """The events of this process, under its name, in microseconds since `_clock_ns`."""
        periods = self._timers.stop_recording()
        events = self._tracer.stop()
        marks = [event["ts"] for event in events if event.get("name") == _CLOCK and "ts" in event]
        phases = [
            {"ph": "X", "name": PHASES[phase], "ts": (start - self._monotonic_ns) / 1e3, "dur": (end - start) / 1e3}
            for phase, start, end in periods
        ]
        return process_events(self._name, phases, events, -max(marks, default=0.0))


def check_profile(num_updates: int, run: AnyRun, done_steps: int = 0) -> None:
    """Raise `ConfigError` if the run is too short to be profiled.

    Args:
        num_updates: of `--profile`.
        run: the config.
        done_steps: environment steps before a resumed start.
    """
    if num_updates < 1:
        raise ConfigError(f"--profile {num_updates} must be at least 1 update")
    if not isinstance(run, Run):
        return  # the number of rows is not known yet
    batch = run.num_envs * run.algorithm.num_steps
    updates = math.ceil((run.total_steps - done_steps) / batch)
    idle = updates_before_learning(run, done_steps)
    wanted = idle + WARMUP_UPDATES + num_updates
    if updates < wanted:
        starts = f" (and {idle} before them, until learning_starts, learn nothing)" if idle else ""
        raise ConfigError(
            f"--profile {num_updates}: the run makes {counted(updates, 'update')}, and the first {WARMUP_UPDATES} only "
            f"warm up{starts}; use a smaller N, or total_steps={done_steps + batch * wanted}"
        )


def process_events(name: str, phases: Sequence[Event], events: Sequence[Event], shift: float) -> list[Event]:
    """The events of one process: its phases in a row above its threads, which are numbered from 1.

    Args:
        name: of the process.
        phases: complete events.
        events: of the framework's profiler, with its numbers of processes and threads.
        shift: microseconds to add to the times of `events`.
    """
    found = [_named("process_name", 0, name=name), _named("thread_name", _PHASE_THREAD, name="phases")]
    found += [{**phase, "tid": _PHASE_THREAD} for phase in phases]
    threads: dict[tuple[Any, Any], int] = {}
    for event in events:
        kind = event.get("ph")
        if event.get("name") == _CLOCK or event.get("pid") in ("Spans", "Traces", ""):
            continue
        if kind == "M" and event.get("name") not in _THREAD_NAMES:
            continue
        thread = threads.setdefault((event.get("pid"), event.get("tid")), 1 + len(threads))
        kept = {**event, "tid": thread}
        if kind != "M":
            kept["ts"] = event["ts"] + shift
            given = cast(Event, kept.pop("args", None) or {})
            arguments = {key: value for key, value in given.items() if key not in _UNUSED_ARGUMENTS}
            kept |= {"args": arguments} if arguments else {}
        found.append(kept)
    return found


def merged(traces: Sequence[tuple[int, Sequence[Event]]]) -> dict[str, Any]:
    """The trace of all processes: numbered by rank, in microseconds since the first event.

    Args:
        traces: of each rank the origin of its times, in nanoseconds since 1970, and its events.
    """
    origins = [(origin - traces[0][0]) / 1e3 for origin, _ in traces]
    start = min(
        shift + event["ts"]
        for shift, (_, trace) in zip(origins, traces, strict=True)
        for event in trace
        if event["ph"] != "M"
    )
    events: list[Event] = []
    for rank, (shift, (_, trace)) in enumerate(zip(origins, traces, strict=True)):
        events.append({**_named("process_sort_index", 0, sort_index=rank), "pid": rank})
        for event in trace:
            kept = {**event, "pid": rank}
            if event["ph"] != "M":
                kept["ts"] = round(event["ts"] + shift - start, 3)
            if "id" in event:  # of a flow or an asynchronous event, unique within a process
                kept["id"] = f"{rank}.{event['id']}"
            events.append(kept)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(kind: str, thread: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": kind, "tid": thread, "args": arguments}
