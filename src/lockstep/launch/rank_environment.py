"""The environment variables of ranks: either torchrun's or those that JAX scripts read, never both.

A library that supports both frameworks may open a process group of torch as soon as it finds `WORLD_SIZE`, so a JAX
script must not get the variables of torchrun.
"""

import contextlib
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import ConfigError, RunError
from lockstep.launch.child import launcher_variables

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_TORCH_NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
_JAX_NAMES = [
    *("JAX_RANK", "JAX_WORLD_SIZE", "JAX_LOCAL_RANK", "JAX_LOCAL_WORLD_SIZE", "JAX_NODE_RANK"),
    *("JAX_COORDINATOR_ADDR", "JAX_COORDINATOR_PORT"),
]
_NUM_NODES = "GROUP_WORLD_SIZE"  # has no JAX name


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The ranks of one node in the world."""

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
    """Secret of the run, with which ranks authenticate each other."""


def rank_environments(
    ranks: int,
    cores: int,
    environment: Mapping[str, str] | None = None,
    *,
    restarts: int = 0,
    placement: RankPlacement | None = None,
    ml_framework: str = "torch",
) -> list[dict[str, str]]:
    """The complete environment of each of `ranks` ranks on this machine.

    Args:
        ranks: number of ranks.
        cores: usable cores, divided among the ranks as threads unless the user has set OMP_NUM_THREADS.
        environment: variables that override this process's own. MASTER_ADDR and MASTER_PORT set the rendezvous of the
            ranks of one machine; default: a free port of the loopback interface.
        restarts: number of earlier attempts.
        placement: of these ranks in a world of several nodes; None: there is one node.
        ml_framework: `jax` sets the `JAX_*` variables only, everything else those of torchrun only.
    """
    if ranks < 1:
        raise ConfigError(f"ranks={ranks} must be at least 1")
    inherited = {**os.environ, **(environment or {})}
    # An outer torchrun would make our ranks use its store. Our own variables are not inherited by nested ranks.
    ours = {"LOCKSTEP_TERMINAL_FD", "LOCKSTEP_START_RECORD"} - set(environment or {})
    ours |= {*_TORCH_NAMES, _NUM_NODES, *_JAX_NAMES}  # an outer launcher's
    inherited = {k: v for k, v in inherited.items() if not k.startswith("TORCHELASTIC_") and k not in ours}
    if not inherited.get("OMP_NUM_THREADS"):  # an empty value counts as not set
        inherited.pop("OMP_NUM_THREADS", None)
    else:
        inherited["LOCKSTEP_USER_THREADS"] = "1"  # ranks may use fewer threads than our default, not than the user's
    interfaces = (
        {} if placement is None or placement.interface is None else dict.fromkeys(_INTERFACES, placement.interface)
    )
    placement = placement or _single_node(ranks, environment or {})
    common = {
        **interfaces,  # by default gloo and NCCL take the first one, or that of the host name, which may be loopback
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        "PYTHONUNBUFFERED": "1",  # this and the next: the log of a killed rank is complete
        "PYTHONFAULTHANDLER": "1",
        **inherited,
        **({"LOCKSTEP_TOKEN": placement.token} if placement.token else {}),
        "LOCKSTEP_LAUNCHER": "lockstep",
        **launcher_variables(),
        "LOCKSTEP_RESTARTS": str(restarts),
    }
    return [{**common, **_rank_variables(placement, local, ranks, ml_framework)} for local in range(ranks)]


def _single_node(ranks: int, environment: Mapping[str, str]) -> RankPlacement:
    """The placement of ranks that are all on this machine."""
    address, port = environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "0")) or free_port()
    return RankPlacement(node_rank=0, num_nodes=1, first_rank=0, world_size=ranks, address=address, port=port)


def _rank_variables(placement: RankPlacement, local: int, ranks: int, ml_framework: str) -> dict[str, str]:
    """The variables of one rank: those of torchrun, or those that JAX scripts read."""
    rank = placement.first_rank + local
    values = (rank, placement.world_size, local, ranks, placement.node_rank, placement.address, placement.port)
    if ml_framework == "jax":
        return dict(zip(_JAX_NAMES, map(str, values), strict=True))
    return dict(zip(_TORCH_NAMES, map(str, values), strict=True)) | {_NUM_NODES: str(placement.num_nodes)}


def check_no_rank(starter: str, *, several: bool = False) -> None:
    """Refuse to start ranks within a rank; with `several` only within one of several."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("JAX_RANK", "JAX_WORLD_SIZE")):
        if rank in os.environ and size in os.environ and not (several and os.environ[size] == "1"):
            raise ConfigError(
                f"{starter} starts ranks, but this process is rank {os.environ[rank]} of one already; start the "
                f"script itself, or unset {rank} and {size}"
            )


def free_port() -> int:
    """A TCP port that nobody listens on now.

    It is below the kernel's range for outgoing connections, so that none takes it before rank 0 listens.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_ephemeral = 32768
    choose = random.SystemRandom()  # independent of the caller's seed
    candidates = [choose.randrange(10_000, first_ephemeral) for _ in range(20)] if first_ephemeral > 10_000 else []
    for port in (*candidates, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return probe.getsockname()[1]
    raise RunError("no free TCP port on this machine")
