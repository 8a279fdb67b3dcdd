"""Run one ssh process per host: prefix its output with the host's name, and end all at the first failure."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from signal import SIGINT, Signals
from typing import IO, TextIO

from lockstep.errors import RunError
from lockstep.launch.signals import caught_signals, signal_name

_POLL_S = 0.05
_PEERS_EXIT_S = 30.0  # the other launchers detect a failure themselves, and report more about it
_SSH_FAILED = 255  # before the launcher started, or while it ran
_NO_LAUNCHER = (126, 127, _SSH_FAILED)  # command not executable or not found; the other launchers cannot detect it


@dataclass(frozen=True, slots=True)
class HostCommand:
    """The command that starts the launcher of one host."""

    host: str
    words: list[str]


class _Host:
    def __init__(self, command: HostCommand, lock: threading.Lock) -> None:
        self.name, self._lock = command.host, lock
        self.process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # ssh would disconnect at Ctrl-C; the signal is forwarded instead
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._show, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    @property
    def code(self) -> int | None:
        """Exit code as in a shell; None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def send_signal(self, name: str) -> None:
        """Send a signal to the launcher."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # already exited or closed
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()

    def close_input(self) -> None:
        """Close its standard input, which sends SIGTERM to the launcher."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()

    def finish(self) -> None:
        """End the process and read the rest of its output."""
        self.close_input()
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


def run(commands: Sequence[HostCommand], *, end_s: float, elastic: bool) -> int:
    """Start all commands, that of the main node first, and wait for all of them.

    Launchers have `end_s` to exit after a signal. If `elastic`, the others continue when a host other than the main
    node fails.

    Returns:
        0, the first failing launcher's exit code, or 128 + n after signal n.

    Raises:
        RunError: ssh could not connect to a host or lost its connection, or the command does not exist there.
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
            _forward_signals(hosts, caught, end_s)
        else:
            _end(hosts, end_s, at_once=failed is not None and failed.code in _NO_LAUNCHER)
    if caught:
        print(f"lockstep: interrupted by {signal_name(caught[0])}", file=sys.stderr)
        return 128 + caught[0]
    assert failed is not None
    if failed.code == _SSH_FAILED:
        raise RunError(
            f"ssh to {failed.name} failed or lost its connection (code {failed.code}, its lines are above); "
            f"try: ssh -o BatchMode=yes {failed.name} true"
        )
    if failed.code in _NO_LAUNCHER:
        raise RunError(
            f"no launcher could be started on {failed.name} (code {failed.code}, its lines are above); "
            f"try: ssh -o BatchMode=yes {failed.name} true, and see --lockstep and --setup"
        )
    print(f"lockstep: {failed.name} ended with code {failed.code}", file=sys.stderr)
    return failed.code or 0


def _wait(hosts: list[_Host], caught: list[int], elastic: bool) -> _Host | None:
    """Wait until all have exited with 0 or a signal arrives (None), or until one fails."""
    reported: set[str] = set()
    while not caught:
        ended = [host for host in hosts if host.code is not None]
        for host in ended:
            if host.code and (not elastic or host is hosts[0]):
                return host
            if host.code and host.name not in reported:
                reported.add(host.name)
                print(f"lockstep: {host.name} ended with code {host.code}; the others continue", file=sys.stderr)
        if len(ended) == len(hosts) or (elastic and hosts[0] in ended):
            return None
        time.sleep(_POLL_S)
    return None


def _forward_signals(hosts: list[_Host], caught: list[int], end_s: float) -> None:
    """Forward each signal to every launcher as it arrives, until all have exited.

    A launcher that has just been started ignores SIGINT, as what a shell starts in the background: the first one is
    sent as SIGTERM.
    """
    forwarded = 0
    for _ in _while_running(hosts, end_s):
        for i, number in enumerate(caught[forwarded:], forwarded):
            name = "TERM" if i == 0 and number == SIGINT else Signals(number).name.removeprefix("SIG")
            for host in hosts:
                host.send_signal(name)
        forwarded = len(caught)


def _end(hosts: list[_Host], end_s: float, *, at_once: bool) -> None:
    """Wait for the launchers to exit by themselves, then send SIGTERM."""
    for _ in _while_running(hosts, 0 if at_once else _PEERS_EXIT_S):
        pass
    for host in hosts:
        host.close_input()
    for _ in _while_running(hosts, end_s):
        pass


def _while_running(hosts: list[_Host], timeout_s: float) -> Iterator[None]:
    """Yield at every poll until all hosts have exited, at most for `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while any(host.code is None for host in hosts) and time.monotonic() < deadline:
        yield
        time.sleep(_POLL_S)
