"""Launch ranks on several nodes: each node starts its own ranks, and all nodes end or restart together."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lockstep.errors import ConfigError, RunError
from lockstep.launch.failure_report import log, report_failure
from lockstep.launch.fixed import FixedMembership
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import Cancelled, NodeRendezvous, rendezvous
from lockstep.launch.round import End, Round
from lockstep.launch.signals import caught_signals
from lockstep.launch.start import Start
from lockstep.launch.supervise import Bounds, Failure, interruption
from lockstep.system.cores import usable_cores

if TYPE_CHECKING:
    from lockstep.launch.membership import ElasticMembership

_POLL_S = 0.5  # how often the main node is asked for the state of the other nodes
_LEAVE_S = 5.0  # how long the main node waits for the others to read how the attempt ended
_LAST_S = 300.0  # between the first node whose ranks have succeeded and the last
_BOUNDS = Bounds()


def launch_on_nodes(  # noqa: PLR0913  # all but command and nodes by keyword
    command: list[str],
    nodes: Nodes,
    *,
    identity: Mapping[str, Any],
    log_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    max_restarts: int = 0,
    bounds: Bounds = _BOUNDS,
    ml_framework: str = "torch",
) -> int:
    """Run `command` once per rank on every node until all ranks succeeded or one failed, whichever node it is on.

    Arguments as `lockstep.launch.local.launch`; `identity` must agree between nodes; `max_restarts` does not count
    restarts because nodes join or leave.

    Returns:
        The exit code, the same on every node: 0, the first failing rank's, or 128 + n after signal n.

    Raises:
        ConfigError: the nodes contradict each other, or some are missing.
        RunError: the main node has ended.
    """
    with caught_signals() as caught:
        try:
            with (
                rendezvous(nodes, identity, cancelled=lambda: bool(caught)) as info,
                _membership(nodes, info) as membership,
            ):
                node = _Node(nodes, membership, caught, max_restarts, main=info.main, ml_framework=ml_framework)
                while True:
                    code = node.run_attempt(command, log_dir, dict(environment or {}), bounds)
                    if code is not None:
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
        from lockstep.launch.membership import ElasticMembership
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


class _Node:
    def __init__(
        self,
        nodes: Nodes,
        membership: "FixedMembership | ElasticMembership",
        caught: list[int],
        max_restarts: int,
        *,
        main: bool,
        ml_framework: str,
    ) -> None:
        self._nodes = nodes
        self._membership = membership
        self._caught = caught
        self._max_restarts = max_restarts
        self._main = main
        self._ml_framework = ml_framework
        self._failures = 0

    def run_attempt(
        self, command: list[str], log_dir: Path | None, environment: dict[str, str], bounds: Bounds
    ) -> int | None:
        """Run all ranks once. Returns the exit code, None if they are to be restarted."""
        this = self._membership.join(self._failures, lambda: bool(self._caught))
        self._failures = this.failures
        place, ranks = this.place, self._nodes.nproc
        last = place.first_rank + ranks - 1
        log(
            f"lockstep: node {place.node_rank} of {place.num_nodes}: "
            f"rank{f's {place.first_rank}-{last}' if ranks > 1 else f' {last}'} of {place.world_size}, "
            f"rank 0 at {place.address}"
        )
        start = Start(
            command=command,
            ranks=ranks,
            cores=usable_cores(),
            run_dir=log_dir,
            environment=environment,
            restarts=this.starts,
            place=place,
            ml_framework=self._ml_framework,
        )
        with _Others(this, self) as others:
            failure, late = start.run(self._caught, bounds, others=others)
            if failure is None:
                failure = self._wait_for_others(this, others)
        if failure is None or not others.again:
            this.leave()
            deadline = time.monotonic() + _LEAVE_S
            while self._main and not this.all_left() and time.monotonic() < deadline:
                time.sleep(0.1)  # its store serves the others until they have read how the attempt ended
        if failure is None:
            return 0
        if others.again and not self._caught:
            self._failures += others.failed
            restart = f"restart {self._failures} of {self._max_restarts}" if others.failed else "all ranks start again"
            log(f"lockstep: {others.headline(failure)}; {restart}")
            return None
        if others.here:
            report_failure(failure, place.world_size, late, log_dir, restarts=this.starts)
        else:
            log(f"lockstep: {failure.headline}")
        return failure.code

    @property
    def interrupted(self) -> bool:
        """Whether this node's launcher has received a signal."""
        return bool(self._caught)

    def end(self, failure: Failure, this: Round) -> End:
        """The report to all nodes of a failure on this one."""
        if failure.interrupted is None:
            again = failure.restartable and this.failures < self._max_restarts
            return End("failed", failure.message, failure.code, failure.rank, again)
        if self._nodes.elastic:  # the other nodes continue without one that leaves
            return End("changed", "a node leaves" if self._caught else "nodes change", failure.code, None, True)
        return End("interrupted", failure.message, failure.code, None, False)

    def joined_by_another(self) -> bool:
        """Whether another node waits to be admitted."""
        return self._membership.changed()

    def _wait_for_others(self, this: Round, others: "_Others") -> Failure | None:
        """Wait, after this node's ranks succeeded, until those of all nodes have."""
        this.succeeded()
        deadline = time.monotonic() + _LAST_S
        while not this.all_succeeded():
            if (failure := others.poll()) is not None:
                return failure
            if self._caught:
                return others.report(interruption(self._caught[0]))
            if time.monotonic() > deadline:
                return others.report(Failure(f"ranks of other nodes still run {_LAST_S:g} s after this node's", 1))
            time.sleep(0.1)
        return None


