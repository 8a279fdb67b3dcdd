"""Launch ranks on several nodes: each node starts its own ranks, and all nodes end or restart together."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lockstep.errors import ConfigError, RunError
from lockstep.launch.attempt import Attempt, AttemptEnd
from lockstep.launch.failure_report import left_early, log, report_failure, update_summary
from lockstep.launch.fixed_membership import FixedMembership
from lockstep.launch.local_attempt import LocalAttempt
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import Cancelled, NodeRendezvous, rendezvous
from lockstep.launch.restarts import START_RECORD_VARIABLE, recorded_run
from lockstep.launch.signals import caught_signals
from lockstep.launch.supervise import DEFAULT_BOUNDS, SCRIPT_EARLY_S, Bounds, Failure, interruption
from lockstep.record.failure import record_failure
from lockstep.system.cores import usable_cores

if TYPE_CHECKING:
    from lockstep.launch.elastic_membership import ElasticMembership

_POLL_S = 0.5  # how often the main node is asked for the state of the other nodes
_LEAVING_NODE_S = 3.0  # how long a node that leaves may take to report it, after its ranks have stopped those of others
_EXIT_BARRIER_S = 5.0  # how long the main node waits for the others to read how the attempt ended
_LOST_S = 3.0  # how long a node may be without a connection; its ranks, which were killed, are noticed before that
_LAST_S = SCRIPT_EARLY_S  # between the first node whose ranks have succeeded and the last


def launch_on_nodes(  # noqa: PLR0913  # all but command and nodes by keyword
    command: list[str],
    nodes: Nodes,
    *,
    identity: Mapping[str, Any],
    log_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    max_restarts: int = 0,
    ml_framework: str = "torch",
    trains: bool = False,
) -> int:
    """Run `command` once per rank on every node until all ranks succeeded or one failed, whichever node it is on.

    Arguments as `lockstep.launch.local.launch`; `identity` must agree between nodes; `max_restarts` does not count
    restarts because nodes join or leave; `trains`: the command is our own training, whose end is checked.

    Returns:
        The exit code, the same on every node: 0, the first failing rank's, or 128 + n after signal n.

    Raises:
        ConfigError: the nodes contradict each other, or some are missing.
        RunError: the main node has ended.
    """
    nodes = replace(nodes, max_restarts=max_restarts)
    with caught_signals() as caught:
        try:
            with (
                rendezvous(nodes, identity, cancelled=lambda: bool(caught)) as info,
                _membership(nodes, info) as membership,
            ):
                own = dict(environment or {})
                node = _Node(
                    command=command,
                    log_dir=log_dir,
                    environment=own,
                    ml_framework=ml_framework,
                    nodes=nodes,
                    membership=membership,
                    main=info.main,
                    connected=info.connected,
                    caught=caught,
                    bounds=bounds,
                    max_restarts=max_restarts,
                    trains=trains,
                )
                while (code := node.run_attempt()) is None:
                    pass
                return code
        except Cancelled:
            log(f"lockstep: {interruption(caught[0]).message}")
            return 128 + caught[0]


def _membership(nodes: Nodes, info: NodeRendezvous) -> "FixedMembership | ElasticMembership":
    if not nodes.elastic:
        return FixedMembership(nodes, info)
    if find_spec("torch") is None:
        raise ConfigError(
            f"--nnodes {nodes.minimum}:{nodes.maximum}: nodes come and go through torch's rendezvous, and torch is not "
            f"installed; use --nnodes {nodes.maximum}, or pip install 'lockstep-rl[torch]'"
        )
    with _quiet_torch():
        from lockstep.launch.elastic_membership import ElasticMembership
    return ElasticMembership(nodes, info)


@contextlib.contextmanager
def _quiet_torch() -> Generator[None]:
    """Import torch inside with its C++ warnings off: it prints 25 lines of addresses when the main node exits.

    The variable is restored: ranks inherit what the user has set.
    """
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "ERROR"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@dataclass(slots=True)
class _Node:
    command: list[str]
    log_dir: Path | None
    environment: dict[str, str]
    ml_framework: str
    nodes: Nodes
    membership: "FixedMembership | ElasticMembership"
    main: bool
    connected: Callable[[], list[str]]
    """On the main node: the launchers that are connected now."""
    caught: list[int]
    """The signals that this node's launcher has received."""
    bounds: Bounds
    max_restarts: int
    trains: bool
    """Whether the command is our own training."""
    failures: int = 0
    restart: str = ""
    """What the next attempt is, for messages."""
    world_size: int = 0
    """Ranks of the last attempt on all nodes."""

    def run_attempt(self) -> int | None:
        """Run all ranks once. Returns the exit code, None if they are to be restarted."""
        try:
            attempt = self.membership.join(self.failures, lambda: bool(self.caught))
        except Cancelled:
            return self._interrupted()
        if isinstance(attempt, AttemptEnd):
            log(f"lockstep: {attempt.message} (on {attempt.node})")
            if attempt.kind == "interrupted":
                self._record_interruption(Failure(attempt.message, attempt.code, interrupted=attempt.code - 128))
            self._exit_pending(self.membership.pending_attempt())
            return attempt.code
        self.failures, self.world_size = attempt.failures, attempt.placement.world_size
        placement, ranks = attempt.placement, self.nodes.nproc
        last = placement.first_rank + ranks - 1
        log(
            f"lockstep: node {placement.node_rank} of {placement.num_nodes}: "
            f"rank{f's {placement.first_rank}-{last}' if ranks > 1 else f' {last}'} of {placement.world_size}, "
            f"rank 0 at {placement.address}"
        )
        local = LocalAttempt(
            command=self.command,
            ranks=ranks,
            cores=usable_cores(),
            log_dir=self.log_dir,
            environment=self.environment,
            restarts=attempt.restarts,
            placement=placement,
            ml_framework=self.ml_framework,
        )
        with _RemoteNodes(attempt, self) as remote:
            failure, late = self._run_ranks(local, attempt, remote)
            if failure is None:
                failure = self._wait_for_remote_nodes(attempt, remote)
        if failure is None or not remote.restart:
            self._exit_barrier(attempt)
        if failure is None:
            return 0
        if remote.restart and not (self.caught and self.nodes.elastic and failure == interruption(self.caught[0])):
            self.failures += remote.failed
            if remote.failed and failure.rank is not None and (run_dir := self.run_dir()) is not None:
                record_failure(run_dir, rank=failure.rank, message=failure.message, code=failure.code)
            restarted = f"restart {self.failures} of {self.max_restarts}"
            self.restart = restarted if remote.failed else "all ranks start again"
            log(f"lockstep: {remote.headline(failure)}" + ("" if self.caught else f"; {self.restart}"))
            return self._interrupted() if self.caught else None
        if remote.ended_here:
            report_failure(failure, placement.world_size, late, self.log_dir, restarts=attempt.restarts)
        else:
            log(f"lockstep: {failure.headline}")
        return failure.code

    def _run_ranks(
        self, local: LocalAttempt, attempt: Attempt, remote: "_RemoteNodes"
    ) -> tuple[Failure | None, list[int]]:
        """Run the ranks of this node. If they cannot be started, the other nodes are told why, and end, too."""
        try:
            return local.run(self.caught, self.bounds, remote=remote)
        except (ConfigError, RunError) as error:
            if not remote.unreachable:
                attempt.report_end(AttemptEnd("failed", str(error), error.exit_code, None, restart=False))
                self._exit_barrier(attempt)
            raise

    def end(self, failure: Failure, attempt: Attempt) -> AttemptEnd:
        """The report to all nodes of a failure on this one."""
        if failure.interrupted is None:
            restart = failure.restartable and attempt.failures < self.max_restarts
            return AttemptEnd("failed", failure.message, failure.code, failure.rank, restart)
        if self.nodes.elastic and self.caught:  # the other nodes continue without this one
            return AttemptEnd("changed", "a node leaves", failure.code, None, True)
        return AttemptEnd("interrupted", failure.message, failure.code, None, False)

    def _interrupted(self) -> int:
        """End before the next attempt, because of a signal to this launcher; returns the exit code."""
        failure = interruption(self.caught[0], f" before {self.restart}" if self.restart else "")
        log(f"lockstep: {failure.message}")
        self._record_interruption(failure)
        if (attempt := self.membership.pending_attempt()) is None:
            return failure.code
        end = attempt.report_end(AttemptEnd("interrupted", failure.message, failure.code, None, False))
        self._exit_pending(attempt)
        return end.code

    def _record_interruption(self, failure: Failure) -> None:
        """Write to the summary of our own training that it was interrupted between two attempts."""
        if (run_dir := self.run_dir()) is not None:
            update_summary(failure, self.world_size, run_dir, None, restarts=self.failures)

    def run_dir(self) -> Path | None:
        """The run directory of our own training on the main node, once its ranks have begun; else None."""
        return self._recorded_run() if self.main else None

    def _recorded_run(self) -> Path | None:
        """The run directory of our own training, once the ranks of this node have begun."""
        record = self.environment.get(START_RECORD_VARIABLE)
        return None if record is None else recorded_run(Path(record))

    def _exit_pending(self, attempt: Attempt | None) -> None:
        """`_exit_barrier` of an attempt that has not begun, if there is one."""
        if attempt is not None:
            self._exit_barrier(attempt, self.bounds.stop_s + _EXIT_BARRIER_S)  # other nodes may still stop their ranks

    def _exit_barrier(self, attempt: Attempt, timeout_s: float = _EXIT_BARRIER_S) -> None:
        """Report that this node exits. The main node, which has the store, waits until all others have done so."""
        attempt.report_exit()
        deadline = time.monotonic() + timeout_s
        while self.main and not attempt.all_exited() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _wait_for_remote_nodes(self, attempt: Attempt, remote: "_RemoteNodes") -> Failure | None:
        """Wait, after this node's ranks succeeded, until those of all nodes have."""
        if self.trains and attempt.placement.first_rank == 0 and (failure := left_early(self._recorded_run())):
            failure = remote.report(failure)
            if not remote.restart and (run_dir := self._recorded_run()) is not None:
                update_summary(failure, self.world_size, run_dir, None, restarts=self.failures)
            return failure
        attempt.report_success()
        deadline = time.monotonic() + _LAST_S
        while not attempt.all_succeeded():
            if (failure := remote.poll()) is not None:
                return failure
            if self.caught:
                return remote.report(interruption(self.caught[0]))
            if time.monotonic() > deadline:
                return remote.report(Failure(f"ranks of other nodes still run {_LAST_S:g} s after this node's", 1))
            time.sleep(0.1)
        return None


