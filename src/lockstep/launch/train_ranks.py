"""Run one training on several ranks of this machine, with restarts."""

import functools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.errors import ConfigError, RunError
from lockstep.launch.failure_report import left_early, log, refused_to_resume
from lockstep.launch.local import RestartPolicy, launch
from lockstep.launch.search_path import search_path
from lockstep.launch.supervise import DEFAULT_BOUNDS, Bounds
from lockstep.record.failure import read_failure
from lockstep.record.follow import read_json
from lockstep.record.latest import latest_written, source_of_restart
from lockstep.record.partial_files import modified_at, remove_partial_files, remove_results
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE, RunDir, lock_run_dir, write_config
from lockstep.system.files import write_atomically

if TYPE_CHECKING:
    from lockstep.run import AnyRun
    from lockstep.session.resume import Resumption

PROGRAM = (sys.executable, "-m", "lockstep.train")
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_EXPLAINED_CODES = (0, ConfigError.exit_code, *(128 + number for number in _STOPS))


class Launcher(Protocol):
    """Starts a command once per rank and waits for all of them, as `launch` does."""

    def __call__(
        self,
        command: list[str],
        *,
        ranks: int,
        run_dir: Path | None,
        environment: Mapping[str, str] | None,
        bounds: Bounds,
        restart_policy: RestartPolicy,
    ) -> int:
        """Return the exit code."""
        ...


def launch_training(  # noqa: PLR0913  # one for each flag of the command
    run: "AnyRun",
    ranks: int,
    *,
    run_dir: Path | None = None,
    resumption: "Resumption | None" = None,
    init_from: Path | None = None,
    debug: bool = False,
    bounds: Bounds = DEFAULT_BOUNDS,
    max_restarts: int = 0,
    profile: int | None = None,
    launcher: "Launcher | None" = None,
) -> tuple[int, Path]:
    """Start one process per rank, each of which reads the same `run.yaml`, and wait for all of them.

    A new run is made in `run_dir` (default: a new directory below `runs/`) and starts from the policy `init_from`, if
    any; with `resumption` an earlier run is resumed instead. After a failure all ranks are restarted from the newest
    checkpoint, at most `max_restarts` times. `launcher` starts the ranks; None: `launch`, on this machine.

    Returns:
        The exit code of the launcher and the run directory.
    """
    from lockstep.launch.startup_line import startup_line
    from lockstep.record.console import Console
    from lockstep.world import World

    checkpoint: dict[str, Any] = {}
    resume = None
    if resumption is None:
        run_dir = RunDir.create(run_dir, run, init_from=init_from).path
    else:
        run_dir, resume = resumption.run_dir, resumption.exact or resumption.run_dir
        checkpoint = {"num_shards": resumption.num_shards, "step": resumption.step}
    Console().line(startup_line(run, World(size=ranks), run_dir, **checkpoint))
    flags = ["--started-by-lockstep", *["--debug"] * debug, *(["--profile", str(profile)] if profile else [])]
    if launcher is not None:  # its ranks may start in another directory
        resume, init_from = (path and path.absolute() for path in (resume, init_from))
    named = run_dir if launcher is None else run_dir.absolute()
    commands = _Commands(named, resume, init_from, flags, latest_written(run_dir))
    lock = lock_run_dir(run_dir)
    start = functools.partial(
        launcher or launch,
        commands.first_command(),
        ranks=ranks,
        run_dir=run_dir,
        environment={"PYTHONPATH": search_path()},
        bounds=bounds,
        restart_policy=RestartPolicy(
            max_restarts=max_restarts,
            next_command=commands.restart_command,
            left_early=functools.partial(left_early, run_dir),
        ),
    )
    try:
        code = start() if resumption is None else _start_with_config(run_dir, run, start)
    finally:
        os.close(lock)
    if code not in _EXPLAINED_CODES and latest_written(run_dir) is not None:
        log(f"continue with: lockstep train --resume {shlex.quote(str(run_dir))}")
    return code, run_dir


def _start_with_config(run_dir: Path, run: "AnyRun", start: Callable[[], int]) -> int:
    """Start ranks that read the config of a resumed run; the earlier one comes back if they refuse it."""
    remove_partial_files(run_dir)  # the guardian of a start that was killed may have been killed with it
    config_before, summary_before = (run_dir / RUN_FILE).read_bytes(), modified_at(run_dir / SUMMARY_FILE)
    write_config(run_dir, run)
    code = start()
    if refused_to_resume(run_dir, code, summary_before):
        write_atomically(run_dir / RUN_FILE, config_before)
    return code


