"""The network interface for messages between hosts, set for gloo and NCCL unless the user has set it."""

import os
import socket

from lockstep.distributed.network.interfaces import addresses, interface_of, is_local, towards
from lockstep.errors import ConfigError
from lockstep.world import World

_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def several_hosts(world: World) -> bool:
    """Whether the ranks are on more than one host."""
    return world.local_size < world.size


def choose_interface(address: str) -> None:
    """Make gloo and NCCL use the interface towards an address at which rank 0 is reached.

    By default they use the one that the host name resolves to, which on many machines is loopback.
    """
    if all(os.environ.get(variable) for variable in _VARIABLES):
        return
    own = address if is_local(address) else towards(address, 0)
    name = interface_of(own)
    if name is None:
        raise ConfigError(
            f"the interface towards rank 0 ({address}) was not found; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
            f"on host {socket.gethostname()}; it has {', '.join(addresses()) or 'none that is up'}"
        )
    for variable in _VARIABLES:
        os.environ[variable] = os.environ.get(variable) or name
