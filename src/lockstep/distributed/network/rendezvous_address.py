"""The address of the rendezvous where MASTER_ADDR and MASTER_PORT are not set: from flags, or from the launcher."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from lockstep.distributed.network.interfaces import listening_socket, reachable_addresses
from lockstep.distributed.network.pmi import broadcast_from_rank_0
from lockstep.distributed.network.routes import several_hosts
from lockstep.errors import ConfigError
from lockstep.system.launchers import port_of
from lockstep.system.processes import identity, launching_process, private_folder
from lockstep.world import World

_PORT = 29500  # torchrun's
_LARGEST_PORT = 65535
_BY_HAND = "give all ranks --master-addr HOST (where rank 0 runs), or --init-file FILE on a file system that all share"

_pmi_addresses: dict[tuple[int, int], tuple[str, int]] = {}
"""Address and port by rank and size: mpiexec can be asked once per process."""


def with_rendezvous_flags(
    world: World,
    *,
    master_addr: str | None,
    master_port: str | None,
    init_file: str | None,
    environment: Mapping[str, str] = os.environ,
) -> World:
    """The world with the address from flags. Raises ConfigError if they contradict each other or the launcher."""
    flags = {"--master-addr": master_addr, "--master-port": master_port, "--init-file": init_file}
    given = {flag: value for flag, value in flags.items() if value is not None}
    if not given:
        return world
    _check(world, flags, given, environment)
    if init_file is not None:
        return replace(world, init_file=os.path.abspath(init_file), address="127.0.0.1", port=0)
    port = world.port or _PORT
    if master_port is not None:
        if not master_port.isdecimal() or not 0 < int(master_port) <= _LARGEST_PORT:
            raise ConfigError(f"--master-port {master_port} is not a port; use a number from 1024 to {_LARGEST_PORT}")
        port = int(master_port)
    return replace(world, address=master_addr or world.address, port=port)


def _check(
    world: World, flags: Mapping[str, str | None], given: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    typed = " ".join(f"{flag} {value}" for flag, value in given.items())
    if world.launcher == "none":
        raise ConfigError(
            f"{typed}, but nothing says which rank this process is; start it by srun or mpirun, set RANK, WORLD_SIZE, "
            "LOCAL_RANK and LOCAL_WORLD_SIZE, or add --nnodes N"
        )
    for flag, value in given.items():
        if not value.strip():
            raise ConfigError(f"{flag} is empty; leave it out or give it a value")
    if flags["--init-file"] is not None and len(given) > 1:
        raise ConfigError(f"{typed}: ranks meet through a file or at an address; give one of them")
    for flag, variable in (("--master-addr", "MASTER_ADDR"), ("--master-port", "MASTER_PORT")):
        theirs = environment.get(variable)
        if theirs and flags[flag] not in (None, theirs):
            raise ConfigError(f"{flag} {flags[flag]} contradicts {variable}={theirs} of {world.launcher}; drop one")
        if theirs and flags["--init-file"] is not None and variable == "MASTER_ADDR":
            raise ConfigError(f"{typed} contradicts {variable}={theirs} of {world.launcher}; drop one")


def with_rendezvous_address(world: World, timeout_s: float, environment: Mapping[str, str] = os.environ) -> World:
    """The world with an address, found through its launcher where none is set; *collective* under MPICH.

    A port alone is kept: it says nothing about the host of rank 0, if there are several.
    """
    if world.init_file:
        return world
    placed = bool(environment.get("MASTER_ADDR")) or world.address != World().address
    if world.port and (placed or not several_hosts(world) or world.launcher not in ("Open MPI", "MPICH")):
        return world
    if environment.get("MASTER_ADDR"):
        return replace(world, port=_PORT)
    if world.launcher == "Open MPI":
        return _by_open_mpi(world, environment)
    if world.launcher == "MPICH":
        return _by_pmi(world, timeout_s, environment)
    raise ConfigError(
        f"port=0: a world of {world.size} ranks meets at a port of rank 0's host; "
        "give all ranks the same, World(port=29500), or set MASTER_PORT"
    )


def _by_open_mpi(world: World, environment: Mapping[str, str]) -> World:
    if not several_hosts(world):
        mpirun = launching_process("OMPI_COMM_WORLD_RANK", environment)
        if mpirun is None:
            raise ConfigError(f"the process of mpirun was not found; {_BY_HAND}")
        return replace(world, init_file=str(private_folder() / f"{identity(mpirun)}.ranks"))
    # The address of mpirun itself: rank 0 is usually on its host, and checks that it is.
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    listed = re.findall(r"tcp6?://([^:/]+|\[[^/]*\]):\d+", uri)  # 10.0.0.1,10.1.0.1 or [fd00::1,fd00::2]
    found = [address for several in listed for address in several.strip("[]").split(",")]
    if not found:
        raise ConfigError(f"mpirun does not say at which address rank 0 is; {_BY_HAND}")
    return replace(world, address=",".join(found), port=world.port or port_of(uri))


def _by_pmi(world: World, timeout_s: float, environment: Mapping[str, str]) -> World:
    key = (world.rank, world.size)
    if key not in _pmi_addresses:
        if "PMI_FD" not in environment:
            raise ConfigError(f"mpiexec does not say at which address rank 0 is; {_BY_HAND}")
        mine = None
        if world.rank == 0:
            addresses = reachable_addresses() if several_hosts(world) else ["127.0.0.1"]
            with listening_socket("", 0) as probe:  # a free port: rank 0 listens there in a moment
                mine = f"{','.join(addresses)}/{probe.getsockname()[1]}"
        address, _, port = broadcast_from_rank_0(mine, timeout_s, environment).rpartition("/")
        _pmi_addresses[key] = address, int(port)
    address, port = _pmi_addresses[key]
    return replace(world, address=address, port=world.port or port)
