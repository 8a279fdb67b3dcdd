"""Hosts as network namespaces, with a delay and a rate between them that the kernel cannot give: see relay.c.

Needs root, iproute2, /dev/net/tun and a C compiler.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

_SET_INTERFACE, _TAP, _NO_PACKET_INFO = 0x400454CA, 0x0002, 0x1000
_PING_PORT = 7777
_LONGEST_PING_S = 60.0
_PREFIX = "lockstep-line-"
INTERFACE = "line0"

_PING = """
import socket, sys, time
there, count = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
for attempt in range(50):
    try:
        s = socket.create_connection(there, timeout=10)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(count):
    start = time.perf_counter()
    s.sendall(b"x")
    s.recv(1)
    times.append(time.perf_counter() - start)
print(*times)
"""
_PONG = """
import socket, sys
s, _ = socket.create_server((sys.argv[1], int(sys.argv[2]))).accept()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while got := s.recv(1):
    s.sendall(got)
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with one interface, `line0`."""

    namespace: str
    address: str

    def start(self, command: Sequence[str], environment: Mapping[str, str], **how: Any) -> subprocess.Popen[str]:
        """Start a command on this host."""
        within = ["ip", "netns", "exec", self.namespace, *command]
        return subprocess.Popen(within, env={**os.environ, **environment}, text=True, **how)


class DelayLine:
    """`count` hosts between which every frame takes `delay_s`, one way; a context manager.

    Args:
        count: hosts.
        delay_s: one way; a round trip takes twice this, and what the machine itself needs.
        rate: bytes per second that a host can send; 0: no limit.
        mtu: of the interfaces.
    """

    def __init__(self, count: int, delay_s: float, rate: float = 0, mtu: int = 1500) -> None:
        self.delay_s, self._rate, self._mtu = delay_s, rate, mtu
        self.hosts = [Host(f"{_PREFIX}{os.getpid()}-{i}", f"10.77.0.{i + 1}") for i in range(count)]

    def __enter__(self) -> Self:
        _remove_leftovers()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            relay = folder / "relay"
            source = Path(__file__).with_name("relay.c")
            subprocess.run(["gcc", "-O2", "-o", relay, source], check=True)
            taps = [self._connect(i, host, stack) for i, host in enumerate(self.hosts)]
            words = [str(relay), str(round(self.delay_s * 1e9)), str(round(self._rate)), *map(str, taps)]
            running = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=taps))
            stack.callback(running.kill)
            for tap in taps:
                os.close(tap)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self, index: int, host: Host, stack: contextlib.ExitStack) -> int:
        """Make a host; returns the near end of its interface."""
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = f"lsl{os.getpid()}.{index}"
        fcntl.ioctl(tap, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFO))
        _ip("netns", "add", host.namespace)
        stack.callback(_ip, "netns", "delete", host.namespace)
        _ip("link", "set", name, "netns", host.namespace)
        inside = ("-n", host.namespace)
        _ip(*inside, "link", "set", name, "name", INTERFACE, "address", f"02:00:00:00:00:{index + 1:02x}")
        _ip(*inside, "link", "set", INTERFACE, "mtu", str(self._mtu), "up")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        return tap

    def round_trip_s(self, count: int = 200) -> float:
        """Median of a TCP ping-pong between the first two hosts: what programs see, which is the truth here."""
        there = self.hosts[1].address, str(_PING_PORT)
        with (
            self.hosts[1].start([sys.executable, "-c", _PONG, *there], {}) as pong,
            self.hosts[0].start([sys.executable, "-c", _PING, *there, str(count)], {}, stdout=subprocess.PIPE) as ping,
        ):
            try:
                out, _ = ping.communicate(timeout=_LONGEST_PING_S)
            finally:
                ping.kill()
                pong.kill()
        return median(float(word) for word in out.split()[count // 10 :])


def missing() -> str | None:
    """What this machine lacks for a delay line, if anything."""
    if os.geteuid() != 0:
        return "root rights (network namespaces)"
    for program in ("ip", "gcc"):
        if shutil.which(program) is None:
            return program
    return None if Path("/dev/net/tun").exists() else "/dev/net/tun"


def _remove_leftovers() -> None:
    """Namespaces whose maker was killed."""
    for name in Path("/run/netns").glob(f"{_PREFIX}*"):
        if not Path("/proc", name.name.removeprefix(_PREFIX).partition("-")[0]).exists():
            with contextlib.suppress(subprocess.CalledProcessError):  # somebody else was quicker
                _ip("netns", "delete", name.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
