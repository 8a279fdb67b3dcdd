"""The command line of the workflows of other libraries: starts ranks, connects them, reports how each ended."""

import contextlib
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NoReturn

from lockstep.distributed.agreement import Gather
from lockstep.distributed.network.rendezvous_address import with_rendezvous_address
from lockstep.distributed.timers import Timers
from lockstep.errors import PEER_DELAY_S, ConfigError, PeerError, RunError
from lockstep.record.run_dir import RunDir
from lockstep.system.exit_signals import cleanup_on_signal
from lockstep.system.files import shown_path
from lockstep.workflows.library_arguments import LibraryRequest, parse, without_ranks
from lockstep.workflows.library_run import LibraryRun, run_name
from lockstep.world import World

if TYPE_CHECKING:
    import torch

_TIMEOUT_S = 600.0  # a simulator may compile kernels for minutes on one rank while another waits
_TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PEER_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")


def main(library: str, train: Callable[[LibraryRun], None], arguments: list[str] | None = None) -> int:
    """The command line of a workflow; returns the exit code.

    Args:
        library: its name.
        train: trains with the library on one rank.
        arguments: default: the command line.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        request, ranks = parse(library, words)
        if ranks:
            return _start_ranks(request, ranks, words)
        world = World.from_environment()
        return _train(request, world, train)
    except (ConfigError, RunError) as error:
        print(f"lockstep: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _start_ranks(request: LibraryRequest, ranks: int, words: list[str]) -> int:
    """Start the same command once per rank on this machine."""
    from lockstep.launch.failure_report import left_early
    from lockstep.launch.local import RestartPolicy, launch
    from lockstep.launch.search_path import search_path

    module = f"lockstep.workflows.{request.library}"
    command = {"task": request.task, "algo": request.library, "command": shlex.join([module, *words])}
    path = RunDir.create(request.run_dir, command, run_name(request)).path
    print(f"lockstep: {ranks} ranks, logs in {shown_path(path)}/logs", flush=True)
    return launch(
        [sys.executable, "-m", module, *without_ranks(words), "--run_dir", str(path), "--started-by-lockstep"],
        ranks=ranks,
        run_dir=path,
        environment={"PYTHONPATH": search_path()},
        restart_policy=RestartPolicy(left_early=lambda: left_early(path)),
        ml_framework=request.ml_framework,
    )


def _train(request: LibraryRequest, world: World, train: Callable[[LibraryRun], None]) -> int:
    """Train on this rank, and record how it ended."""
    with _connected(request, world) as (gather, device):
        run = LibraryRun(request, world, gather, device)

        def interrupted(number: int) -> None:
            run.fail(f"interrupted by {signal.Signals(number).name}", "interrupted")

        try:
            with cleanup_on_signal(interrupted):
                train(run)
        except KeyboardInterrupt:
            interrupted(signal.SIGINT)
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                if run.finished:
                    raise
                error = RunError("sys.exit(0) was called during training, by the environment or other code of yours")
            _report_failure(run, error)
        finally:
            run.close()
    return 0


def _report_failure(run: LibraryRun, error: BaseException) -> NoReturn:
    """Print and record why this rank failed; ends the process at once, because other ranks wait in collectives."""
    from lockstep.launch.child import exit_process

    text = " ".join(str(error).split())
    if isinstance(error, PeerError) or any(word in text.lower() for word in _PEER_WORDS):
        time.sleep(PEER_DELAY_S)  # the rank that failed first reports first
    if isinstance(error, ConfigError | RunError):
        code, message = error.exit_code, text
        print(f"lockstep: error: {message}", file=sys.stderr)
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        message = f"{run.request.library} ended with code {code}"
        print(f"lockstep: error: {message}", file=sys.stderr)
    else:
        code, message = 1, f"{type(error).__name__}: {text}"
        traceback.print_exception(error)
    with contextlib.suppress(OSError):  # of a full disk: the code counts
        run.fail(message, "failed", code)
        run.close()
    exit_process(code)


@contextlib.contextmanager
def _connected(request: LibraryRequest, world: World) -> Generator[tuple[Gather, "torch.device"]]:
    """Connect the ranks, in a way that the library uses too."""
    from lockstep.torch.hardware import device_of

    if world.size > 1:  # before MASTER_ADDR and MASTER_PORT are set, which would count as the user's
        world = with_rendezvous_address(world, _TIMEOUT_S)
    set_library_environment(world, request.ml_framework)
    if request.ml_framework == "jax":
        from lockstep.jax.collectives.library_processes import lend_jax_processes
        from lockstep.jax.collectives.processes import Processes

        processes = Processes(world, Timers(), _TIMEOUT_S, _TIMEOUT_S)
        processes.open()
        try:
            with lend_jax_processes(world, processes, request.device, _TIMEOUT_S, _TIMEOUT_S):
                yield processes.gather_object, device_of(world, request.device)
        except BaseException as error:
            processes.close(error)
            raise
        processes.close(None)
        return
    from lockstep.torch.collectives.library_group import lend_process_group
    from lockstep.torch.comm import Comm

    comm = Comm(world, device=request.device, timeout_s=_TIMEOUT_S, startup_timeout_s=_TIMEOUT_S)
    with comm, lend_process_group(comm.device):
        yield comm.gather_object, comm.device


def set_library_environment(world: World, ml_framework: str) -> None:
    """Set the variables that libraries read, whatever launcher started this rank, and remove those that mislead them.

    skrl opens a process group of torch as soon as WORLD_SIZE is more than 1, also for JAX.
    """
    for name in _TORCH_VARIABLES:
        os.environ.pop(name, None)
    if ml_framework == "jax":
        os.environ |= {
            "JAX_RANK": str(world.rank),
            "JAX_WORLD_SIZE": str(world.size),
            "JAX_LOCAL_RANK": str(world.local_rank),
        }
    else:
        os.environ |= {
            "RANK": str(world.rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_RANK": str(world.local_rank),
            "LOCAL_WORLD_SIZE": str(world.local_size),
            "MASTER_ADDR": world.address,
            "MASTER_PORT": str(world.port),
        }
