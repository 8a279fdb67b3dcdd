"""One run on the ranks of this process' world, or on new ranks: `train(run)`."""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.envs.load import check_not_imported
from lockstep.envs.make import on_device
from lockstep.errors import ConfigError
from lockstep.launch.restarts import Gather, Restart, again, find_start_record, note, restarts_ranks, warn
from lockstep.launch.startup_line import first_line
from lockstep.preflight.user_code_paths import with_absolute_paths
from lockstep.record.console import Console
from lockstep.record.pending_run import Opening
from lockstep.run import AnyRun, OfflineRun, Run, override
from lockstep.session.checks import check_framework
from lockstep.session.env_checks.before_run import check_before_run
from lockstep.session.resume import ended, go_on, nothing_left
from lockstep.world import World

if TYPE_CHECKING:
    from lockstep.session.resume import Resumption
    from lockstep.session.session import BaseSession

    AnySession = BaseSession[Any, Any, Any, Any]

_OWN_SIGNAL_S = 10.0  # for a launcher to send its own ranks the signal that ranks of another node told them of
_runs = itertools.count()
"""Which run of this process comes next: a script may train several."""


def train(
    run: AnyRun,
    *,
    ranks: int | None = None,
    run_dir: Path | str | None = None,
    init_from: Path | str | None = None,
    resume: Path | str | None = None,
    world: World | None = None,
    joined: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Train and return the summary: in this process, as a rank of its launcher, or on `ranks` new processes.

    A launcher that starts its ranks again (torchrun, ours over several machines) starts the same call: from the second
    start on it goes on with the run of the first, from the newest checkpoint.

    Args:
        run: the complete config.
        ranks: how many processes to start and wait for; the config reaches them as a file. Default, and 1: none, this
            process trains. Under a launcher: how many it is known to have started.
        run_dir: where to write; default: a new directory below `runs/`.
        init_from: a run directory or policy file whose parameters to start from.
        resume: a run directory or one of its checkpoints to go on from; `run` is then what
            `lockstep.session.resume.prepare(resume, changes).run` gives.
        world: who takes part; default: what a launcher's variables say, else this process alone.
        joined: the run directory was made by the launcher.
        overrides: settings to change, by name: `train(run, seed=3, total_steps=3_000_000)`.

    Returns:
        The summary, as `summary.json` in the run directory holds it.

    Raises:
        ConfigError: the run cannot work; what can be known before is refused before a process starts.
        RunError: a rank failed; the message names it.
    """
    check_not_imported("train")
    if overrides:
        run = override(run, overrides)
    check_framework(run)
    run = with_absolute_paths(run)
    alone, world = world is None, world or World.from_environment()
    if resume is not None and not joined and is_complete(go_on(Path(resume), run), world):
        return ended(Path(resume))
    if ranks is not None and ranks != 1 and alone and world.launcher == "none":
        from lockstep.launch.train_ranks import train_on_ranks

        if resume is None and isinstance(run, Run):
            check_before_run(run)
        return train_on_ranks(run, ranks, run_dir=run_dir, init_from=init_from, resume=resume)
    if ranks not in (None, world.size):
        raise ConfigError(f"ranks={ranks}, but this process is one of {world.size} ranks already; leave ranks out")
    paths = (Path(path) if path else None for path in (run_dir, init_from, resume))
    return _train_here(run, world, *paths, joined=joined)


def is_complete(found: "Resumption", world: World) -> bool:
    """Whether a run has nothing left to do; rank 0 then prints how to continue it."""
    message = nothing_left(found)
    if message is not None and world.rank == 0:
        Console().line(message)
    return message is not None


def _train_here(
    run: AnyRun, world: World, run_dir: Path | None, init_from: Path | None, resume: Path | None, *, joined: bool
) -> dict[str, Any]:
    """`train` in this process, as one rank of `world`."""
    from lockstep.launch.torchrun import check_growth, check_torchrun

    check_torchrun(world)
    if resume is None:  # a checkpoint has its shards
        check_growth(world, run.num_shards)
    source: Path | Resumption | None = resume
    launch = None if joined or not restarts_ranks(world) else _Launch(run, world)
    begins = resume is None and not joined and (launch is None or launch.run_dir is None)
    if begins and isinstance(run, Run):
        check_before_run(run, tell=world.rank == 0)
    opening = Opening(run_dir, joined=joined)
    try:
        if world.rank == 0:
            _open(opening, run, world, resume, launch)
        if launch is not None and (earlier := launch.meet()) is not None:
            source = earlier.resumption
        surrounding, learn = _loop_of(run)
        session = surrounding(run, world, run_dir=opening, init_from=init_from, resume=source, joined=joined)
        with session:
            if launch is not None:
                launch.begin(session, resume)
            learn(session)
    finally:
        opening.discard()
    if launch is not None:
        launch.end(session)
    return session.summary


def _open(opening: Opening, run: AnyRun, world: World, resume: Path | None, launch: "_Launch | None") -> None:
    """Make the run directory of a new run and show the first line, before a framework is loaded."""
    found = go_on(resume, run) if resume is not None else None
    if launch is not None and launch.run_dir is not None:
        opening.path, found = launch.run_dir, None  # its newest checkpoint is not known yet
    elif found is not None:
        opening.path = found.run_dir
    elif not opening.joined and not opening.make(run, alone=world.size == 1):
        return
    known = {} if found is None else {"num_shards": found.num_shards, "step": found.step}
    opening.announce(first_line(run, world, opening.path, **known))
    opening.doing(f"importing {run.ml_framework}")


def _loop_of(run: AnyRun) -> tuple[type["AnySession"], Callable[[Any], None]]:
    """What surrounds the training loop of the run's algorithm, and the loop."""
    if isinstance(run, OfflineRun):
        from lockstep.torch.offline.session import LoggedSession
        from lockstep.torch.offline.train import train as learn

        return LoggedSession, learn
    return _jax_loop_of(run) if run.ml_framework == "jax" else _torch_loop_of(run)


def _torch_loop_of(run: Run) -> tuple[type["AnySession"], Callable[[Any], None]]:
    from lockstep.torch.session import Session

    if run.algo == "dqn":
        from lockstep.torch.dqn import train as learn
    else:
        from lockstep.torch.ppo import train as learn
    return Session, learn


def _jax_loop_of(run: Run) -> tuple[type["AnySession"], Callable[[Any], None]]:
    from lockstep.jax.session import Session

    if run.algo == "dqn":
        from lockstep.jax.dqn import train as learn
    elif on_device(run.task):
        from lockstep.jax.ppo_on_device import train as learn
    else:
        from lockstep.jax.ppo import train as learn
    return Session, learn


class _Launch:
    """What one run has to do with a launcher that may start it again.

    Attributes:
        run_dir: of the run that this node's ranks trained before; None if this is their first start.
        earlier: what this start goes on with, once the ranks have met.
    """

    def __init__(self, run: AnyRun, world: World) -> None:
        self._run, self._world, self._memo = run, world, None
        try:
            self._memo = find_start_record(next(_runs))
        except ConfigError as error:
            if world.local_rank == 0:
                warn(str(error))
        trained = self._memo.read() if self._memo is not None else None
        self.run_dir = Path(trained.run_dir) if trained is not None else None

    def meet(self) -> Restart | None:
        """What this start goes on with; None if it is the first. Collective."""
        # A comm of its own: how the run's is cut depends on the shards of the checkpoint.
        with _all_processes(self._run, self._world) as gather:
            self.earlier = again(self._memo, self._run, self._world, gather)
        if self.earlier is None:  # the command line could not say: a run that goes on keeps its shards
            self._run.minibatch_rows(self._run.cut(self._world))
        return self.earlier

    def begin(self, session: "AnySession", resume: Path | None) -> None:
        """The run directory is known: note it for the next start."""
        path, earlier = session.journal.path, self.earlier
        if self._memo is not None and self._world.local_rank == 0:
            note(self._memo, path, earlier, resume)
        if earlier is not None:
            session.summary["restarts"] = max(session.summary["restarts"], earlier.restarts)
            size = self._world.size
            on = f"on {size} rank{'s' * (size > 1)}"
            session.journal.say(f"restart {earlier.restarts} of {os.path.relpath(path)}, {on}")
            for line in earlier.resumption.notes:
                session.journal.say(f"note: {line}")

    def end(self, session: "AnySession") -> None:
        """When nodes come or go, each one's launcher tells its ranks to stop, but not all at the same moment.

        A rank that leaves because others were told would look to its own launcher as one that failed.
        """
        until = time.monotonic() + _OWN_SIGNAL_S
        while session.stopped_by == signal.SIGTERM and session.signals.received is None and time.monotonic() < until:
            time.sleep(0.05)  # the signals are given back: SIGTERM ends this process here


@contextlib.contextmanager
def _all_processes(run: AnyRun, world: World) -> Generator[Gather]:
    """What gathers objects of all processes, met for this alone; *collective*."""
    if run.ml_framework == "jax":
        from lockstep.distributed.timers import Timers
        from lockstep.jax.collectives.processes import Processes

        processes = Processes(world, Timers(), run.timeout_s, run.startup_timeout_s)
        processes.open()
        try:
            yield processes.gather_object
        except BaseException as error:
            processes.close(error)
            raise
        processes.close(None)
        return
    from lockstep.torch.comm import Comm

    where = Comm(
        world, device="cpu", backend="gloo", shared_memory=False,
        timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s,
    )  # fmt: skip
    with where as comm:
        yield comm.gather_object


def exit_code(summary: dict[str, Any]) -> int:
    """0 done, 1 failed, 128 + n after signal n."""
    if summary["status"] == "interrupted":
        return 128 + signal.Signals[summary["error"].rpartition(" ")[2]]
    return 0 if summary["status"] in ("finished", "solved") else 1
