"""Which nodes take part: torch's rendezvous, driven from here.

The only file of the launcher that imports torch; itself imported only where several nodes start together. torch pickles
the state of its rendezvous: every state is signed with a key that the main node gives to the nodes it admits, so that
nobody else can have a node unpickle anything.
"""

import contextlib
import hmac
import json
import logging
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Self

from torch.distributed import (
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    Token,
)

from lockstep.bounded import bounded
from lockstep.errors import ConfigError, RunError
from lockstep.launch.meeting import Cancelled, Met
from lockstep.launch.nodes import Nodes
from lockstep.launch.place import Place
from lockstep.launch.variables import free_port
from lockstep.network.interfaces import interface_of

_LAST_CALL_S = 10.0  # once enough nodes are there: how long to wait for more of them
_ANSWER_S = 60.0  # bound on one question to the main node's store: a link that is cut for a moment is no end
_STOP_S = 1.0
_TELL_S = 5.0  # bound on telling how a round ended: where the link is cut, each node ends alone
_END = "end"
_SIGNATURE = 32  # bytes


@dataclass(frozen=True, slots=True)
class End:
    """How a round ended, as the first node that knew told all others."""

    kind: str
    """`failed`, `interrupted`, or `changed`: nodes came or went."""
    message: str
    code: int
    rank: int | None
    again: bool
    """Whether all nodes start their ranks once more."""
    node_rank: int = -1
    """Of the node that told it."""
    node: str = ""
    """Its name."""


class Round:
    """One start of all ranks of all nodes.

    Attributes:
        place: of this node's ranks.
        failures: how many starts have failed before.
        starts: how many starts there were before.
    """

    def __init__(self, store: Store, place: Place, failures: int, starts: int) -> None:
        self.place, self.failures, self.starts = place, failures, starts
        self._store, self._lost = store, False

    def told(self) -> End | None:
        """What another node has told about this round's end."""
        with _asking():
            return End(**json.loads(self._store.get(_END))) if self._store.check([_END]) else None

    def tell(self, end: End) -> End:
        """Tell all nodes how the round ended; returns what holds: the first to tell is right.

        Where the main node does not answer, each node is alone with what it knows, and nothing starts again.
        """
        mine = replace(end, node_rank=self.place.node_rank, node=os.uname().nodename)
        try:
            held = bounded(lambda: self._store.compare_set(_END, "", json.dumps(asdict(mine))), _TELL_S)
        except (RuntimeError, TimeoutError):
            self._lost = True
            return replace(mine, again=False)
        return End(**json.loads(held))

    def succeeded(self) -> None:
        """This node's ranks have all succeeded."""
        with _asking():
            self._store.add("succeeded", 1)

    def all_succeeded(self) -> bool:
        """Whether those of all nodes have."""
        with _asking():
            return self._store.add("succeeded", 0) == self.place.num_nodes

    def seen(self) -> None:
        """This node knows how the round ended and asks nothing more."""
        self._count("seen", 1)

    def all_seen(self) -> bool:
        """Whether no node will ask anything more, as far as can be known: the main node may go."""
        return self._count("seen", 0) >= self.place.num_nodes

    def _count(self, name: str, more: int) -> float:
        """Of a number that all nodes add to; infinite where the main node does not answer."""
        if not self._lost:
            with contextlib.suppress(RuntimeError, TimeoutError):
                return bounded(lambda: self._store.add(name, more), _TELL_S)
            self._lost = True
        return math.inf