class _Others:
    """The other nodes of an attempt; see `lockstep.launch.start.Others`. A context manager.

    A thread sends the requests to the main node: a slow reply must not keep this node from watching its own ranks.
    """

    def __init__(self, this: Round, node: _Node) -> None:
        self._this = this
        self._node = node
        self._end: End | None = None
        self._found: End | Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="other-nodes")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def again(self) -> bool:
        """Whether all ranks are restarted."""
        return self._end is not None and self._end.again

    @property
    def failed(self) -> bool:
        """Whether a rank failed, as opposed to nodes joining or leaving."""
        return self._end is not None and self._end.kind == "failed"

    @property
    def here(self) -> bool:
        """Whether the attempt ended on this node first."""
        return self._end is not None and self._end.node_rank == self._this.place.node_rank

    def poll(self) -> Failure | None:
        if isinstance(self._found, Exception):
            raise self._found
        if self._found is None:
            return None
        self._end = self._found
        return self._failure(self._found)

    def report(self, failure: Failure) -> Failure:
        if self._end is not None:  # another node has reported it
            return failure
        self._end = self._this.report_end(self._node.end(failure, self._this))
        return failure if self.here or self._node.interrupted else self._failure(self._end)

    def headline(self, failure: Failure) -> str:
        """Why the ranks are restarted."""
        return self._end.message if self._end is not None and self._end.kind == "changed" else failure.headline

    def _watch(self) -> None:
        try:
            while self._found is None and not self._over.wait(_POLL_S):
                self._found = self._this.reported_end()
                if self._found is None and self._node.joined_by_another():
                    end = End("changed", "a node joins", 128 + signal.SIGTERM, None, True)
                    self._found = self._this.report_end(end)
        except RunError as error:
            self._found = error

    def _failure(self, end: End) -> Failure:
        if end.kind == "failed":
            head, newline, rest = end.message.partition("\n")
            return Failure(f"{head} (on {end.node}){newline}{rest}", end.code, end.rank)
        number = signal.SIGTERM if end.kind == "changed" else end.code - 128
        return Failure(f"{end.message} (on {end.node})", end.code, interrupted=number)
