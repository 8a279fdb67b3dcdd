"""The nodes of a run, as the flags describe them."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines that start ranks together, seen from one of them."""

    minimum: int = 1
    """Number of nodes that are needed to start and to continue."""
    maximum: int = 1
    node_rank: int | None = None
    """Of this node; None: the rendezvous assigns it."""
    nproc: int = 1
    """Ranks on this machine."""
    host: str = ""
    """Of the main node, as typed; empty with an `init_file`."""
    port: int = 0
    setting: str = "--rdzv-endpoint"
    """The flag that sets host and port, for messages."""
    rank_port: int = 0
    """Port of rank 0; 0: any free one. The same as `port`: that port, after the rendezvous of the nodes."""
    init_file: Path | None = None
    """A shared file through which the main node publishes its address."""
    run_id: str = ""
    """Name of the run; nodes of another run are sent away."""
    token: str = ""
    """Secret of the run; nodes without it are sent away."""
    local_address: str = ""
    """This machine's own address, if the user gives one."""
    max_restarts: int = 0
    """How often all ranks are restarted after a failure, the same on all nodes."""
    join_timeout_s: float = 300.0
    """Bound on waiting for the other nodes."""

    @property
    def elastic(self) -> bool:
        """Whether nodes may join and leave."""
        return self.minimum != self.maximum


def check_shards(flag: str, most: int, num_shards: int | None) -> None:
    """Refuse a run that may grow to more ranks (`most`, by the typed `flag`) than it has shards.

    `num_shards` is that of the config or the checkpoint; None: as many as there are ranks at first.
    """
    if num_shards is None or num_shards < most:
        now = "without num_shards the first start decides" if num_shards is None else f"num_shards={num_shards}"
        raise ConfigError(
            f"{flag} may grow to {most} ranks, and a rank needs a shard ({now}); add --set num_shards={most}"
        )