class Membership:
    """This node among the others, as a context manager."""

    def __init__(self, nodes: Nodes, met: Met) -> None:
        self._nodes, self._met = nodes, met

    def __enter__(self) -> Self:
        """Connect to the main node's store; the main node opens it."""
        # Ranks that meet at a store which outlives them find what an earlier start left there: with gloo, 6 of 7
        # restarts then fail.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        for noisy in ("torch.distributed.elastic", "torch.distributed.elastic.rendezvous.dynamic_rendezvous"):
            logging.getLogger(noisy).setLevel(logging.ERROR)  # what matters of it we say ourselves
        nodes, met = self._nodes, self._met
        listening: dict[str, Any] = {} if met.listener is None else {"master_listen_fd": met.listener.detach()}
        with _asking():
            self._store: TCPStore = TCPStore(
                met.main_address,
                met.store_port,
                is_master=met.main,
                timeout=timedelta(seconds=_ANSWER_S),
                wait_for_workers=False,
                **listening,
            )
        join = timedelta(seconds=nodes.join_timeout_s)
        run_id = nodes.run_id or "lockstep"
        self._handler: DynamicRendezvousHandler = DynamicRendezvousHandler.from_backend(
            run_id,
            self._store,
            _Signed(C10dRendezvousBackend(self._store, run_id), met.key),
            nodes.minimum,
            nodes.maximum,
            local_addr=met.address,
            timeout=RendezvousTimeout(join=join, last_call=timedelta(seconds=_LAST_CALL_S)),
        )
        return self

    def __exit__(self, *_: object) -> None:
        # Not shutdown(): that would end the rendezvous for the nodes that go on. Where the link is cut, the thread that
        # is to stop waits for an answer; it dies with this process.
        with contextlib.suppress(RendezvousError, TimeoutError):
            bounded(self._handler._stop_heartbeats, _STOP_S)  # pyright: ignore[reportPrivateUsage]

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Round:
        """Wait until enough nodes are there for another start of all ranks.

        Args:
            failures: how many starts this node has seen fail.
            cancelled: polled; raises `Cancelled` once it is true.
        """
        info = self._next_rendezvous(cancelled)
        store, met = info.store, self._met
        mine = {
            "node_rank": self._nodes.node_rank,
            "nproc": self._nodes.nproc,
            "failures": failures,
            "main": met.main,
            "address": met.address,
            "main_address": met.main_address,
        }
        with _asking():
            store.set(f"node/{info.rank}", json.dumps(mine))
            every: list[dict[str, Any]] = [json.loads(store.get(f"node/{i}")) for i in range(info.world_size)]
            order = sorted(range(len(every)), key=lambda i: _position(every[i], i))
            if order[0] == info.rank:
                first = {"address": _address(every, info.rank), "port": free_port()}
                store.set("first", json.dumps({**first, "starts": self._store.add("lockstep/starts", 1) - 1}))
            first = json.loads(store.get("first"))
        sizes, number = [int(every[i]["nproc"]) for i in order], order.index(info.rank)
        place = Place(
            node_rank=number,
            num_nodes=len(sizes),
            first_rank=sum(sizes[:number]),
            world_size=sum(sizes),
            address=first["address"],
            port=int(first["port"]),
            interface=interface_of(_address(every, info.rank)),
            token=met.key.hex(),
        )
        known = max(int(one["failures"]) for one in every)
        return Round(store, place, known, int(first["starts"]))

    def _next_rendezvous(self, cancelled: Callable[[], bool]) -> RendezvousInfo:
        def look() -> None:
            if cancelled():
                raise Cancelled

        try:
            return bounded(self._handler.next_rendezvous, meanwhile=look)
        except (RuntimeError, RendezvousError) as error:
            raise _explained(error) from error

    @property
    def main(self) -> bool:
        """Whether this node hosts what the others ask."""
        return self._met.main

    def changed(self) -> bool:
        """Whether a node waits to be let in."""
        with _asking():
            return self._handler.num_nodes_waiting() > 0


def _position(node: Mapping[str, Any], rank: int) -> tuple[int, bool, int]:
    """By the user's numbers; without, the main node first."""
    return (-1 if node["node_rank"] is None else int(node["node_rank"]), not node["main"], rank)


def _address(every: Sequence[Mapping[str, Any]], rank: int) -> str:
    """How others reach this node. The main node learns from them how they reached it."""
    if not every[rank]["main"]:
        return every[rank]["address"]
    return next((other["main_address"] for other in every if not other["main"]), every[rank]["address"])


@contextlib.contextmanager
def _asking() -> Generator[None]:
    """What is asked of the main node's store inside fails as one error."""
    try:
        yield
    except (RuntimeError, RendezvousError) as error:
        raise RunError(f"the main node does not answer any more: {str(error).splitlines()[0]}") from error


def _explained(error: BaseException) -> Exception:
    if isinstance(error, RendezvousTimeoutError):
        return ConfigError("not enough nodes came within --join-timeout; start the others, or ask for fewer: --nnodes")
    if isinstance(error, RendezvousClosedError):
        return RunError("the run has ended on the other nodes")
    return RunError(f"the nodes could not agree who takes part: {error}")


class _Signed(RendezvousBackend):
    """A backend whose states carry a signature."""

    def __init__(self, backend: RendezvousBackend, key: bytes) -> None:
        self._backend, self._key = backend, key

    @property
    def name(self) -> str:
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._backend.get_state()
        return None if found is None else (self._opened(found[0]), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = self._backend.set_state(self._signature(state) + state, token)
        return None if found is None else (self._opened(found[0]), found[1], found[2])

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, "sha256")

    def _opened(self, signed: bytes) -> bytes:
        signature, state = signed[:_SIGNATURE], signed[_SIGNATURE:]
        if not hmac.compare_digest(self._signature(state), signature):
            raise RendezvousStateError("the state of the rendezvous is not signed by a node of this run")
        return state
