"""One run on the ranks of this process' world, or on new ranks: `train(run)`."""

import itertools
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.envs.load import check_not_imported
from lockstep.errors import ConfigError, exits_are_errors
from lockstep.launch.all_processes import gathering
from lockstep.launch.restarts import (
    Restart,
    find_restart,
    find_start_record,
    may_restart_ranks,
    record_start,
    warn_restart,
)
from lockstep.launch.startup_line import startup_line
from lockstep.launch.world_checks import check_world
from lockstep.preflight.setting_paths import with_absolute_paths
from lockstep.record.console import Console
from lockstep.record.pending_run import PendingRun
from lockstep.record.run_status import COMPLETE
from lockstep.record.summary import signal_of
from lockstep.run import AnyRun, OfflineRun, Run, check_setting_names, override
from lockstep.session.env_checks.before_run import check_before_run
from lockstep.session.placement import JAX_DEVICE_LOOPS, learns_on_device
from lockstep.session.profile import check_profile
from lockstep.session.resume import ended_summary, load_resumption, nothing_left, prepare
from lockstep.session.run_checks import check_run
from lockstep.session.start_notes import start_notes
from lockstep.session.task_defaults import task_defaults
from lockstep.system.files import shown_path
from lockstep.world import World

if TYPE_CHECKING:
    from lockstep.session.resume import Resumption
    from lockstep.session.session import BaseSession

    AnySession = BaseSession[Any, Any, Any, Any]

_OWN_SIGNAL_S = 10.0  # until a launcher sends its ranks the signal that ranks of another node received
_runs = itertools.count()
"""Index of the next run in this process: a script may train several."""


