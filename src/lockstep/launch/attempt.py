"""One attempt to run all ranks of all nodes: the placement of each node's ranks, and how the attempt ended."""

import contextlib
import json
import math
import os
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace

from lockstep.distributed.network.interfaces import interface_of
from lockstep.distributed.network.store import Store
from lockstep.errors import RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import RankPlacement
from lockstep.launch.rendezvous import NodeRendezvous
from lockstep.system.bounded import bounded

_REPORT_S = 5.0  # bound on reporting how an attempt ended: if the link is cut, each node ends alone
END = "end"
"""Key of an attempt: how it ended."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended, as the first node that noticed reported it."""

    kind: str
    """`failed`, `lost` (a node), `interrupted`, or `changed`: nodes joined or left."""
    message: str
    code: int
    rank: int | None
    restart: bool
    """Whether all nodes restart their ranks."""
    node_rank: int = -1
    """Of the node that reported it."""
    node: str = ""
    """Its host name."""


class Attempt:
    """One attempt to run all ranks of all nodes.

    Attributes:
        placement: the placement of this node's ranks.
        members: the nodes, by the number that they have in it.
        failures: number of earlier attempts that failed.
        restarts: number of earlier attempts, failed or not.
    """

    def __init__(
        self, store: Store, placement: RankPlacement, members: "Sequence[Member]", failures: int, restarts: int
    ) -> None:
        self.placement = placement
        self.members = members
        self.failures = failures
        self.restarts = restarts
        self._store = store
        self._store_lost = False

    def disconnected(self, connected: Sequence[str]) -> int | None:
        """The number of the first node whose launcher is not among the `connected` ones (`Member.process`)."""
        gone = (number for number, member in enumerate(self.members) if member.process not in connected)
        return next(gone, None)

    def reported_end(self) -> AttemptEnd | None:
        """How this attempt ended, if a node has reported it."""
        with store_errors():
            return AttemptEnd(**json.loads(self._store.get(END))) if self._store.check([END]) else None

    def report_end(self, end: AttemptEnd) -> AttemptEnd:
        """Report to all nodes how the attempt ended; returns the first report, which is valid for all.

        If the main node does not reply, this node keeps its own report, and nothing is restarted.
        """
        mine = replace(end, node_rank=self.placement.node_rank, node=os.uname().nodename)
        try:
            first = bounded(lambda: self._store.compare_set(END, "", json.dumps(asdict(mine))), _REPORT_S)
        except (RuntimeError, TimeoutError):
            self._store_lost = True
            return replace(mine, restart=False)
        return AttemptEnd(**json.loads(first))

    def report_success(self) -> None:
        """Count this node among those whose ranks have all succeeded."""
        with store_errors():
            self._store.add("succeeded", 1)

    def all_succeeded(self) -> bool:
        """Whether the ranks of all nodes have succeeded."""
        with store_errors():
            return self._store.add("succeeded", 0) == self.placement.num_nodes

    def report_exit(self) -> None:
        """Count this node among those that exit, and so send no more requests to the main node's store."""
        self._add_to_exited(1)

    def all_exited(self) -> bool:
        """Whether all nodes have reported their exit, as far as is known: the main node may then close the store."""
        return self._add_to_exited(0) >= self.placement.num_nodes

    def _add_to_exited(self, num_nodes: int) -> float:
        """Add to the number of nodes that exit, and return it; infinite if the main node does not reply."""
        if not self._store_lost:
            with contextlib.suppress(RuntimeError, TimeoutError):
                return bounded(lambda: self._store.add("exited", num_nodes), _REPORT_S)
            self._store_lost = True
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a node sends the others about itself when an attempt begins."""

    process: str
    """Identifies its launcher."""
    node_rank: int | None
    nproc: int
    failures: int
    """Number of attempts that it has seen fail."""
    main: bool
    address: str
    main_address: str
    """Where it reaches the main node."""
    port: int = 0
    """A free port for rank 0, if that runs on this node."""

    @classmethod
    def of(cls, nodes: Nodes, info: NodeRendezvous, failures: int, port: int = 0) -> "Member":
        """This node."""
        return cls(
            process=info.process,
            node_rank=nodes.node_rank,
            nproc=nodes.nproc,
            failures=failures,
            main=info.main,
            address=info.address,
            main_address=info.main_address,
            port=port,
        )


def node_order(members: Sequence[Member]) -> list[int]:
    """The indices of the nodes in the order of their ranks: the user's; without them, the main node first."""

    def position(index: int) -> tuple[int, bool, int]:
        node = members[index]
        return (-1 if node.node_rank is None else node.node_rank, not node.main, index)

    return sorted(range(len(members)), key=position)


def placement_of(members: Sequence[Member], index: int, *, address: str, port: int, token: str) -> RankPlacement:
    """The placement of the ranks of one node of `members`; rank 0 is at `address` and `port`."""
    order = node_order(members)
    sizes, number = [members[i].nproc for i in order], order.index(index)
    return RankPlacement(
        node_rank=number,
        num_nodes=len(sizes),
        first_rank=sum(sizes[:number]),
        world_size=sum(sizes),
        address=address,
        port=port,
        interface=interface_of(address_of(members, index)),
        token=token,
    )


def address_of(members: Sequence[Member], index: int) -> str:
    """The address at which others reach a node; of the main node, the one at which they have reached it."""
    if not members[index].main:
        return members[index].address
    return next((other.main_address for other in members if not other.main), members[index].address)


@contextlib.contextmanager
def store_errors(*errors: type[Exception]) -> Generator[None]:
    """Raise one error for all ways in which a request to the main node's store fails: RuntimeError and `errors`."""
    try:
        yield
    except RunError:  # says what it means itself
        raise
    except (RuntimeError, *errors) as error:
        raise RunError(f"the main node does not answer any more: {str(error).splitlines()[0]}") from error
