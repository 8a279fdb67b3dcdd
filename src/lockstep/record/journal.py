"""The records of a run: metrics, evaluations, console and summary, which is written whatever ends the run."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.algorithms.replay import ReplayConfig
from lockstep.distributed.timers import PHASES
from lockstep.distributed.watch import Observed
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.record.console import Console, speed_gives_eta
from lockstep.record.episodes import WIDTH, RecentEpisodes, RecentReturns
from lockstep.record.failure import archive_failure, read_failure, record_failure
from lockstep.record.partial_files import remove_partial_files
from lockstep.record.pending_run import PendingRun
from lockstep.record.progress import Progress
from lockstep.record.rank_log import RankLog
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE, RunDir, mark_failed, write_config
from lockstep.record.summary import empty_summary, stopped_by
from lockstep.record.text import counted, significant
from lockstep.record.trackers.background import CLOSE_TIMEOUT_S
from lockstep.record.trackers.open import Trackers
from lockstep.run import AnyRun, OfflineRun
from lockstep.system.files import shown_path
from lockstep.system.memory import resident_memory
from lockstep.world import World

_EVALUATED = ("eval_return_mean", "eval_return_std", "eval_episodes", "solved_at_step", "solved_at_s")


class Journal:
    """Run directory, console and summary of one rank; only rank 0 writes what is shared.

    Attributes:
        path: the run directory.
        summary: the content of `summary.json`.
        episodes: recent episodes of each local shard.
        evaluated_at: step of the last evaluation, -1 before the first.
        evaluation_due: an evaluation was due and was skipped because of a signal.
        estimates: metrics of the newest estimate from logged data, for the next log line.
    """

    def __init__(
        self,
        run: AnyRun,
        world: World,
        run_dir: RunDir,
        *,
        started_by_lockstep: bool,
        exists: bool = False,
        lock: int | None = None,
        printed: Sequence[str] = (),
    ) -> None:
        self.path, self.summary = run_dir.path, empty_summary(run)
        self.summary |= {"world_size": world.size * run.devices_per_process, "num_shards": world.num_shards}
        self.episodes = [RecentEpisodes() for _ in world.shards]
        self.evaluated_at = -1
        self.evaluation_due = False
        self.estimates: dict[str, float] = {}
        self._run = run
        self._world = world
        self._run_dir = run_dir
        self._begun = not exists  # until then the run directory is that of an earlier start
        self._lock = lock
        self._timeout_s = run.timeout_s
        self._unit = "rows" if isinstance(run, OfflineRun) else "steps"
        self._log = None if started_by_lockstep else RankLog(run_dir.path, world.rank, printed)
        self._console = Console() if world.rank == 0 else None
        self._recent = RecentReturns()
        self._sums = np.zeros(3)
        self._logged = (0, 0.0)
        self._best = self._best_before = -np.inf
        self._skips_reported = False
        self._has_replay = isinstance(run.algorithm, ReplayConfig)
        self._last_metrics: Mapping[str, float] = {}
        self._trackers = Trackers(run.trackers if world.rank == 0 else (), run, run_dir.path, self.warn)

    @classmethod
    def open(
        cls,
        run: AnyRun,
        world: World,
        broadcast: Callable[[Any], Any],
        pending: PendingRun,
        *,
        exists: bool,
    ) -> "Journal":
        """Make the run directory on rank 0, or raise on every rank; collective.

        `broadcast` broadcasts rank 0's value; `exists`: the run has been started before. Where our own launcher started
        this process, it has made and locked the directory, and keeps the logs of ranks.
        """
        path = pending.path
        if pending.started_by_lockstep:
            assert path is not None
            pending.end_phase()
            return cls(run, world, RunDir.join(path), started_by_lockstep=True, exists=exists)
        answer: dict[str, str] = {}
        run_dir: RunDir | None = None
        lock: int | None = None
        if world.rank == 0:
            try:
                run_dir = RunDir.join(path) if exists and path else pending.run_dir(run)
                lock = pending.take_lock(run_dir.path)
                if exists:
                    archive_failure(run_dir.path)
                    remove_partial_files(run_dir.path)
                answer = {"path": str(run_dir.path.absolute())}
            except (ConfigError, OSError) as error:
                answer = {"error": str(error)}
        answer = broadcast(answer)
        if "error" in answer:
            raise ConfigError(answer["error"])
        if run_dir is None:
            Path(answer["path"]).mkdir(parents=True, exist_ok=True)  # a host that does not share rank 0's disk
            run_dir = RunDir.join(answer["path"])
        pending.end_phase()
        return cls(run, world, run_dir, started_by_lockstep=False, exists=exists, lock=lock, printed=pending.printed)

    @property
    def logged_at(self) -> int:
        """Step of the last log line, 0 before the first."""
        return self._logged[0]

    def add_episodes(self, sums: np.ndarray) -> None:
        """Add the global number, returns and lengths of episodes that ended in a rollout."""
        self._sums += sums

    def rows(self, phases: dict[str, float], elapsed_s: float, device_memory: int = 0) -> np.ndarray:
        """`[K, ...]` the rows of the local shards for a log line; the first also has this rank's clocks and memory.

        Args:
            phases: seconds that this rank has spent in each phase.
            elapsed_s: seconds of training.
            device_memory: the most memory of its GPU that this rank has used so far, in bytes; 0 on a CPU.
        """
        rows = np.zeros((len(self.episodes), WIDTH + 4 + len(PHASES)))
        for row, episodes in zip(rows, self.episodes, strict=True):
            row[:WIDTH] = episodes.row()
        rows[0, WIDTH:] = [1.0, elapsed_s, resident_memory(), device_memory, *phases.values()]
        return rows

    def log(self, progress: Progress, metrics: dict[str, float], rows: np.ndarray) -> None:
        """Add the rows of all shards; rank 0 writes a line of metrics and shows progress."""
        self._recent.merge(rows[:, :WIDTH])
        clocks = rows[rows[:, WIDTH] > 0, WIDTH + 1 :]
        elapsed_s, phases = float(clocks[:, 0].max()), clocks[:, 3:]
        memory, device_memory = clocks[:, 1:3].astype(int).T.tolist()
        steps, before = self._logged
        self._logged = (progress.env_steps, elapsed_s)
        if self._sums[0]:
            metrics["episode/return_mean"] = float(self._sums[1] / self._sums[0])
            metrics["episode/length_mean"] = float(self._sums[2] / self._sums[0])
        metrics["episode/count"] = float(self._sums[0])
        self._sums[:] = 0
        if (recent := self._recent.mean()) is not None:
            metrics["episode/return_mean_100"] = recent
        self._report_skips(progress.env_steps, metrics)
        metrics |= self.estimates
        self.estimates = {}
        metrics["progress/updates"] = float(progress.updates)
        metrics["progress/episodes"] = float(progress.episodes)
        metrics["time/steps_per_second"] = (progress.env_steps - steps) / max(elapsed_s - before, 1e-9)
        for i, name in enumerate(PHASES):
            metrics[f"time/{name}_s"] = float(phases[:, i].mean())
            metrics[f"time/{name}_s_max"] = float(phases[:, i].max())
        if self._console is not None:
            self._run_dir.write_metrics(progress.env_steps, elapsed_s, metrics)
            of_ranks = {name: phases[:, i].round(3).tolist() for i, name in enumerate(PHASES)}
            self._trackers.metrics(progress.env_steps, {"time_s": elapsed_s, **metrics})
            self._run_dir.write_ranks(progress.env_steps, elapsed_s, of_ranks, memory, device_memory)
            self._console.progress(
                steps=progress.env_steps,
                total_steps=progress.total_steps,
                steps_per_second=metrics["time/steps_per_second"],
                return_mean=recent,
                unit=self._unit,
                device_memory=max(device_memory),
                eta=speed_gives_eta(metrics, self._last_metrics, has_replay=self._has_replay),
            )
        self._last_metrics = metrics

    def _report_skips(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warn once if no gradient step since the last log line was taken: networks that diverged stay like this."""
        if metrics.get("optim/skipped") == 1.0 and not self._skips_reported:
            self._skips_reported = True
            self.warn(
                f"every gradient step before step {step} was left out (non_finite=skip), so that nothing is learned; "
                "stop the run, and try a smaller learning_rate"
            )

    def reaches(self, stop_return: float | None) -> bool:
        """Whether the last evaluation reached a return, which solves the task.

        False if there is no such return, or no evaluation yet.
        """
        mean: float | None = self.summary["eval_return_mean"]
        return stop_return is not None and mean is not None and mean >= stop_return

    def record_evaluation(
        self,
        progress: Progress,
        returns: Sequence[float],
        lengths: Sequence[int],
        stop_return: float | None,
        elapsed_s: float,
    ) -> bool:
        """Record the returns and lengths of an evaluation's episodes. Returns whether it is the best so far."""
        mean = float(np.mean(returns))
        self.evaluated_at, self.evaluation_due = progress.env_steps, False
        self.summary["eval_return_mean"] = mean
        self.summary["eval_return_std"] = float(np.std(returns))
        self.summary["eval_episodes"] = len(returns)
        solved = self.reaches(stop_return)
        if solved and self.summary["solved_at_step"] is None:
            self.summary |= {"solved_at_step": progress.env_steps, "solved_at_s": elapsed_s}
        if self._console is not None:
            self._run_dir.write_evaluation(progress.env_steps, returns, lengths)
            self._trackers.evaluation(progress.env_steps, returns, lengths)
            self._console.line(
                f"evaluation at step {progress.env_steps}: return {significant(mean)} "
                f"over {counted(len(returns), 'episode')}" + (f", solved (>= {stop_return:g})" if solved else "")
            )
        best = mean > self._best
        if best:
            self._best, self._best_before = mean, self._best
        return best

    def withdraw_best(self) -> None:
        """After an evaluation that is the best so far: its policy could not be written, and the one before stays."""
        self._best = self._best_before

    def continue_best(self, return_mean: float | None) -> None:
        """After a resumption, take the return of the best policy on the disk as the best.

        Args:
            return_mean: minus infinity if there is no such policy: the next evaluation is the best; None: its file does
                not tell, and the return of the checkpoint stays.
        """
        if return_mean is not None:
            self._best = return_mean

    def judge_again(
        self, progress: Progress, stop_return: float | None, before: float | None, elapsed_s: float
    ) -> None:
        """After a resumption, decide whether the run counts as solved by a `stop_return` that was `before` until now.

        Which of the earlier evaluations reached it is not known: if the last one did, the run is solved from here on.
        """
        if before is not None and (stop_return is None or stop_return > before):
            self.summary |= {"solved_at_step": None, "solved_at_s": None}
        if self.reaches(stop_return) and self.summary["solved_at_step"] is None:
            self.summary |= {"solved_at_step": progress.env_steps, "solved_at_s": elapsed_s}

    def finish(
        self, progress: Progress, status: str, signal: int, elapsed_s: float, ranks: list[dict[str, Any]]
    ) -> None:
        """Record the end of a run without an error; `ranks` has the results of each rank."""
        phases = [rank.pop("phases_s") for rank in ranks]
        for rank, spent in zip(ranks, phases, strict=True):
            rank["wait_s"] = spent["wait"]
        self.summary |= {
            "status": status,
            "error": stopped_by(signal) if signal else None,
            "devices": [rank["device"] for rank in ranks],
            "params_fingerprint": ranks[0]["params_fingerprint"],
            "phases_s": {name: float(np.mean([spent[name] for spent in phases])) for name in PHASES},
            "ranks": ranks,
        }
        self._count(progress, elapsed_s)
        if self._console is not None:
            self._run_dir.write_summary(self.summary)
            self._trackers.finish(self.summary, (RUN_FILE, SUMMARY_FILE))
            self._print_result(ranks)

    def interrupt(self, progress: Progress, signal: int, elapsed_s: float) -> None:
        """Record the end of a run by a signal that came before the ranks could agree to stop: without their results."""
        self.summary |= {"status": "interrupted", "error": stopped_by(signal)}
        self._count(progress, elapsed_s)
        if self._console is not None:
            if self._begun:
                self._run_dir.write_summary(self.summary)
                self._trackers.finish(self.summary, (RUN_FILE, SUMMARY_FILE))
            self._print_result([])

    def state(self) -> dict[str, Any]:
        """The state that all ranks share and the next log line needs."""
        return {
            "recent": self._recent.state(),
            "sums": self._sums,
            "logged": list(self._logged),
            "evaluated_at": self.evaluated_at,
            "owed": self.evaluation_due,
            "estimates": self.estimates,
            "best": self._best if np.isfinite(self._best) else None,
            "summary": {key: self.summary[key] for key in _EVALUATED},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self._recent.restore(state["recent"])
        self._sums[:] = state["sums"]
        self._logged = (int(state["logged"][0]), float(state["logged"][1]))
        self.evaluated_at, self.evaluation_due = state["evaluated_at"], state["owed"]
        self.estimates = dict(state.get("estimates", {}))  # checkpoints of older versions have none
        self._best = -np.inf if state["best"] is None else state["best"]
        self.summary |= state["summary"]

    def resume(self) -> None:
        """Take the run over from an earlier start, once nothing can refuse it.

        Until then its files are left as they are. Now they get the config of this start and lose its result and the
        entries after the point where this one continues.
        """
        self._begun = True
        if self._world.rank == 0:
            write_config(self.path, self._run)
            self._run_dir.rewind(self.logged_at, self.evaluated_at)
            self._trackers.rewound()

    def flush(self) -> None:
        """Write what is buffered: a run that is resumed from the state of now has it nowhere else."""
        self._run_dir.flush()

    def sync(self) -> None:
        """Sync what was recorded to the disk; any thread may call it."""
        self._run_dir.sync()

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self._console is not None:
            self._console.line(text)

    def warn(self, text: str) -> None:
        """Print a warning, on rank 0."""
        self.say(f"warning: {text}")

    def write_or_warn(self, write: Callable[[], None]) -> bool:
        """Write something optional: a full disk only causes a warning. Returns whether it was written."""
        try:
            write()
        except PeerError:  # of a collective in between
            raise
        except (RunError, OSError) as error:
            unnamed = f"a file in {self.path} could not be written"  # an error of the system may name no file
            self.warn(f"{unnamed} ({error.strerror or error})" if isinstance(error, OSError) else str(error))
            return False
        return True

    def fail(self, rank: int, message: str, progress: Progress, elapsed_s: float, code: int = 1) -> None:
        """Record the end of a run by an error: the first failure of any rank.

        A start that has not resumed its run leaves the result of the earlier one. If rank 0 was lost, which writes the
        result, the others do: not every launcher knows the run directory.
        """
        record_failure(self.path, rank=rank, message=message, code=code)
        if not self._begun:
            return
        first = read_failure(self.path) or {"message": message}
        self.summary |= {"status": "failed", "error": first["message"]}
        self._count(progress, elapsed_s)
        if self._world.rank == 0:
            self._trackers.finish(self.summary, (RUN_FILE,))
            try:
                self._run_dir.write_summary(self.summary)
            except OSError as full:  # the error itself must still be reported
                print(f"lockstep: summary.json could not be written ({full.strerror})", file=sys.stderr, flush=True)
        elif rank == 0 and (self.path / RUN_FILE).exists() and not (self.path / SUMMARY_FILE).exists():
            self.write_or_warn(lambda: mark_failed(self.path, first["message"], processes=self._world.size))

    def stalled(self, culprit: Observed, report: str) -> None:
        """Record the end of a run by a stalled rank; called in the thread of the watch."""
        if record_failure(self.path, rank=culprit.rank, message=report, code=1, phase=str(culprit)):
            print(f"lockstep: {report}", file=sys.stderr, flush=True)
            if self._begun:
                mark_failed(self.path, report.partition("\n")[0], processes=self._world.size)

    def close(self) -> None:
        """Close trackers, files and console."""
        self._trackers.close(min(CLOSE_TIMEOUT_S, self._timeout_s / 2))  # the other ranks wait in a barrier
        if self._console is not None:
            self._console.close()
        if self._log is not None:
            self._log.close()
        self._run_dir.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _count(self, progress: Progress, elapsed_s: float) -> None:
        self.summary |= {
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "episodes": progress.episodes,
            "wall_time_s": elapsed_s,
            "steps_per_second": progress.env_steps / elapsed_s if elapsed_s else 0.0,
            "return_mean_100": self._recent.mean(),
        }

    def _print_result(self, ranks: list[dict[str, Any]]) -> None:
        """Print the result, the fingerprints and the run directory, on rank 0."""
        assert self._console is not None
        summary, line = self.summary, self._console.line
        mean, speed = summary["eval_return_mean"], summary["steps_per_second"]
        reached = "" if mean is None else f", return {significant(mean)}"
        line(
            f"{summary['status']} after {summary['env_steps']} {self._unit} in {summary['wall_time_s']:.1f} s "
            f"({speed:.{'2g' if 0 < speed < 1 else '0f'}} {self._unit}/s){reached}"
        )
        if len(ranks) > 1:
            who = "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
            line(f"parameters equal on {who}: {summary['params_fingerprint']}")
            firsts = ", ".join(f"rank {r['rank']} {r['first_rollout_fingerprint'][:8]}" for r in ranks)
            first = "batches" if self._unit == "rows" else "rollouts"
            line(f"data different on {who}, first {first}: {firsts}")
        where = shown_path(self.path)
        line(f"run directory: {where}")
        if summary["status"] == "interrupted":
            line(f"continue with: lockstep train --resume {shlex.quote(where)}")
