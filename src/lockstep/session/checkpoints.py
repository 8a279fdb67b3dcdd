"""When a run takes checkpoints, and how it resumes from one."""

import math
from collections.abc import Mapping
from typing import Any

from lockstep.distributed.comm import Comm
from lockstep.distributed.timers import CHECKPOINT
from lockstep.envs.make import unsavable_text
from lockstep.errors import ConfigError, RunError
from lockstep.record.checkpoint import FOLDER, FORMAT, place_of
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.record.evaluations import best_evaluation
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.record.run_dir import EVALUATIONS_FILE
from lockstep.run import AnyRun, to_dict
from lockstep.session.loop_checks import check_learner
from lockstep.session.policy_file import BEST_POLICY_FILE, evaluation_in, evaluation_of_best, read, write
from lockstep.session.resume import Resumption
from lockstep.session.run_state import RunState


class Checkpoints:
    """The checkpoints of one run, on one rank.

    Args:
        run: the config.
        comm: collectives.
        journal: log of the run.
        resumed: the checkpoint to resume from, if any.
        initialized: whether the run starts from another run's policy.

    Attributes:
        run_before: config that the checkpoint was made with, after `begin`; None if the run begins from its start.
    """

    def __init__(
        self, run: AnyRun, comm: Comm, journal: Journal, *, resumed: Resumption | None, initialized: bool
    ) -> None:
        self._run = run
        self._comm = comm
        self._journal = journal
        self._resumed = resumed
        self._initialized = initialized
        self._timers = comm.timers
        self._writer = CheckpointWriter(
            journal.path, comm.world, comm.gather_object, journal.warn, run.num_checkpoints, journal.sync
        )
        self._due = False
        self.run_before: Mapping[str, Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether this rank is still writing one; local: combine it over all ranks before `take_if_due`."""
        return self._writer.busy

    def begin(self, state: RunState, progress: Progress, learner_name: str) -> float:
        """Register the state of the run, and restore it if the run is resumed; *collective*.

        Args:
            state: of the run.
            progress: global counters.
            learner_name: `loop_checks.name_of` its learner.

        Returns:
            Seconds of training before the checkpoint.
        """
        self._state = state
        self._progress = progress
        self._learner_name = learner_name
        self._resumed_at = self._evaluated_at = -1
        found = self._writer.load(self._resumed.exact) if self._resumed is not None else None
        elapsed_s = 0.0
        if found is not None:
            manifest, shared, shards = found
            self.run_before = manifest["run"]
            check_learner(manifest.get("learner"), learner_name, self._journal.path)
            exact = state.restore(shared, shards)
            shards.clear()  # frees the memory of the replay buffers for the copy of the next checkpoint
            self._comm.check_equal(state.tensors())
            self._timers.resumed(progress.updates)
            elapsed_s = float(shared["elapsed_s"])
            self._resumed_at, self._evaluated_at = progress.env_steps, self._journal.evaluated_at
            self._journal.summary["resumed_from"] = f"{FOLDER}/step_{manifest['step']}"
            self._journal.say(f"resumed from step {manifest['step']}, update {progress.updates}")
            if not exact:
                self._journal.warn(
                    f"environments of {self._run.task} cannot be saved: they begin new episodes, so that the result "
                    "will differ from that of a run that never stopped"
                )
        if self._resumed is not None:
            best = evaluation_of_best(self._journal.path)
            if found is not None:
                self._writer.continue_after(progress.env_steps)
            self._journal.resume()
            if self._comm.world.rank == 0 and best is not None and best.step > progress.env_steps:
                self._replace_best_policy(best.step)
            self._journal.continue_best(self._comm.broadcast_object(self._best_return(), tag="checkpoint"))
        if found is None and self._initialized:  # the seed alone does not reproduce these initial parameters
            self._take(0.0)
            self._writer.finish(self._heartbeat)
        else:
            self._writer.prepare(state.shared(), state.shards())
        if self._resumed is None and self._run.checkpoint_every is not None and not state.savable:
            self._journal.warn(f"environments of {self._run.task} {unsavable_text(self._run.task or '')}")
        return elapsed_s

    def request(self) -> None:
        """Make a checkpoint due outside its period, for the best policy so far."""
        self._due = self._run.checkpoint_every is not None

    def take_if_due(self, num_steps: int, elapsed_s: float, *, any_busy: bool) -> None:
        """Complete the previous checkpoint, and take one if it became due in the last `num_steps`; *collective*.

        Args:
            num_steps: global steps since the last call.
            elapsed_s: seconds of training.
            any_busy: whether any rank was `busy` at the last exchange.
        """
        self._due = self._due or self._progress.due(self._run.checkpoint_every, num_steps)
        previous = self._timers.enter(CHECKPOINT)
        if self._writer.checkpoint_pending and not any_busy:
            self._writer.conclude()
        if self._due and not any_busy and not self._writer.checkpoint_pending:
            self._take(elapsed_s)
        self._timers.enter(previous)

    def checkpoint_last(self, elapsed_s: float) -> None:
        """Take the final checkpoint, unless the one of this step has all; wait until it is written; *collective*."""
        step = self._progress.env_steps
        previous = self._timers.enter(CHECKPOINT)
        there = step in (self._writer.finish(self._heartbeat), self._resumed_at)
        if not there or self._evaluated_at != self._journal.evaluated_at:
            self._take(elapsed_s)
            if self._writer.finish(self._heartbeat) != step and not there:
                self._journal.warn(f"there is no checkpoint of step {step}, at which the run ends")
        self._timers.enter(previous)

    def close(self) -> None:
        """Discard incomplete checkpoints."""
        self._writer.close()

    def _replace_best_policy(self, step: int) -> None:
        """Replace the best policy, of a later step that the run no longer has, by the best one before; or remove it."""
        path = self._journal.path / BEST_POLICY_FILE
        earlier = best_evaluation(self._journal.path / EVALUATIONS_FILE)
        gone, problem = f"step {step} is no longer part of this run", ""
        if earlier is not None and (found := place_of(self._journal.path, earlier.step)).is_dir():
            try:
                metadata, arrays = read(found)
                write(path, arrays, None, metadata, earlier)
                self._journal.say(f"{path.name} is that of step {earlier.step} again: {gone}")
                return
            except (ConfigError, RunError) as error:  # damaged, or a full disk: the run itself can continue
                problem = f", and that of step {earlier.step} cannot take its place: {error}"
        path.unlink(missing_ok=True)
        (self._journal.warn if problem else self._journal.say)(f"{path.name} is removed: {gone}{problem}")

    def _best_return(self) -> float | None:
        """The return of the best policy on the disk: minus infinity without one; None if its file does not tell."""
        path = self._journal.path / BEST_POLICY_FILE
        kept = evaluation_in(path)
        if kept is not None:
            return kept.return_mean
        return None if path.exists() else -math.inf

    def _take(self, elapsed_s: float) -> None:
        self._comm.check_equal(self._state.tensors())  # never save state in which ranks differ
        self._due = False
        world = self._comm.world
        summary = self._journal.summary
        self._evaluated_at = self._journal.evaluated_at
        self._journal.flush()
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "step": self._progress.env_steps,
            "num_shards": world.num_shards,
            "world_size": world.size,
            "eval_return_mean": summary["eval_return_mean"],
            "versions": summary["versions"],
            "learner": self._learner_name,
            "run": to_dict(self._run),
        }
        self._writer.take(manifest, {**self._state.shared(), "elapsed_s": elapsed_s}, self._state.shards())

    def _heartbeat(self) -> None:
        self._timers.enter(CHECKPOINT)
