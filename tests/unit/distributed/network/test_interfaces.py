"""Addresses: this machine's, by interface, and those of others."""

import json
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from lockstep.distributed.network import interfaces
from lockstep.errors import ConfigError

# A network of our own: an interface with two IPv4 addresses, one of them labelled, and an IPv6 one; one that is down.
NETWORK = """
set -e
ip link set lo up
ip link add east type veth peer name west
ip addr add 10.8.0.1/24 dev east
ip addr add 10.8.0.7/24 dev east label east:1
ip -6 addr add fd00:8::1/64 dev east nodad
ip link set east up
ip link set west up
ip link add off type veth peer name on
ip addr add 10.9.0.1/24 dev off
ip route add 10.20.0.0/16 via 10.8.0.9 src 10.8.0.7
exec "$@"
"""
FACTS = """
import json
from lockstep.distributed.network import interfaces as i
def way(address):
    try:
        return i.towards(address, 5555)
    except OSError as error:
        return error.strerror
print(json.dumps({
    "addresses": i.addresses(),
    "reachable": i.reachable_addresses(),
    "local": [a for a in ("10.8.0.1", "10.8.0.7", "10.8.0.9", "127.0.0.1", "127.9.9.9", "fd00:8::1", "::1", "fd00:8::2")
              if i.is_local(a)],
    "interface": {a: i.interface_of(a) for a in ("10.8.0.7", "fd00:8::1", "127.0.1.1", "10.8.0.9")},
    "towards": {a: way(a) for a in ("10.8.0.9", "10.20.3.4", "fd00:8::2", "127.0.0.1", "10.77.0.1")},
}))
"""


@pytest.fixture(scope="module")
def facts():
    """The output of a process in its own network namespace."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs iproute2 and util-linux")
    inside = ["unshare", "--net", "sh", "-c", NETWORK, "sh", sys.executable, "-c", FACTS]
    if subprocess.run([*inside[:2], "ip", "link", "add", "east", "type", "veth"], capture_output=True).returncode:
        pytest.skip("making a network namespace is not permitted here")
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_addresses_are_listed_by_interface_ipv4_first_up_ones_only(facts):
    told = facts["addresses"]
    assert told.pop("lo")[0] == "127.0.0.1"
    assert told == {"east": ["10.8.0.1", "10.8.0.7", "fd00:8::1"]}
    assert facts["reachable"] == ["10.8.0.1", "10.8.0.7", "fd00:8::1"]


def test_local_addresses_can_be_bound(facts):
    assert facts["local"] == ["10.8.0.1", "10.8.0.7", "127.0.0.1", "127.9.9.9", "fd00:8::1", "::1"]


def test_the_interface_of_an_own_address(facts):
    assert facts["interface"] == {"10.8.0.7": "east", "fd00:8::1": "east", "127.0.1.1": "lo", "10.8.0.9": None}


def test_the_address_towards_another_follows_the_routes(facts):
    assert facts["towards"] == {
        "10.8.0.9": "10.8.0.1",
        "10.20.3.4": "10.8.0.7",
        "fd00:8::2": "fd00:8::1",
        "127.0.0.1": "127.0.0.1",
        "10.77.0.1": "Network is unreachable",
    }


def test_ipv6_addresses_that_cannot_be_bound_are_left_out(monkeypatch):
    """Such as those of which the kernel does not know yet whether another machine has them."""
    listed = {"lo": [SimpleNamespace(family=socket.AF_INET6, address=address) for address in ("::1", "fd00:dead::1")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: listed)
    monkeypatch.setattr(interfaces, "is_local", lambda address: address == "::1")
    assert interfaces.addresses() == {"lo": ["::1"]}


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("128.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_loopback(address, loopback):
    assert interfaces.is_loopback(address) is loopback


def test_names_resolve_to_all_their_addresses_once(monkeypatch):
    answers = [(0, 0, 0, "", (address, 0)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert interfaces.resolve("alpha") == ["10.0.0.2", "10.0.0.1"]


def test_a_name_without_address_is_refused(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(
        ConfigError, match=r"host 'alpah' cannot be resolved on this machine \(Name or service not known\)"
    ):
        interfaces.resolve("alpah")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="cannot be resolved"):
        interfaces.resolve("x" * 70)  # longer than a label may be: the encoding fails, not the resolver


def test_a_listening_socket_accepts_at_its_address():
    with interfaces.listening_socket("127.0.0.5", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.5", port), timeout=10):
            listener.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.6", port), timeout=10)
        with pytest.raises(
            ConfigError, match=rf"^MASTER_PORT: 127.0.0.5:{port} is in use by another program; end that"
        ):
            interfaces.listening_socket("127.0.0.5", port, "MASTER_PORT")
        with pytest.raises(ConfigError, match=f"^--rdzv-endpoint: port {port} is in use"):
            interfaces.listening_socket("", port)
    with interfaces.listening_socket("127.0.0.5", port):  # at once: nothing waits for old connections
        pass


def test_a_listening_socket_on_all_interfaces():
    with interfaces.listening_socket("", 0) as listener:
        for address in ("127.0.0.1", "127.0.0.6"):
            socket.create_connection((address, listener.getsockname()[1]), timeout=10).close()


@pytest.mark.skipif(not interfaces.is_local("::1"), reason="this machine has no IPv6")
def test_a_listening_socket_for_both_kinds_of_addresses():
    with interfaces.listening_socket("::", 0) as listener:
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, listener.getsockname()[1]), timeout=10).close()
    with interfaces.listening_socket("::1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=10)


def test_an_address_of_another_machine_cannot_be_listened_at():
    with pytest.raises(
        ConfigError, match=r"--rdzv-endpoint: 192\.0\.2\.77 is not an address of this machine; it has .*lo"
    ):
        interfaces.listening_socket("192.0.2.77", 5555)


def test_endpoints_are_written_as_they_are_typed():
    assert interfaces.endpoint("10.0.0.1", 5) == "10.0.0.1:5"
    assert interfaces.endpoint("fd00::1", 5) == "[fd00::1]:5"
