"""Addresses of this machine and of others: which are ours, which are loopback, which way a message leaves.

Only addresses that another machine can use as they stand are told: no IPv6 link-local ones, which need a zone.
"""

import array
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import ConfigError

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_UP = 0x1  # IFF_UP
_ENTRY = struct.calcsize("16sH22x")  # struct ifreq: a name and a socket address
_FIRST_ASKED = 64  # addresses
_UNUSABLE = 0x08 | 0x40  # IFA_F_DADFAILED, IFA_F_TENTATIVE: addresses that cannot be bound (yet)
_MANY = 512  # pending connections: all nodes of a large job knock at once


def addresses() -> dict[str, list[str]]:
    """The IPv4, then the IPv6 addresses of each interface that is up."""
    found: dict[str, list[str]] = {}
    for name, address in (*_ipv4(), *_ipv6()):
        if _is_up(name) and address not in found.setdefault(name, []):
            found[name].append(address)
    return {name: listed for name, listed in found.items() if listed}


def reachable_addresses() -> list[str]:
    """This machine's addresses that others may reach: all but loopback."""
    return [address for listed in addresses().values() for address in listed if not is_loopback(address)]


def is_local(address: str) -> bool:
    """Whether this machine has the address: whether it can be bound."""
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
    """This machine's own address, from which packets to `address` leave. Sends none. OSError: there is no route."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, port or 9))  # connecting a datagram socket only asks the routing table
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface that has this own address. Of 127.0.0.0/8 it need not be listed: all of it is the loopback's."""
    listed = addresses()
    for name, own in listed.items():
        if address in own:
            return name
    if is_loopback(address):
        return next((name for name, own in listed.items() if any(is_loopback(other) for other in own)), None)
    return None


def listening_socket(address: str, port: int, setting: str = "--rdzv-endpoint") -> socket.socket:
    """A socket that listens at an own address, or on all interfaces; with port 0 anywhere free.

    Args:
        address: numeric; "" is all IPv4 addresses, "::" is those and all IPv6 ones.
        port: where.
        setting: what the user sets to choose the port; for messages.
    """
    family = family_of(address) if address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port that was in use a minute ago may be taken; one in use now may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_MANY)
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
        return f"{setting}: {address} is not an address of this machine; it has {_own()}"
    if error.errno == errno.EACCES:
        return f"{setting}: {place} may not be used without privileges; choose a port from 1024 on"
    return f"{setting}: cannot listen at {place}: {error.strerror}"


def _own() -> str:
    return ", ".join(f"{address} ({name})" for name, listed in addresses().items() for address in listed)


def _ipv4() -> Iterator[tuple[str, str]]:
    """All IPv4 addresses with their interface, further ones of an interface included (ioctl SIOCGIFCONF)."""
    size = _FIRST_ASKED * _ENTRY
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while True:
            answer = array.array("B", bytes(size))
            request = struct.pack("iP", size, answer.buffer_info()[0])
            filled, _ = struct.unpack("iP", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))
            if filled < size:
                break
            size *= 2  # it may not have been all
    for start in range(0, filled, _ENTRY):
        entry = answer[start : start + _ENTRY].tobytes()
        name = entry[:16].split(b"\0", 1)[0].decode().partition(":")[0]  # `eth0:1` is a label of eth0
        yield name, socket.inet_ntoa(entry[20:24])


def _ipv6() -> Iterator[tuple[str, str]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:  # the kernel has no IPv6
        return
    for line in lines:
        digits, _, _, _, flags, name = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if not address.is_link_local and not int(flags, 16) & _UNUSABLE:
            yield name, str(address)


def _is_up(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
        except OSError:  # it went away meanwhile
            return False
    return bool(struct.unpack_from("16sH", answer)[1] & _UP)
