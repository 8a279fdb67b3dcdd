"""The actor that runs one child process on the node that Ray chose: a rank, or a whole run of a sweep.

The process is a child and not the actor itself, so that its exit code, its signals and its log stay its own. It never
outlives the actor: the kernel ends it with the actor's thread, and a guardian process ends what it has started.
"""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.distributed.network.interfaces import interface_of
from lockstep.launch.child import launcher_variables
from lockstep.launch.failure_report import ATTEMPT_PREFIX
from lockstep.launch.rank import Rank
from lockstep.launch.rank_environment import RankPlacement, free_port, rank_environments
from lockstep.launch.supervise import Bounds, RankGroup
from lockstep.record.console import terminal_variable

MAX_CONCURRENCY = 8
"""Threads of the actor: one runs the child, the others signal it and read what it prints."""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where an actor is."""

    node_id: str
    """Of the Ray node."""
    address: str
    """At which other nodes reach it."""
    name: str
    gpus: tuple[str, ...]
    """GPUs that Ray has assigned to the actor, as CUDA_VISIBLE_DEVICES names them."""
    port: int
    """A free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOnNode:
    """The place of a rank among the ranks of its node."""

    local_rank: int
    local_size: int
    cpus: int
    """CPUs of each rank."""
    placement: RankPlacement
    restarts: int
    """Number of earlier attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The process to start."""

    command: list[str]
    environment: Mapping[str, str]
    """Variables that override those of the actor."""
    directory: str
    """The working directory, where it exists on the node."""
    search_path: list[str] = field(default_factory=list[str])
    """Entries of PYTHONPATH before those of the node."""
    python: str = sys.executable
    """The interpreter of the sender; the actor's is used in its place."""
    index: int = 0
    """Global rank, for messages."""
    rank: RankOnNode | None = None
    """None: the process is no rank."""
    log: Path | None = None
    """The file that its output is appended to; None: Ray's log of the actor."""
    title: str = ""
    """Separates this attempt from earlier ones in the log."""
    call: bytes | None = None
    """Input of a function call (`lockstep.launch.spawned_call`); the command then gets two descriptors appended."""


class ChildActor:
    """Runs one child process. Ray calls the methods in threads."""

    def __init__(self) -> None:
        self._process: Rank | None = None
        self._early: list[int] = []  # signals that came before the process
        self._terminal, self._terminal_writer = os.pipe()

    def describe(self) -> Host:
        """Where this actor is."""
        import ray

        context = ray.get_runtime_context()
        return Host(
            node_id=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            name=socket.gethostname(),
            gpus=tuple(context.get_accelerator_ids().get("GPU", ())),
            port=free_port(),
        )

    def run(self, child: Child) -> tuple[int, bytes]:
        """Start the process and wait for its end.

        Returns:
            Its exit code, minus the signal that killed it; and the result of its call, if it makes one.
        """
        environment = _environment(child)
        command = [sys.executable if word == child.python else word for word in child.command[:1]] + child.command[1:]
        with contextlib.ExitStack() as stack:
            descriptors: list[int] = []
            result = None
            if child.call is not None:
                call, result = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
                call.write(child.call)
                call.flush()
                descriptors = [call.fileno(), result.fileno()]
                command[-1] += f"; run{tuple(descriptors)}"
            if child.rank is not None and child.index == 0 and child.log is not None:
                environment |= terminal_variable(self._terminal_writer)
                descriptors.append(self._terminal_writer)
            output = stack.enter_context(_log(child)) if child.log is not None else None
            if os.path.isdir(child.directory):
                os.chdir(child.directory)
            # The guardian of the group is told of the process, and ends it when this actor is killed.
            group = stack.enter_context(RankGroup(Bounds(), first_rank=child.index))
            try:
                with _unblocked_signals():
                    group.start(command, environment, output=output, pass_fds=descriptors)
            finally:
                os.close(self._terminal_writer)  # the readers reach the end of the pipe when the process ends
            self._process = group.ranks[0]
            _restore_niceness(self._process.process.pid)
            for number in self._early:
                self.send_signal(number)
            self._process.process.wait()
            code = self._process.process.returncode
            if result is not None:
                result.seek(0)
                return code, result.read()
            return code, b""

    def send_signal(self, number: int) -> None:
        """Signal the process; SIGKILL also kills the processes that it has started."""
        if self._process is None:
            self._early.append(number)
        elif number == signal.SIGKILL:
            self._process.signal_group(number)
        elif self._process.process.poll() is None:
            self._process.process.send_signal(number)
            self._process.signal_group(signal.SIGCONT)  # a stopped process handles a signal only once it is continued

    def read_terminal(self) -> bytes:
        """What rank 0 has printed for the user since the last call; empty when it has ended."""
        return os.read(self._terminal, _READ_BYTES)


def _environment(child: Child) -> dict[str, str]:
    """The complete environment of the process."""
    entries = [*child.search_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    given = {**child.environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, entries)))}
    if child.rank is None:
        # Ray sets OMP_NUM_THREADS for the actor, which is not the user's choice for the process.
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        chosen = {name: value for name, value in given.items() if value or name != "OMP_NUM_THREADS"}
        return {**inherited, **chosen, **launcher_variables()}
    here = child.rank
    placement = here.placement
    if placement.num_nodes > 1:
        import ray

        placement = replace(placement, interface=interface_of(ray.util.get_node_ip_address()))
    environments = rank_environments(
        here.local_size, here.cpus * here.local_size, given, restarts=here.restarts, placement=placement
    )
    return environments[here.local_rank]


def _restore_niceness(pid: int) -> None:
    """Give the process the niceness of the raylet: Ray starts actors with 15, and their children inherit it.

    Beside processes with 0, such as those of Ray itself, a rank would get 3% of a core.
    """
    with contextlib.suppress(OSError):  # it needs CAP_SYS_NICE
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, os.getppid()))


@contextlib.contextmanager
def _log(child: Child) -> Generator[int]:
    assert child.log is not None
    child.log.parent.mkdir(parents=True, exist_ok=True)
    with child.log.open("ab") as file:
        if file.tell() and child.title:
            file.write(f"{ATTEMPT_PREFIX}{child.title}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            file.flush()
        yield file.fileno()


@contextlib.contextmanager
def _unblocked_signals() -> Generator[None]:
    """Unblock all signals in this thread: Ray blocks SIGINT in its processes, and children would inherit that."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
