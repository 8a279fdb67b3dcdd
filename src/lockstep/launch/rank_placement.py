"""Where the ranks of one machine stand among all ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """One node's ranks in a world of several nodes."""

    node_rank: int
    num_nodes: int
    first_rank: int
    """Global rank of this node's local rank 0."""
    world_size: int
    address: str
    """Where rank 0 can be reached."""
    port: int
    interface: str | None = None
    """This node's network interface towards the others, if known."""
    token: str = ""
    """Secret of the run, for ranks to know each other by."""
