"""The environment variables that tell a rank who it is; torchrun's names, so that a script runs under either."""

import contextlib
import os
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import ConfigError, RunError


def variables(
    ranks: int, cores: int, environment: Mapping[str, str] | None = None, *, restarts: int = 0
) -> list[dict[str, str]]:
    """The whole environment of each of `ranks` ranks on this machine.

    Args:
        ranks: how many.
        cores: usable ones, shared among them as threads unless the user has set OMP_NUM_THREADS.
        environment: variables that go before this process's own.
        restarts: how often the ranks were started before.
    """
    if ranks < 1:
        raise ConfigError(f"ranks={ranks} must be at least 1")
    inherited = {**os.environ, **(environment or {})}
    # A torchrun around us would have our ranks expect its store. Our own variables are not for ranks of a rank.
    inherited = {
        k: v for k, v in inherited.items() if not k.startswith("TORCHELASTIC_") and k != "LOCKSTEP_TERMINAL_FD"
    }
    if "OMP_NUM_THREADS" in inherited:
        inherited["LOCKSTEP_USER_THREADS"] = "1"  # a rank knows whose choice it finds, and may use fewer than ours
    common = {
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        "PYTHONUNBUFFERED": "1",  # this and the next: a log of a killed rank that tells something
        "PYTHONFAULTHANDLER": "1",
        **inherited,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "LOCKSTEP_LAUNCHER": "lockstep",
        "LOCKSTEP_LAUNCHER_PID": str(os.getpid()),
        "LOCKSTEP_RESTARTS": str(restarts),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def free_port() -> int:
    """A TCP port that nobody listens on now.

    From below the range that the kernel deals out to outgoing connections, so that none takes it before rank 0 listens.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_ephemeral = 32768
    choose = random.SystemRandom()  # not the caller's seeded stream
    candidates = [choose.randrange(10_000, first_ephemeral) for _ in range(20)] if first_ephemeral > 10_000 else []
    for port in (*candidates, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return probe.getsockname()[1]
    raise RunError("no free TCP port on this machine")
