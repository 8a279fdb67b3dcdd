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

    def variables(self) -> dict[str, str]:
        """What all ranks of this node are told about it."""
        variables = {
            "WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.num_nodes),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }
        return {**variables, "LOCKSTEP_TOKEN": self.token} if self.token else variables
