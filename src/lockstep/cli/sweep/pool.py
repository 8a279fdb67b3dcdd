"""Train the runs of a sweep side by side, each on cores and GPUs of its own, until none is left."""

import math
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.algorithms.replay import ReplayConfig
from lockstep.cli.sweep.folder import SweepFolder
from lockstep.cli.sweep.processes import Process, StartProcess, start_here
from lockstep.cli.sweep.progress import ProgressLines
from lockstep.cli.sweep.scores import score_of
from lockstep.cli.sweep.slots import Slot
from lockstep.cli.sweep.sweep_file import Sweep
from lockstep.cli.sweep.train_command import TrainCommand
from lockstep.cli.sweep.trial import Status, SweepRun, Trial, TrialSource
from lockstep.errors import ConfigError
from lockstep.launch.signals import caught_signals, signal_name
from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import whole_number_of
from lockstep.record.follow import JsonLinesFollower
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE
from lockstep.run import AnyRun, Run

_POLL_S = 0.1
_READ_EVERY_S = 1.0
"""Time between two reads of the files of the runs."""
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@dataclass(slots=True, eq=False)
class _StartedRun:
    """A run that is training: its process, and the files that it writes."""

    sweep_run: SweepRun
    slot: Slot
    process: Process
    metrics: JsonLinesFollower
    evaluations: JsonLinesFollower
    evaluated: int = 0
    """Evaluations that the trial source knows."""
    signalled: bool = False
    """Whether we have asked it to end."""


@dataclass(slots=True, eq=False)
class _TrialState:
    """The runs of a trial, and whether it was given up."""

    runs: list[SweepRun]
    pruned: bool = False