def train(
    run: AnyRun | str | None = None,
    *,
    ranks: int | None = None,
    run_dir: Path | str | None = None,
    init_from: Path | str | None = None,
    resume: Path | str | None = None,
    world: World | None = None,
    profile: int | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Train and return the summary: in this process, as a rank of its launcher, or on `ranks` new processes.

    A launcher that restarts its ranks (torchrun, ours on several machines) repeats the same call: it then continues the
    run of the first start from the newest checkpoint.

    Args:
        run: the complete config; or what `lockstep train` takes: a task, which then has the default settings of its
            kind, a recipe, a config file or `FILE.py:FUNCTION`. May be left out with `resume`.
        ranks: number of processes to start. Default, and 1: train in this process. Under a launcher: the number that it
            has started.
        run_dir: the run directory; default: a new directory below `runs/`. Not with `resume`.
        init_from: a run directory or policy file whose parameters to start from. Not with `resume`.
        resume: a run directory or checkpoint to resume: `train(resume="runs/my_run", total_steps=2_000_000)`.
        world: the ranks; default: from the launcher's variables, else this process alone.
        profile: number of updates to record in `profile.json.gz` of the run directory, a trace for ui.perfetto.dev.
        overrides: settings to change, by name: `train(run, seed=3, total_steps=3_000_000)`.

    Returns:
        The summary, as `summary.json` in the run directory holds it. A signal that stops the run, as Ctrl-C and SIGTERM
        do, is over with it: `status` is then `interrupted`, and a script that has more to do should look at it.

    Raises:
        ConfigError: the run cannot work.
        RunError: a rank failed; the message names it.
    """
    check_not_imported("train")
    _check_counts(ranks=ranks, profile=profile)
    _check_resumed(resume, run_dir=run_dir, init_from=init_from)
    run, task_alone = _config_of(run, resume, overrides)
    checked = world is not None
    notes = [] if checked else start_notes(run, check_run(run), task_alone=task_alone, resumed=resume is not None)
    run, world = with_absolute_paths(run), world or World.from_environment()
    resumption = None if resume is None else load_resumption(Path(resume), run)
    if resumption is not None and is_complete(resumption, world):
        return ended_summary(resumption.run_dir)
    _print_notes(notes if resumption is None or checked else [*resumption.notes, *notes])
    if ranks is not None and ranks != 1 and not checked and world.launcher == "none":
        from lockstep.launch.train_ranks import train_on_ranks

        if resume is None and isinstance(run, Run):
            check_before_run(run)
        return train_on_ranks(run, ranks, run_dir=run_dir, init_from=init_from, resume=resume, profile=profile)
    if ranks not in (None, world.size):
        raise ConfigError(f"ranks={ranks}, but this process is one of {world.size} ranks already; leave ranks out")
    if not checked and resume is None:
        check_world(run, world)
    folder, source, earlier = (Path(path) if path else None for path in (run_dir, init_from, resume))
    return _train_here(run, world, PendingRun(folder, init_from=source), source, earlier, checked, profile)


def _check_resumed(resume: Path | str | None, **others: Path | str | None) -> None:
    """Raise `ConfigError` for arguments that a run which continues has from its start."""
    for name, value in others.items():
        if resume is not None and value is not None:
            raise ConfigError(
                f"resume={resume} continues that run in its own directory, and {name}={value} is of a new run; leave "
                "one of them out"
            )


def train_checked(
    run: AnyRun,
    *,
    world: World,
    run_dir: Path | None = None,
    init_from: Path | None = None,
    resume: Path | None = None,
    started_by_lockstep: bool = False,
    profile: int | None = None,
) -> dict[str, Any]:
    """Train in this process, as `lockstep train` does once it has checked the run; returns the summary.

    Arguments are as of `train`; `started_by_lockstep`: our own launcher started this rank and made its run directory.
    """
    check_not_imported("train")
    pending_run = PendingRun(run_dir, started_by_lockstep=started_by_lockstep, init_from=init_from)
    return _train_here(with_absolute_paths(run), world, pending_run, init_from, resume, True, profile)


def _check_counts(**counts: object) -> None:
    for name, count in counts.items():
        if not isinstance(count, int | None):
            raise ConfigError(f"{name}={count!r} must be a whole number")


def _config_of(run: object, resume: Path | str | None, changes: Mapping[str, Any]) -> tuple[AnyRun, bool]:
    """The complete config, and whether it is that of a task alone, with the default settings of its kind."""
    if run is None and resume is not None:
        return prepare(Path(resume), changes).run, False
    if isinstance(run, str):
        return _named(run, changes)
    if not isinstance(run, Run | OfflineRun):
        what = run.__name__ if isinstance(run, type) else f"a {type(run).__name__}"
        env = run if isinstance(run, type) else type(run)
        if callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):  # each rank makes its own
            example = f'lockstep.train("path/to/file.py:{env.__name__}")'
        else:
            example = 'lockstep.train("CartPole-v1", seed=1, total_steps=100_000)'
        raise ConfigError(f"run is {what}, and must be a lockstep.Run, or the name of a task or a recipe: {example}")
    return override(run, changes), False


def _named(target: str, changes: Mapping[str, Any]) -> tuple[AnyRun, bool]:
    """What `_config_of` returns, for a name, as in `lockstep train`."""
    from lockstep import recipes

    run = recipes.named(target)
    task_alone = isinstance(run, Run) and run.task == target
    check_setting_names(run, changes)
    return override(task_defaults(target, changes) if task_alone else run, changes), task_alone


def _print_notes(notes: list[str]) -> None:
    if World.from_environment().rank == 0:
        for note in notes:
            print(f"lockstep: note: {note}", file=sys.stderr)


def is_complete(resumption: "Resumption", world: World, ranks: str | None = None) -> bool:
    """Whether a run has nothing left to do; rank 0 then prints how to continue it, on as many `ranks` if named."""
    message = nothing_left(resumption, ranks)
    if message is not None and world.rank == 0:
        Console().line(message)
    return message is not None


def _train_here(
    run: AnyRun,
    world: World,
    pending_run: PendingRun,
    init_from: Path | None,
    resume: Path | None,
    checked: bool,
    profile: int | None,
) -> dict[str, Any]:
    """Train in this process; returns the summary. `checked`: it is known that the run can begin."""
    from lockstep.launch.torchrun import check_growth, check_torchrun, end_with_agent
    from lockstep.session.start_policy import check_start_policy

    end_with_agent(world)
    check_torchrun(world)
    if resume is None:  # else the checkpoint has the number of shards
        check_growth(world, run.num_shards)
    source: Path | Resumption | None = resume
    launch = None if pending_run.started_by_lockstep or not may_restart_ranks(world) else _RestartableLaunch(run, world)
    if not checked and resume is None and (launch is None or launch.run_dir is None):
        if isinstance(run, Run):
            check_before_run(run, tell=world.rank == 0)
        if profile is not None:
            check_profile(profile, run)
        if init_from is not None:
            check_start_policy(init_from, run)
    try:
        if world.rank == 0:
            _open(pending_run, run, world, resume, launch)
        if launch is not None and (earlier := launch.find_earlier()) is not None:
            source = earlier.resumption
        session_class, learn = _loop_of(run)
        session = session_class(
            run,
            world,
            run_dir=pending_run,
            init_from=init_from,
            resume=source,
            profile=profile,
        )
        with session, exits_are_errors("training"):
            if launch is not None:
                launch.begin(session, resume)
            learn(session)
    finally:
        pending_run.discard()
    if launch is not None:
        launch.end(session)
    return session.summary


def _open(
    pending_run: PendingRun, run: AnyRun, world: World, resume: Path | None, launch: "_RestartableLaunch | None"
) -> None:
    """Make the run directory of a new run and show the first line, before a framework is loaded."""
    resumption = load_resumption(resume, run) if resume is not None else None
    if launch is not None and launch.run_dir is not None:
        pending_run.path, resumption = launch.run_dir, None  # its newest checkpoint is not known yet
    elif resumption is not None:
        pending_run.path = resumption.run_dir
    elif not pending_run.started_by_lockstep and not pending_run.make(run, alone=world.size == 1):
        return
    known = {} if resumption is None else {"num_shards": resumption.num_shards, "step": resumption.step}
    pending_run.announce(startup_line(run, world, pending_run.path, **known))
    pending_run.start_phase(f"importing {run.ml_framework}")


def _loop_of(run: AnyRun) -> tuple[Callable[..., "AnySession"], Callable[[Any], None]]:
    """The session and the training loop of a run."""
    if isinstance(run, OfflineRun):
        return _offline_loop_of(run)
    framework, loop = run.ml_framework, run.algo
    if framework == "jax" and learns_on_device(run):
        loop = JAX_DEVICE_LOOPS[loop]
    session = import_module(f"lockstep.{framework}.session").Session
    return session, import_module(f"lockstep.{framework}.{loop}").train


def _offline_loop_of(run: OfflineRun) -> tuple[Callable[..., "AnySession"], Callable[[Any], None]]:
    from lockstep.session.offline.session import OfflineSession

    if run.ml_framework == "jax":
        from lockstep.jax.offline.session import OfflineJax as Backend
        from lockstep.jax.offline.train import train as learn
    else:
        from lockstep.torch.offline.session import OfflineTorch as Backend
        from lockstep.torch.offline.train import train as learn
    return partial(OfflineSession, Backend()), learn


class _RestartableLaunch:
    """A run under a launcher that may restart its ranks.

    Attributes:
        run_dir: of the run that this node's ranks trained before; None at their first start.
        earlier: the run to continue, after `find_earlier`.
    """

    def __init__(self, run: AnyRun, world: World) -> None:
        self._run, self._world, self._record = run, world, None
        try:
            self._record = find_start_record(next(_runs))
        except ConfigError as error:
            if world.local_rank == 0:
                warn_restart(str(error))
        trained = self._record.read() if self._record is not None else None
        self.run_dir = Path(trained.run_dir) if trained is not None else None

    def find_earlier(self) -> Restart | None:
        """The run to continue; None at the first start. Collective."""
        # A separate comm: the sharding of the run's own depends on the checkpoint.
        with gathering(self._run, self._world) as gather:
            self.earlier = find_restart(self._record, self._run, self._world, gather)
        if self.earlier is None:  # not checked before: a resumed run keeps its shards
            self._run.minibatch_rows(self._run.with_shards(self._world))
        return self.earlier

    def begin(self, session: "AnySession", resume: Path | None) -> None:
        """Record the run directory for the next start."""
        path, earlier = session.journal.path, self.earlier
        if self._record is not None and self._world.local_rank == 0:
            record_start(self._record, path, earlier, resume)
        if earlier is not None:
            session.summary["restarts"] = max(session.summary["restarts"], earlier.restarts)
            size = self._world.size
            on = f"on {size} rank{'s' * (size > 1)}"
            session.journal.say(f"restart {earlier.restarts} of {shown_path(path)}, {on}")
            for line in earlier.resumption.notes:
                session.journal.say(f"note: {line}")

    def end(self, session: "AnySession") -> None:
        """Wait for the launcher's own signal if another node's ranks were signalled first.

        When nodes join or leave, each launcher stops its own ranks, not all at the same moment. A rank that exits
        before its launcher signals it counts as failed.
        """
        until = time.monotonic() + _OWN_SIGNAL_S
        while session.stopped_by == signal.SIGTERM and session.signals.received is None and time.monotonic() < until:
            time.sleep(0.05)  # default handlers are installed: SIGTERM ends this process here


def exit_code(summary: dict[str, Any]) -> int:
    """0 done, 1 failed, 128 + n after signal n."""
    if summary["status"] == "interrupted":
        return 128 + signal_of(summary["error"])
    return 0 if summary["status"] in COMPLETE else 1
