"""Start ranks on this machine: `launch` a command, or `spawn` a function."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from lockstep.errors import ConfigError, RunError
from lockstep.launch.failure_report import log, report_failure, update_summary
from lockstep.launch.local_attempt import LocalAttempt
from lockstep.launch.rank_environment import check_no_rank, rank_environments
from lockstep.launch.signals import caught_signals
from lockstep.launch.spawned_call import pack, unpack
from lockstep.launch.supervise import DEFAULT_BOUNDS, Bounds, Failure, RankGroup, interruption, wait_for_ranks
from lockstep.record.partial_files import modified_at
from lockstep.system.cores import usable_cores

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often all ranks are restarted after one of them failed, and with which command."""

    max_restarts: int = 0
    next_command: Callable[[], tuple[list[str], str]] | None = None
    """Called before each restart. Returns the command and a description of its starting point, "from step 51200". A
    `ConfigError` means that no restart is possible. Default: the same command, "from the start"."""
    left_early: Callable[[], Failure | None] = lambda: None
    """Called after all ranks exited with 0: why that is a failure all the same."""


_NO_RESTARTS = RestartPolicy()


def launch(  # noqa: PLR0913  # all but the command by keyword
    command: list[str],
    *,
    ranks: int,
    run_dir: Path | None = None,
    log_dir: Path | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    restart_policy: RestartPolicy = _NO_RESTARTS,
    ml_framework: str = "torch",
) -> int:
    """Run `command` once per rank until all succeeded or one failed.

    The first failure ends all ranks and is printed with the end of that rank's log. Then all ranks are restarted as
    `restart_policy` says, except after a user error. SIGINT, SIGTERM, SIGUSR1 and SIGHUP are forwarded once and end the
    run; a second SIGINT kills the ranks.

    Args:
        command: program and arguments, the same for all ranks; they differ by their environment variables.
        ranks: number of ranks.
        run_dir: the run directory of our own training: partial files of killed ranks are removed, `summary.json` has
            the failure. None: a command of the user's.
        log_dir: holds `logs/rank_R.log`; default: `run_dir`. Without both, ranks print to our output.
        timeout_s: bound on the whole run, if any, restarts included.
        environment: variables that override this process's own.
        bounds: how long ranks may take to end.
        restart_policy: restarts after a failure; default: none.
        ml_framework: `jax` sets the `JAX_*` variables in each rank, everything else those of torchrun.

    Returns the exit code: 0, the first failing rank's (128 + n if signal n killed it), or 128 + n if signal n came.
    """
    attempt = LocalAttempt(
        command=command,
        ranks=ranks,
        cores=_cores(ranks),
        log_dir=run_dir if log_dir is None else log_dir,
        run_dir=run_dir,
        environment=dict(environment or {}),
        ml_framework=ml_framework,
    )
    return run_attempts(attempt, restart_policy, bounds, timeout_s=timeout_s)


class RestartableAttempt(Protocol):
    """One attempt to run all ranks of a command, wherever they run."""

    @property
    def command(self) -> list[str]:
        """Program and arguments of each rank."""
        ...

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    @property
    def restarts(self) -> int:
        """Number of earlier attempts."""
        ...

    @property
    def run_dir(self) -> Path | None:
        """The run directory of our own training, if it is one."""
        ...

    @property
    def log_dir(self) -> Path | None:
        """The directory of the ranks' logs."""
        ...

    def run(
        self, caught: list[int], bounds: Bounds, *, timeout_s: float | None = None, since: float | None = None
    ) -> tuple[Failure | None, list[int]]:
        """Start all ranks and wait until none is left; see `LocalAttempt.run`."""
        ...

    def restarted(self, command: list[str], title: str) -> "RestartableAttempt":
        """The next attempt: `command`, with `title` in the logs."""
        ...


