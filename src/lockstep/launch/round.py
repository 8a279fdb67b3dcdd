"""One start of all ranks of all nodes: where each stands, and how all nodes hear of its end."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from lockstep.distributed.network.interfaces import interface_of
from lockstep.distributed.network.store import Store
from lockstep.errors import RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_placement import RankPlacement
from lockstep.system.bounded import bounded

_TELL_S = 5.0  # bound on telling how a round ended: where the link is cut, each node ends alone
_END = "end"


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

    def __init__(self, store: Store, place: RankPlacement, failures: int, starts: int) -> None:
        self.place, self.failures, self.starts = place, failures, starts
        self._store, self._lost = store, False

    def reported_end(self) -> End | None:
        """What another node has told about this round's end."""
        with asking():
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
        with asking():
            self._store.add("succeeded", 1)

    def all_succeeded(self) -> bool:
        """Whether those of all nodes have."""
        with asking():
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


class Membership(Protocol):
    """This node among the others, as a context manager."""

    def __enter__(self) -> Self:
        """Connect to the main node, which hosts what the others ask."""
        ...

    def __exit__(self, *_: object) -> None: ...

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Round:
        """Wait until enough nodes are there for another start of all ranks.

        Args:
            failures: how many starts this node has seen fail.
            cancelled: polled; raises `Cancelled` once it is true.
        """
        ...

    @property
    def main(self) -> bool:
        """Whether this node hosts what the others ask."""
        ...

    def changed(self) -> bool:
        """Whether a node waits to be let in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a node tells the others of itself when a round begins."""

    node_rank: int | None
    nproc: int
    failures: int
    """How many starts it has seen fail."""
    main: bool
    address: str
    main_address: str
    """Where it reaches the main node."""
    port: int = 0
    """Where its first rank could be met."""

    @classmethod
    def of(cls, nodes: Nodes, address: str, main_address: str, *, main: bool, failures: int) -> "Member":
        """This node."""
        return cls(
            node_rank=nodes.node_rank,
            nproc=nodes.nproc,
            failures=failures,
            main=main,
            address=address,
            main_address=main_address,
        )


def order_of(every: Sequence[Member]) -> list[int]:
    """The nodes in the order of their ranks: by the user's numbers; without, the main node first."""

    def position(index: int) -> tuple[int, bool, int]:
        node = every[index]
        return (-1 if node.node_rank is None else node.node_rank, not node.main, index)

    return sorted(range(len(every)), key=position)


def place_of(every: Sequence[Member], index: int, *, address: str, port: int, token: str) -> RankPlacement:
    """Where the ranks of one node stand.

    Args:
        every: all nodes of the round.
        index: which of them.
        address: where rank 0 can be reached.
        port: its port.
        token: secret of the run.
    """
    order = order_of(every)
    sizes, number = [every[i].nproc for i in order], order.index(index)
    return RankPlacement(
        node_rank=number,
        num_nodes=len(sizes),
        first_rank=sum(sizes[:number]),
        world_size=sum(sizes),
        address=address,
        port=port,
        interface=interface_of(address_of(every, index)),
        token=token,
    )


def address_of(every: Sequence[Member], index: int) -> str:
    """How others reach a node. The main node learns from them how they reached it."""
    if not every[index].main:
        return every[index].address
    return next((other.main_address for other in every if not other.main), every[index].address)


@contextlib.contextmanager
def asking() -> Generator[None]:
    """What is asked of the main node's store inside fails as one error."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"the main node does not answer any more: {str(error).splitlines()[0]}") from error


def members(every: Iterable[Mapping[str, Any]]) -> list[Member]:
    """From what `asdict` made of them."""
    return [Member(**one) for one in every]
