"""Addresses of this machine and of others: interfaces, loopback, routes, listening sockets.

IPv6 link-local addresses are left out: another machine cannot use them without a zone.
"""

import errno
import ipaddress
import socket

import psutil

from lockstep.errors import ConfigError

_BACKLOG = 512  # pending connections: all nodes of a large job connect at once


def addresses() -> dict[str, list[str]]:
    """The IPv4, then the IPv6 addresses of each interface that is up."""
    interfaces, listed = psutil.net_if_stats(), psutil.net_if_addrs()
    by_name: dict[str, list[str]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for label, entries in listed.items():
            name = label.partition(":")[0]  # `eth0:1` is a label of eth0
            if name not in interfaces or "up" not in interfaces[name].flags.split(","):
                continue
            own = [entry.address for entry in entries if entry.family == family and _is_usable(entry.address)]
            if own:
                by_name.setdefault(name, []).extend(own)
    return by_name


def reachable_addresses() -> list[str]:
    """This machine's addresses but loopback: those that other machines may reach."""
    return [address for listed in addresses().values() for address in listed if not is_loopback(address)]


def _is_usable(address: str) -> bool:
    """Whether an own address can be bound as it stands: no link-local IPv6 address, and none that is not ready yet."""
    return ":" not in address or ("%" not in address and is_local(address))


def is_local(address: str) -> bool:
    """Whether this machine has the address, that is, can bind it."""
    try:
        with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL, errno.EAFNOSUPPORT):
            return False
        raise
    return True


def is_loopback(address: str) -> bool:
    """Whether a numeric address means "this machine" on every machine: 127.0.0.0/8 and ::1."""
    plain = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(plain, "ipv4_mapped", None)
    return (mapped or plain).is_loopback


def resolve(host: str) -> list[str]:
    """All numeric addresses of a name, in the resolver's order. A `ConfigError` names a name that has none."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"host {host!r} cannot be resolved on this machine ({reason}); check its spelling, or use its address"
        ) from None
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def towards(address: str, port: int) -> str:
    """The address of this machine that packets to `address` leave from. Sends none. OSError: there is no route."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, port or 9))  # connecting a datagram socket only reads the routing table
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface of an address of this machine. All of 127.0.0.0/8 is the loopback interface's, listed or not."""
    listed = addresses()
    for name, own in listed.items():
        if address in own:
            return name
    if is_loopback(address):
        return next((name for name, own in listed.items() if any(is_loopback(other) for other in own)), None)
    return None


def here(bound: str) -> str:
    """Where this machine reaches a socket of its own that is bound to an address, or to all ("" or "::")."""
    return "127.0.0.1" if bound in ("", "::") else bound


def listening_socket(address: str, port: int, setting: str = "--rdzv-endpoint") -> socket.socket:
    """A socket that listens at one numeric address of this machine.

    The address "" is all IPv4 addresses, "::" those and all IPv6 ones; port 0 is any free port. `setting`, which
    chooses the port, is named in errors.
    """
    family = family_of(address) if address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Allows a port whose last connections are in TIME_WAIT, not one that another socket listens at.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_cannot_listen(address, port, setting, error)) from error
    return listener


def family_of(address: str) -> socket.AddressFamily:
    """IPv6 if the numeric address holds a colon, else IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def endpoint(address: str, port: int) -> str:
    """`10.0.0.1:5555`, `[fe80::1]:5555`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _cannot_listen(address: str, port: int, setting: str, error: OSError) -> str:
    place = endpoint(address, port) if address else f"port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{setting}: {place} is in use by another program; end that one, or choose another port on all nodes"
    if error.errno == errno.EADDRNOTAVAIL:
        own = ", ".join(f"{address} ({name})" for name, listed in addresses().items() for address in listed)
        return f"{setting}: {address} is not an address of this machine; it has {own}"
    if error.errno == errno.EACCES:
        return f"{setting}: {place} may not be used without privileges; choose a port from 1024 on"
    return f"{setting}: cannot listen at {place}: {error.strerror}"
