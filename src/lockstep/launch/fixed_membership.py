"""Membership of a fixed number of nodes: an attempt begins when all are ready. Needs no framework.

The rendezvous connects all nodes to the main node's store. Each node that is ready for another attempt sets a key
there; once the keys of all connected nodes are set, the main node begins the attempt and stores its members.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Self

from lockstep.distributed.network.store import PrefixStore
from lockstep.errors import ConfigError, RunError
from lockstep.launch.attempt import END, Attempt, AttemptEnd, Member, address_of, node_order, placement_of, store_errors
from lockstep.launch.failure_report import log
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import RankPlacement, free_port
from lockstep.launch.rendezvous import Cancelled, NodeRendezvous
from lockstep.system.bounded import bounded

_POLL_S = 0.02
_LOOK_EVERY_S = 1.0
_REPORT_EVERY_S = 10.0


class _Waiting:
    """Called repeatedly while a node waits for the next attempt.

    Attributes:
        missing: the nodes of the last attempt that are waited for; none before the first.
    """

    def __init__(self, cancelled: Callable[[], bool], timeout_s: float, missing: Sequence[str]) -> None:
        self._cancelled, self._timeout_s = cancelled, timeout_s
        self._again = bool(missing)
        self._began = self._reported_at = time.monotonic()
        self.missing = missing

    def __call__(self) -> None:
        """Report who is missing, now and then.

        Raises:
            Cancelled: as requested.
            ConfigError: the timeout is over before the first attempt.
            RunError: it is over before another one. A scheduler may start the run again.
        """
        if self._cancelled():
            raise Cancelled
        now, missing = time.monotonic(), self.missing
        timeout = f"--join-timeout {self._timeout_s:g} s"
        if now > self._began + self._timeout_s:
            if self._again:
                raise RunError(f"{', '.join(missing) or 'some nodes'} did not come back within {timeout}")
            raise ConfigError(f"not all nodes came within {timeout}; start the others, or ask for fewer: --nnodes")
        if missing and now > self._reported_at + _REPORT_EVERY_S:
            self._reported_at = now
            log(f"lockstep: waiting for {', '.join(missing)}, or others in their place")


class FixedMembership:
    """The membership of a fixed number of nodes, seen from this one, as a context manager."""

    def __init__(self, nodes: Nodes, info: NodeRendezvous) -> None:
        self._nodes = nodes
        self._info = info
        self._store = info.store
        self._next = 0  # number of the attempt that this node waits for
        self._names: dict[str, str] = {}
        """The nodes of the last attempt by process, for messages; empty before the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def changed(self) -> bool:
        """False: no node is admitted during an attempt."""
        return False

    def pending_attempt(self) -> Attempt:
        """The attempt that has not begun.

        A node that is interrupted now must report that it ends, because the others wait for it.
        """
        nowhere = RankPlacement(
            node_rank=-1, num_nodes=self._nodes.maximum, first_rank=0, world_size=0, address="", port=0
        )
        return Attempt(PrefixStore(f"{self._next}", self._store), nowhere, (), 0, self._next)

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Attempt | AttemptEnd:
        """Wait until all nodes are ready for another attempt, after `failures` failed ones.

        Polls `cancelled`; raises `Cancelled` once it is true. Returns how the attempt ended if it did before its start.
        """
        nodes, info = self._nodes, self._info
        port = (nodes.rank_port or free_port()) if info.main else 0
        mine = Member.of(nodes, info, failures, port)
        with store_errors():
            begun = self._wait_for_attempt(json.dumps(asdict(mine)), cancelled)
        if isinstance(begun, AttemptEnd):
            return begun
        number, self._next = self._next, self._next + 1
        members = [Member(**member) for member in begun.values()]
        main = next(i for i, member in enumerate(members) if member.main)  # it has rank 0
        index = list(begun).index(info.process)
        order = node_order(members)
        self._names = {
            process: f"node {order.index(i)} ({member.address})"
            for i, (process, member) in enumerate(zip(begun, members, strict=True))
        }
        placement = placement_of(
            members, index, address=address_of(members, main), port=members[main].port, token=info.key.hex()
        )
        by_rank = [members[i] for i in order]
        failures = max(member.failures for member in members)
        return Attempt(PrefixStore(f"{number}", self._store), placement, by_rank, failures, number)

    def _wait_for_attempt(self, mine: str, cancelled: Callable[[], bool]) -> dict[str, Any] | AttemptEnd:
        """Wait for the next attempt, of number `_next`; returns its members by process, or its end."""
        waiting = _Waiting(cancelled, self._nodes.join_timeout_s, list(self._names.values()))
        over = threading.Event()

        def wait() -> dict[str, Any] | AttemptEnd:
            number = self._next = self._store.add("attempts", 0)
            self._store.set(f"{number}/ready/{self._info.process}", mine)
            looked_at = time.monotonic()
            while not self._store.check([f"{number}/members"]):
                if self._store.check([f"{number}/{END}"]):
                    return AttemptEnd(**json.loads(self._store.get(f"{number}/{END}")))
                if self._info.main:
                    self._begin(number)
                if self._names and time.monotonic() > looked_at + _LOOK_EVERY_S:
                    looked_at = time.monotonic()
                    waiting.missing = self._missing(number)
                if over.wait(_POLL_S):
                    raise Cancelled
            return json.loads(self._store.get(f"{number}/members"))

        try:
            return bounded(wait, meanwhile=waiting)
        finally:
            over.set()

    def _missing(self, number: int) -> list[str]:
        """The nodes of the last attempt that are not ready for the next one; the main node also sees who has left."""
        here = self._info.connected() or list(self._names)
        ready = {process for process in here if self._store.check([f"{number}/ready/{process}"])}
        return [name for process, name in self._names.items() if process not in ready]

    def _begin(self, number: int) -> None:
        """On the main node, begin an attempt if all nodes are ready and still connected."""
        keys = {process: f"{number}/ready/{process}" for process in self._info.connected()}
        ready = {process: key for process, key in keys.items() if self._store.check([key])}
        if len(ready) >= self._nodes.minimum:
            self._store.add("attempts", 1)
            members = {process: json.loads(self._store.get(key)) for process, key in ready.items()}
            self._store.set(f"{number}/members", json.dumps(members))
