"""What the flags say about the machines of a run."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines that start ranks together, seen from one of them."""

    minimum: int = 1
    """How many are needed to begin, and to go on."""
    maximum: int = 1
    """How many may take part."""
    node_rank: int | None = None
    """Which one this is; None: the rendezvous assigns it."""
    nproc: int = 1
    """Ranks on this machine."""
    host: str = ""
    """Where the main node is met, as typed; empty with an `init_file`."""
    port: int = 0
    setting: str = "--rdzv-endpoint"
    """What the user gave host and port with, for messages."""
    rank_port: int = 0
    """Where rank 0 listens. 0: where it may. The same as `port`: there, once all nodes have met."""
    init_file: Path | None = None
    """A shared file in which the main node writes where it is met."""
    run_id: str = ""
    """Name of the run; nodes of another run are sent away."""
    token: str = ""
    """Secret of the run; nodes without it are sent away."""
    local_address: str = ""
    """This machine's own address, where the user knows better."""
    join_timeout_s: float = 300.0
    """Bound on waiting for the other nodes."""

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go."""
        return self.minimum != self.maximum


def check_shards(flag: str, most: int, num_shards: int | None) -> None:
    """Refuse a run that may grow to more ranks than it has shards.

    Args:
        flag: what the user typed, `--nnodes 1:4`.
        most: ranks of the largest world.
        num_shards: of the config or the checkpoint; None: as many as there are ranks at first.
    """
    if num_shards is None or num_shards < most:
        now = "without num_shards the first start decides" if num_shards is None else f"num_shards={num_shards}"
        raise ConfigError(
            f"{flag} may grow to {most} ranks, and a rank needs a shard ({now}); add --set num_shards={most}"
        )
