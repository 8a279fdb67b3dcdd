"""Write checkpoints in a thread while training continues, and load the one to continue from."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint import LEARNER, State, shard_file
from lockstep.record.latest import LATEST, latest_step
from lockstep.system.files import not_writable
from lockstep.world import World

Files = Mapping[str, Mapping[str, Any]]
_POLL_S = 0.5
_GIVE_UP_S = 2.0  # for a thread that still writes when its run fails; later files would not be removed


class CheckpointWriter:
    """One rank's part in the checkpoints of a run.

    `take` copies the state and returns; a thread writes the copy. Once all ranks have written, they call `conclude`,
    and rank 0 publishes the checkpoint. On a full disk the user is warned once, and the previous checkpoint is kept.

    Args:
        run_dir: the run's directory, seen by all ranks.
        world: the ranks.
        gather: gathers JSON-able values of all ranks, in rank order; collective.
        warn: prints a warning for the user.
        num_kept: number of newest checkpoints to keep.
        before_commit: called on rank 0, in the thread, before a checkpoint is published.
    """

    def __init__(
        self,
        run_dir: Path,
        world: World,
        gather: Callable[[Any, str], list[Any]],
        warn: Callable[[str], None],
        num_kept: int,
        before_commit: Callable[[], object] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._world = world
        self._gather = gather
        self._warn = warn
        self._num_kept = num_kept
        self._before_commit = before_commit
        self._thread = ThreadPoolExecutor(1, "lockstep-checkpoint")
        self._preparing: Future[None] | None = None
        self._writing: Future[dict[str, Any]] | None = None
        self._committing: Future[None] | None = None
        self._manifest: dict[str, Any] = {}
        self._copy: dict[str, State] = {}
        self._bytes = 0
        self._warned = False
        self._completed_at = -1

    @property
    def busy(self) -> bool:
        """Whether this rank's thread is still writing."""
        return any(not job.done() for job in self._jobs)

    @property
    def checkpoint_pending(self) -> bool:
        """Whether a checkpoint was taken and is still to be concluded. The same on all ranks."""
        return self._writing is not None

    def prepare(self, learner: State, shards: Mapping[int, State]) -> None:
        """Have the thread allocate a copy of such a state: the first write to fresh memory is many times slower."""
        self._preparing = self._thread.submit(self._allocate, self._by_file(learner, shards))

    def take(self, manifest: Mapping[str, Any], learner: State, shards: Mapping[int, State]) -> None:
        """Copy the state and start writing it.

        Manifest (without files, with `step`) and learner are the same on all ranks; `shards` are those of this rank.
        """
        assert self._writing is None
        self._manifest = dict(manifest)
        self._completed_at = -1
        self._copy = checkpoint.snapshot(self._by_file(learner, shards), self._copy)
        self._writing = self._thread.submit(self._write, self._partial_dir(self._manifest), self._copy)

    def conclude(self) -> None:
        """Publish the checkpoint, or warn why it cannot be; collective, once no rank is `busy`."""
        assert self._writing is not None
        job, self._writing = self._writing, None
        error = job.exception()
        local = {"files": job.result()} if error is None else {"error": _reason(error)}
        every = self._gather(local, "checkpoint")
        failed = [(rank, entry["error"]) for rank, entry in enumerate(every) if "error" in entry]
        if failed:
            self._failed(self._manifest, f"rank {failed[0][0]}: {failed[0][1]}")
        elif self._world.rank == 0:
            files = {name: entry for entry in every for name, entry in entry["files"].items()}
            self._committing = self._thread.submit(self._commit, self._manifest | {"files": files})

    def finish(self, heartbeat: Callable[[], object]) -> int:
        """Wait until no checkpoint is being written; collective. `heartbeat` is called while bytes reach the disk.

        Returns the step of the last checkpoint that was taken; -1 if it could not be written, or without one.
        """
        self._wait(heartbeat)
        if self._writing is not None:
            self.conclude()
            self._wait(heartbeat)
        return self._gather(self._completed_at, "checkpoint")[0]

    def close(self) -> None:
        """Discard a checkpoint that is not concluded."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._writing is not None:
            wait_for([self._writing], timeout=_GIVE_UP_S)
            shutil.rmtree(self._partial_dir(self._manifest), ignore_errors=True)

    def load(self, exact: Path | None) -> tuple[dict[str, Any], dict[str, Any], dict[int, dict[str, Any]]] | None:
        """Read the newest intact checkpoint: manifest, learner and this rank's shards; collective.

        With `exact`, only that one. Returns None if the run has no checkpoint yet. Raises `ConfigError` if none is
        intact, naming the last problem.
        """
        found = [exact] if exact is not None else checkpoint.find(self._run_dir)
        names: list[str] = self._gather([path.name for path in found], "checkpoint")[0]
        problem = ""
        for name in names:
            path, local, problem = self._run_dir / checkpoint.FOLDER / name, None, ""
            try:
                local = self._read(path)
            except ConfigError as error:
                problem = str(error)
            problems: list[str] = self._gather(problem, "checkpoint")
            problem = next(filter(None, problems), "")
            if not problem and local is not None:
                return local
            self._warn(f"checkpoint {name} is damaged and skipped: {problem}")
        if names:
            raise ConfigError(f"no whole checkpoint to resume from in {self._run_dir / checkpoint.FOLDER}: {problem}")
        return None

    def continue_after(self, step: int) -> None:
        """Take the checkpoint of this step, which was loaded, as the newest: later ones are of another continuation.

        Raises:
            ConfigError: on rank 0, if this is new and cannot be written, as on a full disk.
        """
        if self._world.rank != 0 or latest_step(self._run_dir) == step:
            return
        try:
            checkpoint.set_latest(self._run_dir, f"step_{step}")
        except OSError as error:
            raise not_writable(self._run_dir / LATEST, error) from None

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[int, dict[str, Any]]]:
        manifest = checkpoint.read_manifest(path)
        files: Files = manifest["files"]
        missing = [n for n in (LEARNER, *map(shard_file, range(self._world.num_shards))) if n not in files]
        if missing or manifest["num_shards"] != self._world.num_shards:
            raise checkpoint.DamagedError(f"{path} lacks {missing[0] if missing else 'shards'}")
        learner = checkpoint.read_state(path / LEARNER, files[LEARNER])
        shards = {
            shard: checkpoint.read_state(path / shard_file(shard), files[shard_file(shard)])
            for shard in self._world.shards
        }
        return manifest, learner, shards

    def _write(self, directory: Path, states: Mapping[str, State]) -> dict[str, Any]:
        directory.mkdir(parents=True, exist_ok=True)
        return {
            name: checkpoint.write_state(directory / name, state, self._count_bytes) for name, state in states.items()
        }

    def _commit(self, manifest: Mapping[str, Any]) -> None:
        missing = [name for name in manifest["files"] if not (self._partial_dir(manifest) / name).exists()]
        if missing:
            self._failed(
                manifest, f"rank 0 does not see {missing[0]}: ranks of several hosts need a run_dir that all see"
            )
            return
        try:
            self._before_commit()
            checkpoint.commit(self._run_dir, manifest, self._num_kept)
            self._completed_at, self._warned = int(manifest["step"]), False
        except (OSError, TypeError, ValueError) as error:  # or the manifest holds what JSON cannot
            self._failed(manifest, f"rank 0: {_reason(error)}")

    def _failed(self, manifest: Mapping[str, Any], reason: str) -> None:
        shutil.rmtree(self._partial_dir(manifest), ignore_errors=True)
        if not self._warned:
            self._warned = True
            self._warn(
                f"the checkpoint of step {manifest['step']} could not be written ({reason}); training continues, "
                "earlier checkpoints stay, and the next one is tried when it is due"
            )

    @property
    def _jobs(self) -> list[Future[Any]]:
        return [job for job in (self._preparing, self._writing, self._committing) if job is not None]

    def _by_file(self, learner: State, shards: Mapping[int, State]) -> dict[str, State]:
        states = {shard_file(shard): state for shard, state in shards.items()}
        return states | ({LEARNER: learner} if self._world.rank == 0 else {})

    def _allocate(self, states: Mapping[str, State]) -> None:
        self._copy = checkpoint.snapshot(states)

    def _partial_dir(self, manifest: Mapping[str, Any]) -> Path:
        return checkpoint.partial(self._run_dir, int(manifest["step"]))

    def _count_bytes(self, size: int) -> None:
        self._bytes += size

    def _wait(self, heartbeat: Callable[[], object]) -> None:
        """Wait until no rank's thread is busy; collective.

        Ranks exchange short messages repeatedly, since one may write for longer than the timeout of a message. Without
        progress on the disk there is no heartbeat, and the watch reports a stall.
        """
        while any(self._gather(self.busy, "checkpoint")):
            before = self._bytes
            wait_for(self._jobs, timeout=_POLL_S)
            if self._bytes != before:
                heartbeat()


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {error}"
