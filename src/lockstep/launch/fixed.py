"""A fixed number of nodes: a round begins when all are ready. Needs no framework.

The rendezvous connects all nodes to the main node's store. Each node that is ready for another start of all ranks sets
a key there; the main node begins the round once all keys of connected nodes are set, and sets who takes part.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Self

from lockstep.distributed.network.store import PrefixStore
from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import free_port
from lockstep.launch.rendezvous import Cancelled, NodeRendezvous
from lockstep.launch.round import Member, Round, asking, members, place_of
from lockstep.system.bounded import bounded

_POLL_S = 0.02


class FixedMembership:
    """This node among a fixed number of others, as a context manager."""

    def __init__(self, nodes: Nodes, info: NodeRendezvous) -> None:
        self._nodes = nodes
        self._info = info
        self._store = info.store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def main(self) -> bool:
        """Whether this node serves the store."""
        return self._info.main

    def changed(self) -> bool:
        """False: no node is admitted during a round."""
        return False

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Round:
        """Wait until all nodes are ready for another start of all ranks.

        Args:
            failures: how many starts this node has seen fail.
            cancelled: polled; raises `Cancelled` once it is true.
        """
        nodes, info = self._nodes, self._info
        mine = Member.of(nodes, info.address, info.main_address, main=info.main, failures=failures)
        if info.main:
            mine = replace(mine, port=nodes.rank_port or free_port())
        with asking():
            number, begun = self._wait_for_round(json.dumps(asdict(mine)), cancelled)
        every = members(begun.values())
        (main,) = (one for one in every if one.main)
        # How the others reach the main node, which has rank 0.
        address = next((one.main_address for one in every if not one.main), main.address)
        index = list(begun).index(info.process)
        place = place_of(every, index, address=address, port=main.port, token=info.key.hex())
        return Round(PrefixStore(f"{number}", self._store), place, max(one.failures for one in every), number)

    def _wait_for_round(self, mine: str, cancelled: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
        """Its number, and the members by process."""
        deadline = time.monotonic() + self._nodes.join_timeout_s
        over = threading.Event()

        def check() -> None:
            if cancelled():
                raise Cancelled
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"not all nodes came within --join-timeout {self._nodes.join_timeout_s:g} s; start the others, or "
                    "ask for fewer: --nnodes"
                )

        def wait() -> tuple[int, dict[str, Any]]:
            number = self._store.add("rounds", 0)
            self._store.set(f"{number}/ready/{self._info.process}", mine)
            while not self._store.check([f"{number}/members"]):
                if self._info.main:
                    self._begin(number)
                if over.wait(_POLL_S):
                    raise Cancelled
            return number, json.loads(self._store.get(f"{number}/members"))

        try:
            return bounded(wait, meanwhile=check)
        finally:
            over.set()

    def _begin(self, number: int) -> None:
        """Begin a round, on the main node, if all nodes are ready and still connected."""
        keys = {process: f"{number}/ready/{process}" for process in self._info.connected()}
        ready = {process: key for process, key in keys.items() if self._store.check([key])}
        if len(ready) >= self._nodes.minimum:
            self._store.add("rounds", 1)
            every = {process: json.loads(self._store.get(key)) for process, key in ready.items()}
            self._store.set(f"{number}/members", json.dumps(every))