def train_on_ranks(
    run: "AnyRun",
    ranks: int,
    *,
    run_dir: Path | str | None,
    init_from: Path | str | None,
    resume: Path | str | None,
    profile: int | None = None,
) -> dict[str, Any]:
    """`lockstep.train(run, ranks=N)`: train on new processes and return their `summary.json`.

    The ranks do not import the calling script, so it needs no `if __name__ == "__main__":`, and a notebook works too.
    Arguments as `lockstep.train`.

    Raises:
        ConfigError: the run cannot work, or a rank raised one.
        RunError: a rank failed.
    """
    from lockstep.launch.flags import policy_source
    from lockstep.launch.world_checks import check_world
    from lockstep.session.profile import check_profile
    from lockstep.session.resume import load_resumption
    from lockstep.session.start_policy import check_start_policy
    from lockstep.world import World

    if ranks < 1:
        raise ConfigError(f"ranks={ranks} must be at least 1")
    run = _with_script_paths(run)
    if profile is not None and resume is None:
        check_profile(profile, run)
    resumption = None if resume is None else load_resumption(Path(resume), run)
    check_world(run, World(size=ranks), None if resumption is None else resumption.num_shards)
    source = policy_source(None if init_from is None else str(init_from))
    if source is not None and resumption is None:
        check_start_policy(source, run)
    code, path = launch_training(
        run,
        ranks,
        run_dir=None if run_dir is None else Path(run_dir),
        resumption=resumption,
        init_from=source,
        profile=profile,
    )
    summary = read_json(path / SUMMARY_FILE)
    if code == 0 or (code in _EXPLAINED_CODES[2:] and summary.get("status") != "failed"):
        return summary
    failure = read_failure(path) or {}
    message = str(failure.get("message", f"the ranks ended with code {code}")).removeprefix("lockstep: error: ")
    if code == ConfigError.exit_code:
        raise ConfigError(message)
    who = "" if failure.get("rank") is None or "rank" in message else f"rank {failure['rank']}: "
    raise RunError(f"{who}{message} (logs: {path / 'logs'})")


def _with_script_paths(run: "AnyRun") -> "AnyRun":
    """Replace `__main__` in the settings by the file of the calling script: the ranks have another `__main__`.

    The file is imported here, as the ranks will: one that cannot be, or calls `train` again, is refused.
    """
    from lockstep.envs.load import load_module
    from lockstep.preflight.setting_paths import with_code

    main = getattr(sys.modules["__main__"], "__file__", None)

    def in_script(setting: str, name: str) -> str:
        if not name.startswith("__main__:"):
            return name
        if main is None or not os.path.isfile(main):
            raise ConfigError(
                f"{setting}={name} was typed into a session, and ranks are processes of their own; write it to a "
                "file and name that: path/to/file.py:Name"
            )
        file = os.path.abspath(main)
        load_module(file, f"{setting}={name}")
        return f"{file}:{name.removeprefix('__main__:')}"

    return with_code(run, in_script)


@dataclass(frozen=True, slots=True)
class _Commands:
    """The command that each rank runs, at the first start and after a failure."""

    run_dir: Path
    resume: Path | None
    init_from: Path | None
    flags: list[str]
    latest_before: int | None
    """`latest_written` before the first start."""

    def first_command(self) -> list[str]:
        """The command of the first start."""
        if self.resume is not None:
            return [*PROGRAM, "--resume", str(self.resume), *self.flags]
        source = ["--init-from", str(self.init_from)] if self.init_from is not None else []
        return [*PROGRAM, str(self.run_dir / "run.yaml"), "--run-dir", str(self.run_dir), *self.flags, *source]

    def restart_command(self) -> tuple[list[str], str]:
        """The command after a failure, and a description of its starting point."""
        from lockstep.session.resume import prepare

        path = source_of_restart(self.run_dir, self.resume, self.latest_before)
        step = prepare(path, {}).step
        if step is not None:
            return [*PROGRAM, "--resume", str(path), *self.flags], f"from step {step}"
        if self.resume is None:
            remove_results(self.run_dir)
        return self.first_command(), "from the start"