@dataclass(slots=True)
class Pool:
    """The runs of a sweep.

    Attributes:
        runs: all runs that have been chosen so far, in their order.
    """

    sweep: Sweep
    folder: SweepFolder
    command: TrainCommand
    source: TrialSource
    slots: Sequence[Slot]
    lines: ProgressLines
    retry_failed: bool = False
    start_process: StartProcess = start_here
    runs: list[SweepRun] = field(default_factory=list[SweepRun])
    _queue: deque[SweepRun] = field(default_factory=deque[SweepRun])
    _running: list[_StartedRun] = field(default_factory=list[_StartedRun])
    _trials: dict[Trial, _TrialState] = field(default_factory=dict[Trial, _TrialState])
    _read_at: float = 0.0

    def check_started(self) -> None:
        """Raise `ConfigError` if a run of an earlier start has other settings now."""
        for trial in self.source.known():
            for sweep_run in self._runs_of(trial):
                if self.folder.stored_config(sweep_run) is None:
                    continue
                try:
                    run = self.command.run_of(trial.settings, sweep_run.seed)
                except ConfigError:
                    continue  # `_prepare` reports it
                self.folder.check_config(sweep_run, run)

    def run(self) -> int:
        """Train all runs; returns the number of the signal that ended the sweep early, else 0.

        The first SIGINT, SIGTERM, SIGUSR1 or SIGHUP is forwarded to all runs, which write a checkpoint and end; a
        second SIGINT kills them. An error here ends them in the same way.
        """
        try:
            return self._run()
        except BaseException:
            self._stop(self._running, signal.SIGTERM)
            while any(running.process.poll() is None for running in self._running):
                time.sleep(_POLL_S)
            self._collect()  # after all have ended: the error may be one of recording it
            raise

    def _run(self) -> int:
        forwarded = 0
        with caught_signals() as caught:
            while True:
                if caught and not forwarded:
                    forwarded = caught[0]
                    self._stop(self._running, forwarded)
                    self.lines.note(f"{signal_name(forwarded)}: waiting for {len(self._running)} runs to save and end")
                if caught.count(signal.SIGINT) > 1:
                    self._stop(self._running, signal.SIGKILL)
                self._collect()
                if not forwarded:
                    self._fill()
                if not self._running and (forwarded or not self._queue):
                    if forwarded:
                        self._add_ended()
                    return forwarded
                self._read()
                time.sleep(_POLL_S)

    def _fill(self) -> None:
        """Start runs in free slots."""
        while len(self._running) < len(self.slots):
            sweep_run = self._next_run()
            if sweep_run is None:
                return
            taken = [running.slot for running in self._running]
            self._start(sweep_run, next(slot for slot in self.slots if slot not in taken))

    def _next_run(self) -> SweepRun | None:
        """The next run to start; None if there is none, or only such that an earlier start has not ended yet."""
        while not self._queue:
            trial = self.source.next()
            if trial is None:
                return None
            self._add(trial)
        for _ in range(len(self._queue)):
            sweep_run = self._queue.popleft()
            if self.folder.may_start(sweep_run):
                return sweep_run
            self.lines.waiting(sweep_run)
            self._queue.append(sweep_run)
        return None

    def _runs_of(self, trial: Trial) -> list[SweepRun]:
        return [self.folder.sweep_run(trial, seed, retry_failed=self.retry_failed) for seed in self.sweep.seeds]

    def _add_ended(self) -> None:
        """Add the trials whose turn has not come in this start, and which have runs that ended in an earlier one."""
        taken = {trial.name for trial in self._trials}
        for trial in self.source.known():
            runs = [] if trial.name in taken else self._runs_of(trial)
            if any(sweep_run.status != "queued" for sweep_run in runs):
                self.runs += runs

    def _add(self, trial: Trial) -> None:
        """Queue the runs of a trial that have not ended."""
        runs = self._runs_of(trial)
        ended_before = [sweep_run.status != "queued" for sweep_run in runs]
        pruned = any(sweep_run.status == "pruned" for sweep_run in runs)
        for sweep_run in runs:
            if pruned and sweep_run.status == "queued":  # of a seed that was added later
                self._record_pruned(sweep_run)
            elif sweep_run.status == "queued":
                self._prepare(sweep_run)
            else:  # not checked again: what this machine lacks now does not undo a run that has ended
                _note_config(sweep_run, self.folder.load_config(sweep_run))
        self.runs += runs
        self._trials[trial] = _TrialState(runs)
        self._queue.extend(sweep_run for sweep_run in runs if sweep_run.status == "queued")
        for sweep_run, before in zip(runs, ended_before, strict=True):
            self.lines.add(sweep_run, ended_before=before)
        for sweep_run in runs:
            if sweep_run.status == "done":  # an earlier start may have been killed before it reported all
                evaluations = JsonLinesFollower(sweep_run.path / EVALUATIONS_FILE)
                evaluations.update()
                self._report(sweep_run, evaluations.lines)
        if not any(sweep_run.status == "queued" for sweep_run in runs):
            self._complete(trial)

    def _prepare(self, sweep_run: SweepRun) -> None:
        """Write the config of a run; a random combination that cannot work makes it fail."""
        try:
            run = self.command.run_of(sweep_run.trial.settings, sweep_run.seed)
        except ConfigError as error:
            sweep_run.status, sweep_run.reason = "failed", str(error)
            # Checked again by the next start: the sweep file may give it other settings then.
            ended = {"code": ConfigError.exit_code, "status": "failed", "reason": sweep_run.reason, "begun": False}
            self.folder.record("end", sweep_run, **ended)
            return
        _note_config(sweep_run, run)
        self.folder.write_config(sweep_run, run)

    def _start(self, sweep_run: SweepRun, slot: Slot) -> None:
        config = self.folder.config_path(sweep_run)
        resumed = self.folder.is_begun(sweep_run)
        command = self.command.resume(sweep_run.path) if resumed else self.command.start(config, sweep_run.path)
        process = self.start_process(command, slot, self.folder.log_path(sweep_run))
        sweep_run.status = "running"
        self.folder.record("start", sweep_run, pid=process.pid, cores=slot.cores, gpus=slot.gpus, resumed=resumed)
        metrics = JsonLinesFollower(sweep_run.path / METRICS_FILE, keep=2)  # what `ProgressLines.update` reads
        evaluations = JsonLinesFollower(sweep_run.path / EVALUATIONS_FILE)
        self._running.append(_StartedRun(sweep_run, slot, process, metrics, evaluations))
        self.lines.started(sweep_run, resumed=resumed, slot=slot)

    def _collect(self) -> None:
        """Record the runs that have ended."""
        for running in list(self._running):
            code = running.process.poll()
            if code is None:
                continue
            self._running.remove(running)
            sweep_run = running.sweep_run
            sweep_run.status = self._status(running, code)
            if sweep_run.status == "failed":
                sweep_run.reason = self.folder.failure_reason(sweep_run, code)
            self.folder.record("end", sweep_run, code=code, status=sweep_run.status, reason=sweep_run.reason)
            self.lines.ended(sweep_run)
            running.evaluations.update()  # what it wrote since the last read
            self._report_new(running)
            state = self._trials[sweep_run.trial]
            if not any(other.status in ("queued", "running") for other in state.runs):
                self._complete(sweep_run.trial)

    def _status(self, running: _StartedRun, code: int) -> Status:
        if self.folder.is_complete(running.sweep_run) and code == 0:
            return "done"
        if self._trials[running.sweep_run.trial].pruned and running.signalled:
            return "pruned"
        # A launcher's exit code after signal n is 128 + n, that of a process which the signal ended is -n.
        if running.signalled or code in {128 + number for number in _INTERRUPTIONS}:
            return "interrupted"
        return "failed"

    def _complete(self, trial: Trial) -> None:
        """Report the end of a trial to its source, unless it continues after the next start."""
        state = self._trials[trial]
        statuses = {sweep_run.status for sweep_run in state.runs}
        if "interrupted" in statuses:
            return
        scores = [score for sweep_run in state.runs if (score := score_of(sweep_run, self.sweep.metric)) is not None]
        # A run that ended by itself before the signal of pruning came has its score.
        outcome: Status = (
            "pruned" if "pruned" in statuses else "failed" if "failed" in statuses or not scores else "done"
        )
        self.source.complete(trial, scores, outcome)

    def _read(self) -> None:
        """Read what the runs have written, show it, and end trials that the source gives up."""
        now = time.monotonic()
        if now - self._read_at < _READ_EVERY_S:
            return
        self._read_at = now
        for running in self._running:
            running.metrics.update()
            running.evaluations.update()
            self.lines.update(running.sweep_run, running.metrics.lines, running.evaluations.lines)
            self._report_new(running)
        self.lines.draw()

    def _report_new(self, running: _StartedRun) -> None:
        """Report the evaluations that were read since the last call."""
        new, running.evaluated = running.evaluations.lines[running.evaluated :], len(running.evaluations.lines)
        self._report(running.sweep_run, new)

    def _report(self, sweep_run: SweepRun, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Report evaluations of a run to the source, and end what is left of its trial if the source says so."""
        state = self._trials[sweep_run.trial]
        for entry in evaluations:
            mean, step = mean_return(entry.get("returns")), whole_number_of(entry.get("step")) or 0
            if mean is None or state.pruned:
                continue
            prune = self.source.should_prune(sweep_run.trial, step, mean)
            if prune and step < (sweep_run.total_steps or math.inf):
                self._prune(sweep_run.trial)

    def _prune(self, trial: Trial) -> None:
        """End the runs of a trial that have not ended; without such, the trial is complete."""
        state = self._trials[trial]
        state.pruned = any(sweep_run.status in ("queued", "running") for sweep_run in state.runs)
        for sweep_run in state.runs:
            if sweep_run in self._queue:
                self._queue.remove(sweep_run)
                self._record_pruned(sweep_run)
                self.lines.ended(sweep_run)
        self._stop([other for other in self._running if other.sweep_run.trial is trial], signal.SIGTERM)

    def _record_pruned(self, sweep_run: SweepRun) -> None:
        """Record that a run is not started, since its trial was given up."""
        sweep_run.status = "pruned"
        self.folder.record("end", sweep_run, code=None, status="pruned", reason=None)

    def _stop(self, running: Sequence[_StartedRun], number: int) -> None:
        """Send a signal to runs: to their launcher, which ends its ranks; SIGKILL to all of their processes."""
        for one in running:
            if one.signalled and number != signal.SIGKILL:
                continue
            one.signalled = True
            if one.process.poll() is None:
                one.process.send_signal(number)


def _note_config(sweep_run: SweepRun, run: AnyRun | None) -> None:
    """Note how long a run is, and whether it fills a replay; a run on logged data counts no environment steps."""
    if isinstance(run, Run):
        sweep_run.total_steps, sweep_run.has_replay = run.total_steps, isinstance(run.algorithm, ReplayConfig)