def run_attempts(
    attempt: RestartableAttempt, policy: RestartPolicy, bounds: Bounds, *, timeout_s: float | None = None
) -> int:
    """Run an attempt, and further ones after failures; returns the exit code. Arguments and signals as `launch`."""
    started_at = time.monotonic()
    run_dir, before = attempt.run_dir, cast("Failure | None", None)
    summary_modified_at = None if run_dir is None else modified_at(run_dir / "summary.json")
    # Handlers are installed first: ranks then start with default ones even where a shell ignores SIGINT (`command &`).
    with caught_signals() as caught:
        while True:
            try:
                failure, late = attempt.run(caught, bounds, timeout_s=timeout_s, since=started_at)
            except RunError as error:  # a restart that cannot begin must not hide why it was needed
                if before is not None:
                    log(f"lockstep: error: {error}")
                failure, late = before or Failure(f"error: {error}", error.exit_code), []
                break
            failure = failure or policy.left_early()
            if failure is None:
                return 0
            if attempt.restarts == policy.max_restarts or not failure.restartable:
                break
            restart = f"restart {attempt.restarts + 1} of {policy.max_restarts}"
            next_attempt = None if caught else _next_attempt(attempt, restart, policy)
            if caught:  # an interrupted run is not restarted
                log(f"lockstep: {failure.headline}")
                failure = interruption(caught[0], f" before {restart}")
                break
            if next_attempt is None:
                break
            attempt, before = next_attempt[0], failure
            log(f"lockstep: {failure.headline}; {next_attempt[1]}")
        report_failure(failure, attempt.ranks, late, attempt.log_dir, restarts=attempt.restarts)
        if run_dir is not None:
            update_summary(failure, attempt.ranks, run_dir, summary_modified_at, restarts=attempt.restarts)
    return failure.code


def _next_attempt(
    attempt: RestartableAttempt, restart: str, policy: RestartPolicy
) -> tuple[RestartableAttempt, str] | None:
    """The next attempt and its title; None, with the reason logged, if there is none."""
    try:
        command, starting_point = attempt.command, "from the start"
        if policy.next_command is not None:
            command, starting_point = policy.next_command()
    except ConfigError as error:
        log(f"lockstep: no {restart}: {error}")
        return None
    title = f"{restart} {starting_point}"
    return attempt.restarted(command, title), title


def spawn(fn: Callable[..., _T], ranks: int, args: tuple[Any, ...] = (), *, timeout_s: float | None = None) -> list[_T]:
    """Call `fn(rank, *args)` in a fresh process per rank; inside, `World.from_environment()` knows the ranks.

    The new processes import the script again, so a script that calls this needs `if __name__ == "__main__":` around it.
    `fn`, `args` and results must be picklable.

    Args:
        fn: a function at the top level of a module or script.
        ranks: how many.
        args: further arguments, the same for all ranks.
        timeout_s: bound on the whole call, if any.

    Returns:
        What each rank returned, in rank order.

    Raises:
        RunError: a rank raised, died or exited early; the others are stopped. Its cause shows the rank's traceback.
        ConfigError: the call cannot work, or a rank raised a `ConfigError`.
    """
    if not callable(cast(object, fn)):
        raise ConfigError(f"fn={fn!r} must be a function")
    if not isinstance(cast(object, ranks), int):
        raise ConfigError(f"ranks={ranks!r} must be a whole number")
    if not isinstance(cast(object, args), tuple | list):
        raise ConfigError(f"args is a {type(args).__name__}, not a tuple; give args=(value,)")
    call = pack(fn, args)
    check_no_rank("spawn", several=True)
    environments = rank_environments(ranks, _cores(ranks))
    with contextlib.ExitStack() as stack:
        # Unnamed files hold any amount of data and disappear with the processes that have them open.
        call_file = stack.enter_context(tempfile.TemporaryFile())
        call_file.write(call)
        call_file.flush()
        results = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        with RankGroup(DEFAULT_BOUNDS) as group:
            for rank in range(ranks):
                descriptors = (call_file.fileno(), results[rank].fileno())
                root = str(Path(__file__).parents[2])  # the caller may have found us through its own sys.path
                importing = f"import sys; sys.path.append({root!r}); from lockstep.launch.spawned_call import run"
                code = f"{importing}; run{descriptors}"
                group.start([sys.executable, "-c", code], environments[rank], output=None, pass_fds=descriptors)
            failure = wait_for_ranks(
                group,
                DEFAULT_BOUNDS,
                timeout_s=timeout_s,
                has_result=lambda rank: os.fstat(results[rank].fileno()).st_size > 0,
            )
        for result in results:
            result.seek(0)  # the position is shared with the rank that wrote
        if failure is None:
            return [unpack(rank, results[rank].read()) for rank in range(ranks)]
        # Only the failed rank is read: the failures of other ranks are its consequences.
        if failure.rank is not None and failure.code in (1, 2) and (data := results[failure.rank].read()):
            unpack(failure.rank, data)
        raise RunError(failure.message)


def _cores(ranks: int) -> int:
    cores = usable_cores()
    if ranks > cores:
        log(f"lockstep: {ranks} ranks share {cores} usable core{'s' * (cores > 1)} and will take turns")
    return cores