class _RemoteNodes:
    """The other nodes of an attempt; see `lockstep.launch.local_attempt.RemoteNodes`. A context manager.

    A thread sends the requests to the main node: a slow reply must not keep this node from watching its own ranks.
    """

    def __init__(self, attempt: Attempt, node: _Node) -> None:
        self._attempt = attempt
        self._node = node
        self._end: AttemptEnd | None = None
        """How the attempt ended, once `poll` or `report` has returned it."""
        self._reported: AttemptEnd | Exception | None = None
        """What the thread has learned: how the attempt ended, or why the main node cannot be asked."""
        self._lost_at = math.inf
        """Since when a node has not been connected."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="other-nodes")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def restart(self) -> bool:
        """Whether all ranks are restarted."""
        return self._end is not None and self._end.restart

    @property
    def failed(self) -> bool:
        """Whether a rank failed or a node was lost, as opposed to nodes joining or leaving."""
        return self._end is not None and self._end.kind in ("failed", "lost")

    @property
    def unreachable(self) -> bool:
        """Whether the main node does not answer any more."""
        return isinstance(self._reported, Exception)

    @property
    def ended_here(self) -> bool:
        """Whether the attempt ended on this node first."""
        return self._end is not None and self._end.node_rank == self._attempt.placement.node_rank

    def poll(self) -> Failure | None:
        if isinstance(self._reported, Exception):
            raise self._reported
        if self._reported is None:
            return None
        self._end = self._reported
        return self._failure(self._reported)

    def report(self, failure: Failure) -> Failure:
        if self._end is not None:  # another node has reported it
            return failure
        if failure.interrupted is not None and self._node.nodes.elastic:
            self._wait_for_leaving_node()
        self._end = self._attempt.report_end(self._node.end(failure, self._attempt))
        return failure if self.ended_here or self._node.caught else self._failure(self._end)

    def run_dir(self) -> Path | None:
        return None if self.restart else self._node.run_dir()

    def headline(self, failure: Failure) -> str:
        """Why the ranks are restarted."""
        return self._end.message if self._end is not None and self._end.kind == "changed" else failure.headline

    def _wait_for_leaving_node(self) -> None:
        """Wait for the report of the node that leaves, if one does.

        Its ranks have received a signal, and all ranks have agreed to stop: those of this node may end before the
        report comes. If none comes, the signal was sent to ranks, not to a launcher, and ends the run.
        """
        deadline = time.monotonic() + _LEAVING_NODE_S * (self._attempt.placement.num_nodes > 1)
        while self._reported is None and not self._node.caught and time.monotonic() < deadline:
            time.sleep(0.05)

    def _watch(self) -> None:
        try:
            while self._reported is None and not self._over.wait(_POLL_S):
                self._reported = self._attempt.reported_end()
                end = self._lost_node() if self._reported is None else None
                if self._reported is None and end is None and self._node.membership.changed():
                    end = AttemptEnd("changed", "a node joins", 128 + signal.SIGTERM, None, True)
                if end is not None:
                    self._reported = self._attempt.report_end(end)
        except RunError as error:
            self._reported = error

    def _lost_node(self) -> AttemptEnd | None:
        """On the main node: the report that a node's launcher is gone, which has reported no end."""
        number = self._attempt.disconnected(self._node.connected()) if self._node.main else None
        if number is None:
            self._lost_at = math.inf
            return None
        self._lost_at = min(self._lost_at, time.monotonic())
        if time.monotonic() < self._lost_at + _LOST_S:
            return None
        members, restart = self._attempt.members, self._attempt.failures < self._node.max_restarts
        message = f"node {number} ({members[number].address}) is lost: its launcher was killed, or its network is cut"
        return AttemptEnd("lost", message, 1, sum(member.nproc for member in members[:number]), restart)

    def _failure(self, end: AttemptEnd) -> Failure:
        if end.kind == "lost":
            return Failure(end.message, end.code, end.rank)
        if end.kind == "failed":
            head, newline, rest = end.message.partition("\n")
            return Failure(f"{head} (on {end.node}){newline}{rest}", end.code, end.rank)
        number = signal.SIGTERM if end.kind == "changed" else end.code - 128
        return Failure(f"{end.message} (on {end.node})", end.code, interrupted=number)
