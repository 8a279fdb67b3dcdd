"""When a run takes checkpoints, and how it goes on from one."""

from typing import Any

from lockstep.distributed.comm import Comm
from lockstep.distributed.timers import CHECKPOINT
from lockstep.envs.state import UNSAVABLE
from lockstep.record.checkpoint import FOLDER, FORMAT
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.run import AnyRun, OfflineRun, to_dict
from lockstep.session.resume import Resumption
from lockstep.session.run_state import RunState


class Checkpoints:
    """The checkpoints of one run, on one rank.

    Args:
        run: the config.
        comm: collectives.
        journal: of the run; told what happens.
        resumed: what the run goes on with, if it does.
        initialized: the run starts from another run's policy.
    """

    def __init__(
        self, run: AnyRun, comm: Comm, journal: Journal, *, resumed: Resumption | None, initialized: bool
    ) -> None:
        self._run, self._comm, self._journal = run, comm, journal
        self._resumed, self._initialized, self._timers = resumed, initialized, comm.timers
        self._keeper = CheckpointWriter(journal.path, comm.world, comm.gather_object, journal.warn, run.num_checkpoints)
        self._due = False

    @property
    def busy(self) -> bool:
        """Whether this rank still writes one; a local fact, which all ranks must know before `keep`."""
        return self._keeper.busy

    def begin(self, state: RunState, progress: Progress) -> float:
        """Take over what the run consists of, and restore it if the run is resumed; collective.

        Returns:
            Seconds of training that lie behind.
        """
        self._state, self._progress = state, progress
        self._begun_at = -1
        found = self._keeper.load(self._resumed.exact) if self._resumed is not None else None
        behind_s = 0.0
        if found is not None:
            manifest, shared, shards = found
            exact = state.restore(shared, shards)
            shards.clear()  # a replay is large, and its memory is wanted for the copy of the next checkpoint
            self._comm.check_equal(state.tensors())
            self._timers.resumed(progress.updates)
            behind_s, self._begun_at = float(shared["elapsed_s"]), progress.env_steps
            self._journal.summary["resumed_from"] = f"{FOLDER}/step_{manifest['step']}"
            self._journal.say(f"resumed from step {manifest['step']}, update {progress.updates}")
            solved_here = self._journal.summary["solved_at_step"] == progress.env_steps
            if progress.finished or (solved_here and self._run.stop_when_solved):
                longer = "raise epochs" if isinstance(self._run, OfflineRun) else "raise total_steps"
                self._journal.say(f"nothing is left to do; {longer} or set stop_when_solved=false to go on")
            if not exact:
                self._journal.warn(
                    f"environments of {self._run.task} cannot be saved: they begin new episodes, so that the result "
                    "will differ from that of a run that never stopped"
                )
        if self._resumed is not None:
            self._journal.rewind()
        if found is None and self._initialized:  # the seed alone does not lead back to where the run began
            self._take(0.0)
        else:
            self._keeper.prepare(state.shared(), state.shards())
        if self._resumed is None and self._run.checkpoint_every is not None and not state.savable:
            self._journal.warn(f"environments of {self._run.task} {UNSAVABLE}")
        return behind_s

    def wanted(self) -> None:
        """A checkpoint is due, whatever the period says: the policy is the best so far."""
        self._due = self._run.checkpoint_every is not None

    def keep(self, num_steps: int, elapsed_s: float, *, any_busy: bool) -> None:
        """Take a checkpoint if one became due within the last `num_steps`, and complete the one before; collective.

        Args:
            num_steps: global steps since the last call.
            elapsed_s: seconds of training.
            any_busy: whether any rank was `busy` when they all told each other last.
        """
        self._due = self._due or self._progress.due(self._run.checkpoint_every, num_steps)
        previous = self._timers.enter(CHECKPOINT)
        if self._keeper.open and not any_busy:
            self._keeper.conclude()
        if self._due and not any_busy and not self._keeper.open:
            self._take(elapsed_s)
        self._timers.enter(previous)

    def checkpoint_last(self, elapsed_s: float) -> None:
        """Take one where the run ends, unless it is there already, and wait for it; collective."""
        step = self._progress.env_steps
        previous = self._timers.enter(CHECKPOINT)
        if self._keeper.finish(self._heartbeat) != step and self._begun_at != step:
            self._take(elapsed_s)
            if self._keeper.finish(self._heartbeat) != step:
                self._journal.warn(f"there is no checkpoint of step {step}, at which the run ends")
        self._timers.enter(previous)

    def close(self) -> None:
        """Give up what is not complete."""
        self._keeper.close()

    def _take(self, elapsed_s: float) -> None:
        self._comm.check_equal(self._state.tensors())  # what went off since the last proof shall not be gone on with
        self._due = False
        world, summary = self._comm.world, self._journal.summary
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "step": self._progress.env_steps,
            "num_shards": world.num_shards,
            "world_size": world.size,
            "eval_return_mean": summary["eval_return_mean"],
            "versions": summary["versions"],
            "run": to_dict(self._run),
        }
        self._keeper.take(manifest, {**self._state.shared(), "elapsed_s": elapsed_s}, self._state.shards())

    def _heartbeat(self) -> None:
        """Tell the watch that this goes on."""
        self._timers.enter(CHECKPOINT)
