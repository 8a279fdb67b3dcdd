"""Runs one ssh per host: their output with the host's name before each line, the first failure ends all."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TextIO

from lockstep.errors import RunError
from lockstep.launch.signals import caught_signals, signal_name

_TICK_S = 0.05
_HEAR_S = 30.0  # the other launchers hear of a failure by themselves, and say more about it than we could
_CLOSE_S = 40.0  # a launcher's own bound on its ranks' end, and a little more
_NO_LAUNCHER = (126, 127, 255)  # the command could not be run; ssh could not connect: nobody else hears of that
_SIGNALS = {1: "HUP", 2: "INT", 10: "USR1", 15: "TERM"}


@dataclass(frozen=True, slots=True)
class HostCommand:
    """What starts the launcher of one host."""

    host: str
    words: list[str]


class _Host:
    """The ssh process of one host."""

    def __init__(self, command: HostCommand, lock: threading.Lock) -> None:
        self.name, self._lock = command.host, lock
        self.process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on; ssh itself would just hang up
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._show, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    @property
    def code(self) -> int | None:
        """Exit code as a shell has it, None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def tell(self, name: str) -> None:
        """Have the launcher signalled."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # gone, or told to end before
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()

    def hang_up(self) -> None:
        """End its standard input: the launcher gets SIGTERM."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()

    def finish(self) -> None:
        """Leave neither process nor unread line behind."""
        self.hang_up()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(timeout=5.0)

    def _show(self, stream: IO[bytes], to: TextIO) -> None:
        with stream:
            for line in stream:
                with self._lock:
                    print(f"[{self.name}] {line.decode(errors='replace').rstrip()}", file=to, flush=True)


def run(commands: Sequence[HostCommand], *, grace_s: float, elastic: bool) -> int:
    """Start all commands and stay until all are gone.

    Args:
        commands: one per host, the main one's first.
        grace_s: how long launchers may take to end once they were told.
        elastic: whether the others go on when a host other than the main one fails.

    Returns:
        0, the first failing launcher's exit code, or 128 + n after signal n.

    Raises:
        RunError: ssh could not connect to a host, or the command does not exist there.
    """
    lock = threading.Lock()
    with caught_signals() as caught, contextlib.ExitStack() as stack:
        hosts: list[_Host] = []
        for command in commands:
            hosts.append(_Host(command, lock))
            stack.callback(hosts[-1].finish)
        failed = _wait(hosts, caught, elastic)
        if failed is None and not caught:
            return 0
        if caught:
            _pass_on(hosts, caught, grace_s)
        else:
            _end(hosts, grace_s, at_once=failed is not None and failed.code in _NO_LAUNCHER)
    if caught:
        print(f"lockstep: interrupted by {signal_name(caught[0])}", file=sys.stderr)
        return 128 + caught[0]
    assert failed is not None
    if failed.code in _NO_LAUNCHER:
        raise RunError(
            f"no launcher could be started on {failed.name} (code {failed.code}, its lines are above); "
            f"try: ssh -o BatchMode=yes {failed.name} true, and see --lockstep and --setup"
        )
    print(f"lockstep: {failed.name} ended with code {failed.code}", file=sys.stderr)
    return failed.code or 0


def _wait(hosts: list[_Host], caught: list[int], elastic: bool) -> _Host | None:
    """Until all ended with 0 or a signal came (None), or one failed."""
    said: set[str] = set()
    while not caught:
        ended = [host for host in hosts if host.code is not None]
        for host in ended:
            if host.code and (not elastic or host is hosts[0]):
                return host
            if host.code and host.name not in said:
                said.add(host.name)
                print(f"lockstep: {host.name} ended with code {host.code}; the others go on", file=sys.stderr)
        if len(ended) == len(hosts) or (elastic and hosts[0].code is not None):
            return None
        time.sleep(_TICK_S)
    return None


def _pass_on(hosts: list[_Host], caught: list[int], grace_s: float) -> None:
    """Tell every launcher of each signal as it comes."""
    passed_on, deadline = 0, time.monotonic() + grace_s
    while any(host.code is None for host in hosts) and time.monotonic() < deadline:
        for number in caught[passed_on:]:
            for host in hosts:
                host.tell(_SIGNALS[number])
        passed_on = len(caught)
        time.sleep(_TICK_S)


def _end(hosts: list[_Host], grace_s: float, *, at_once: bool) -> None:
    """Give the other launchers time to end by themselves, then tell them to."""
    deadline = time.monotonic() + (0 if at_once else _HEAR_S)
    while any(host.code is None for host in hosts) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    for host in hosts:
        host.hang_up()
    deadline = time.monotonic() + min(grace_s, _CLOSE_S)
    while any(host.code is None for host in hosts) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
