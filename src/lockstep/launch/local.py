"""Start ranks on this machine: `launch` a command, or `spawn` a function."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lockstep.cores import usable_cores
from lockstep.errors import RunError
from lockstep.launch.call import pack, unpack
from lockstep.launch.signals import caught_signals
from lockstep.launch.supervise import Bounds, RankGroup
from lockstep.launch.variables import variables
from lockstep.launch.verdict import agree, log_path, mark, report, say
from lockstep.record.failure import forget_failure

_T = TypeVar("_T")
_BOUNDS = Bounds()


def launch(
    command: list[str],
    *,
    ranks: int,
    run_dir: Path | None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    bounds: Bounds = _BOUNDS,
) -> int:
    """Run `command` once per rank until all succeeded or one failed.

    The first failure ends all and is told on stderr with the last lines of that rank's log. SIGINT, SIGTERM, SIGUSR1
    and SIGHUP are forwarded once; a second SIGINT kills.

    Args:
        command: program and arguments, the same for all ranks; they differ by the variables that torchrun sets too.
        ranks: how many.
        run_dir: where `logs/rank_R.log` go. None: ranks print where this process prints.
        timeout_s: bound on the whole run, if any.
        environment: variables that go before this process's own.
        bounds: how long ranks may take to end.

    Returns:
        The exit code: 0, the first failing rank's (128 + n if signal n killed it), or 128 + n if signal n came.
    """
    environments = variables(ranks, _cores(ranks), environment)
    if run_dir is not None:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        forget_failure(run_dir)
    # Handlers first: ranks then start with default ones even where a shell had us ignore SIGINT (`command &`).
    with caught_signals() as caught, RankGroup(bounds) as group:
        for rank in range(ranks):
            _start(group, command, environments[rank], run_dir)
        failure = group.wait(timeout_s=timeout_s, caught=caught)
        if failure is None:
            return 0
        if run_dir is not None:
            failure = agree(failure, group.ended, run_dir)
        if failure.interrupted is None:
            group.stop(signal.SIGTERM, bounds.stop_s, lambda: signal.SIGINT in caught)
            late: list[int] = []  # being killed is no news after a failure
        else:
            late = group.stop(failure.interrupted, bounds.interrupt_s, lambda: signal.SIGINT in caught[1:])
        report(failure, ranks, late, run_dir)
        if run_dir is not None:
            mark(failure, ranks, run_dir)
    return failure.code


def spawn(fn: Callable[..., _T], ranks: int, args: tuple[Any, ...] = (), *, timeout_s: float | None = None) -> list[_T]:
    """Call `fn(rank, *args)` in a fresh process per rank; inside, `World.from_environment()` knows the ranks.

    Processes start anew, so a script that calls this needs `if __name__ == "__main__":` around it, and `fn`, `args` and
    results must be picklable.

    Args:
        fn: a function at the top level of a module or script.
        ranks: how many.
        args: further arguments, the same for all ranks.
        timeout_s: bound on the whole call, if any.

    Returns:
        What each rank returned, in rank order.

    Raises:
        RunError: a rank raised, died or left; the others are stopped. Its cause shows the rank's traceback.
        ConfigError: the call cannot work, or a rank raised a `ConfigError`.
    """
    call = pack(fn, args)
    environments = variables(ranks, _cores(ranks))
    with contextlib.ExitStack() as stack:
        # Files without a name: as large as need be, and gone with the processes that hold them.
        call_file = stack.enter_context(tempfile.TemporaryFile())
        call_file.write(call)
        call_file.flush()
        results = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        with RankGroup(_BOUNDS) as group:
            for rank in range(ranks):
                descriptors = (call_file.fileno(), results[rank].fileno())
                root = str(Path(__file__).parents[2])  # the caller may have found us through its own sys.path
                code = f"import sys; sys.path.append({root!r}); from lockstep.launch.call import run; run{descriptors}"
                group.start([sys.executable, "-c", code], environments[rank], output=None, pass_fds=descriptors)
            failure = group.wait(
                timeout_s=timeout_s,
                may_leave=lambda rank: os.fstat(results[rank].fileno()).st_size > 0,
            )
        for result in results:
            result.seek(0)  # the position is shared with the rank that wrote
        if failure is None:
            return [unpack(rank, results[rank].read()) for rank in range(ranks)]
        # The culprit alone is read: the others' ends are its consequences.
        if failure.rank is not None and failure.code in (1, 2) and (data := results[failure.rank].read()):
            unpack(failure.rank, data)
        raise RunError(failure.message)


def _cores(ranks: int) -> int:
    cores = usable_cores()
    if ranks > cores:
        say(f"lockstep: {ranks} ranks share {cores} usable core{'s' * (cores > 1)} and will take turns")
    return cores


def _start(group: RankGroup, command: list[str], environment: dict[str, str], run_dir: Path | None) -> None:
    if run_dir is None:
        group.start(command, environment, output=None)
        return
    rank = int(environment["RANK"])
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(log_path(run_dir, rank), "ab"))
        terminal: list[int] = []
        if rank == 0:
            with contextlib.suppress(OSError):  # our own stdout is closed
                terminal.append(os.dup(1))
                stack.callback(os.close, terminal[0])
                environment = {**environment, "LOCKSTEP_TERMINAL_FD": str(terminal[0])}
        group.start(command, environment, output=log.fileno(), pass_fds=terminal)
