"""Contradictions between nodes, which the main node finds in their `NodeInfo`."""

from collections import Counter
from collections.abc import Callable, Sequence

from lockstep.launch.rendezvous.handshake import NodeInfo
from lockstep.preflight.identity import differences


def contradiction(nodes: Sequence[NodeInfo]) -> str | None:
    """The first contradiction between connected nodes, the main one first, with the way out; None if there is none."""
    found = _numbers(nodes) or _node_ranks(nodes) or _run_ids(nodes) or _max_restarts(nodes)
    return found or differences(_identities(nodes))


def obstacle(node: NodeInfo, present: Sequence[NodeInfo]) -> str | None:
    """Why a late node cannot be admitted now; None if it can. Its place may become free."""
    maximum = present[0].maximum
    is_full = len(present) >= maximum
    if node.node_rank is not None:
        taken = [other for other in present if other.node_rank == node.node_rank]
        if taken:
            way_out = "end that one first" if is_full else f"give {node} another, from 0 to {maximum - 1}"
            return f"--node-rank {node.node_rank} is taken by {taken[0]}; {way_out}"
    if is_full:
        return f"the run has its {maximum} nodes: {_named(present)}; end one, or start the run with a larger --nnodes"
    return None


def missing(nodes: Sequence[NodeInfo]) -> str:
    """The nodes that have not joined, for messages: `node 1 is missing`."""
    needed = nodes[0].minimum
    ranks = {node.node_rank for node in nodes}
    if nodes[0].elastic or None in ranks:
        return f"so far {_named(nodes)}"
    absent = [str(rank) for rank in range(needed) if rank not in ranks]
    return f"node{'s' * (len(absent) > 1)} {', '.join(absent)} {'are' if len(absent) > 1 else 'is'} missing"


def _numbers(nodes: Sequence[NodeInfo]) -> str | None:
    if (differing := _differing("--nnodes", nodes, _nnodes)) is not None:
        return differing
    if len(nodes) > nodes[0].maximum:
        return f"{len(nodes)} nodes came, but --nnodes is {_nnodes(nodes[0])}: {_named(nodes)}; start no more than that"
    return None


def _node_ranks(nodes: Sequence[NodeInfo]) -> str | None:
    maximum = nodes[0].maximum
    with_rank = [node for node in nodes if node.node_rank is not None]
    without = [node for node in nodes if node.node_rank is None]
    if with_rank and without:
        return f"--node-rank is given on {_named(with_rank)}, but not on {_named(without)}; give it on all, or on none"
    for node in with_rank:
        if node.node_rank is not None and not 0 <= node.node_rank < maximum:
            return (
                f"--node-rank {node.node_rank} of {node} does not exist with --nnodes {_nnodes(node)}; "
                f"node ranks go from 0 to {maximum - 1}"
            )
    for rank, count in Counter(node.node_rank for node in with_rank).items():
        if count > 1:
            twice = _named([node for node in nodes if node.node_rank == rank])
            return f"--node-rank {rank} is given on {count} nodes: {twice}; give each its own, from 0 to {maximum - 1}"
    if nodes[0].node_rank:
        return f"--node-rank {nodes[0].node_rank} is given on {nodes[0]}, where the nodes meet: it must be node 0"
    return None


def _run_ids(nodes: Sequence[NodeInfo]) -> str | None:
    return _differing("--rdzv-id", nodes, lambda node: node.run_id or "none")


def _max_restarts(nodes: Sequence[NodeInfo]) -> str | None:
    return _differing("--max-restarts", nodes, lambda node: str(node.max_restarts))


def _differing(flag: str, nodes: Sequence[NodeInfo], value_of: Callable[[NodeInfo], str]) -> str | None:
    by_value: dict[str, list[NodeInfo]] = {}
    for node in nodes:
        by_value.setdefault(value_of(node), []).append(node)
    if len(by_value) < 2:
        return None
    values = ", ".join(f"{value} on {_named(some)}" for value, some in by_value.items())
    return f"{flag} differs: {values}; start all nodes with the same"


def _identities(nodes: Sequence[NodeInfo]) -> dict[str, dict[str, object]]:
    """By node rank; by the order of connecting where there are no ranks."""
    numbers = [index if node.node_rank is None else node.node_rank for index, node in enumerate(nodes)]
    return {f"node {number} ({node.host})": node.identity for number, node in zip(numbers, nodes, strict=True)}


def _nnodes(node: NodeInfo) -> str:
    return f"{node.minimum}:{node.maximum}" if node.elastic else str(node.maximum)


def _named(nodes: Sequence[NodeInfo]) -> str:
    return ", ".join(map(str, nodes))
