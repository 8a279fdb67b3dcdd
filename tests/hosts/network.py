"""Hosts on one machine: each has its own network, host name, processes, shared memory and temporary files.

A host is a process that does nothing, alone in new namespaces; what a test starts on the host joins it there. The
kernel ends a host with its process: nothing stays behind, whatever ends the tests. A cable goes from each host to one
switch.
"""

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from uuid import uuid4

import pytest

NAMES = ("alpha", "beta", "gamma", "delta")
WITHIN_S = 150.0  # bound on anything that a test waits for: machines that run tests are busy
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
_KEPT = ("HOME", "LANG", "LOCKSTEP_TEST_SESSION", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # of our own variables
_PROMPT_S = 20.0  # bound on making a host
_SWITCH = """
ip link add switch type bridge stp_state 0 && ip link set switch up && echo ready && cat
"""
# The second process is what reaps orphans: a shell that waits for `cat` does, as an init would.
_HOST = """
set -e
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
echo "$2" > /proc/sys/kernel/hostname
ip link set lo up
echo ready
cat
exit 0
"""


@functools.cache
def missing() -> str:
    """Why no hosts can be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"needs the command `{tool}` (package {package})"
    probe = "ip link add switch type bridge && ip link add cable type veth peer name plug && mount -t sysfs sysfs /sys"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", probe],
        capture_output=True,
        text=True,
        timeout=_PROMPT_S,
        check=False,
    )
    said = " ".join(tried.stderr.split())
    return f"network namespaces, a bridge and veth are not permitted here: {said}" if tried.returncode else ""


class Network:
    """Hosts at one switch, each with an address in one subnet.

    Args:
        count: how many hosts; named alpha, beta, gamma, delta.
        folder: where hosts keep their own files; a folder `shared` in it is the working directory of all commands, as
            a home directory on NFS would be.
        own_name: what a host's own name resolves to on that host: its `address`, as its name does on the others;
            `127.0.1.1`, as Debian's installer has it; or `localhost`, for which it is one more name.
    """

    def __init__(self, count: int, folder: Path, *, own_name: str = "address") -> None:
        self.folder, self.own_name = folder, own_name
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self._switch = _Namespaces(["--net"], _SWITCH)
        self.started: list[Command] = []
        try:
            self.hosts = [Host(self, name, f"10.77.0.{index}") for index, name in enumerate(NAMES[:count], 1)]
            for host in self.hosts:
                host.up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every host and everything on it."""
        for host in getattr(self, "hosts", []):
            host.end()
        self._switch.end()
        for command in self.started:
            command.process.wait()

    def serve_shells(self) -> None:
        """`ssh HOST COMMAND` works on every host."""
        program = Path(__file__).with_name("remote_shell.py")
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        ssh.chmod(0o755)
        for host in self.hosts:
            daemon = host.start([sys.executable, str(program), "serve"])
            daemon.tells("serving")

    def switch(self, *words: str) -> None:
        """Run `ip` where the switch is; a cable whose host has gone may be gone too."""
        command = ["nsenter", "-t", str(self._switch.pid), "--net", "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROMPT_S, check=False)
        assert done.returncode == 0 or words[1] == "delete", f"{' '.join(words)}: {done.stderr}"

    def keep(self, command: "Command") -> None:
        """Wait for `command` at the end, so that it leaves no zombie."""
        self.started.append(command)


@pytest.fixture
def network(tmp_path):
    """`network(2)` makes hosts alpha and beta; see `Network`. Skips where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    made: list[Network] = []

    def make(count: int, **options) -> Network:
        made.append(Network(count, tmp_path / f"network{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Host:
    """One host; `up` makes it, `vanish` takes it away without a word to the others, and `up` brings it back.

    Attributes:
        name: as the host calls itself.
        address: the only one besides loopback.
        folder: its own files: those for temporary files and per-user state are here.
    """

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network, self.name, self.address = network, name, address
        self.folder = network.folder / name
        self._namespaces: _Namespaces | None = None

    def up(self) -> None:
        """Boot: nothing of an earlier life is there but files."""
        for own in ("tmp", "run"):
            (self.folder / own).mkdir(parents=True, exist_ok=True)
        (self.folder / "run").chmod(0o700)
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        (self.folder / "hosts").write_text(self._names())
        options = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._namespaces = _Namespaces(options, _HOST, str(self.folder), self.name)
        pid = str(self._namespaces.pid)
        card = ["name", "eth0", "address", f"02:00:00:00:00:0{self.address[-1]}", "netns", pid]
        self.network.switch("link", "add", self.name, "type", "veth", "peer", *card)
        self.restore()
        self.run(f"ip addr add {self.address}/24 dev eth0")
        self.run("ip link set eth0 up")

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told: the fault is behind the switch's port."""
        self.network.switch("link", "set", self.name, "nomaster")

    def restore(self) -> None:
        """Join the cable again."""
        self.network.switch("link", "set", self.name, "master", "switch", "up")

    def vanish(self) -> None:
        """A power cut: no connection is closed, every process is gone."""
        self.cut()
        self.end()

    def end(self) -> None:
        """Kill everything here, and the host itself."""
        if self._namespaces is not None:
            self._namespaces.end()
            self._namespaces = None
            # The kernel takes its time to take the cable away; whoever comes back plugs in a new one at once.
            self.network.switch("link", "delete", self.name)

    def start(self, words: str | Sequence[str], environment: Mapping[str, str] | None = None) -> "Command":
        """Start a command here, in a session of its own, in the shared folder.

        Args:
            words: as typed (no shell looks at it), or one by one.
            environment: variables besides those of a fresh login.
        """
        assert self._namespaces is not None, f"{self.name} is down"
        own = {"TMPDIR": f"{self.folder}/tmp", "XDG_RUNTIME_DIR": f"{self.folder}/run", "OMP_NUM_THREADS": "1"}
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        path = f"{self.network.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = Command(
            self,
            self._namespaces.entry(self.network.shared),
            shlex.split(words) if isinstance(words, str) else list(words),
            {**kept, **own, "PATH": path, **(environment or {})},
        )
        self.network.keep(command)
        return command

    def run(self, words: str | Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """What a command says, which has to succeed."""
        command = self.start(words, environment)
        code = command.wait()
        assert code == 0, f"{command} ended with {code}:\n{command.said}"
        return command.said

    def processes(self) -> list[str]:
        """The command lines of everything that lives here, besides the host itself."""
        listed = self.run(
            ["sh", "-c", "for p in /proc/[0-9]*; do tr '\\0\\n' '  ' < $p/cmdline && echo; done 2> /dev/null"]
        )
        own = ("cat ", "sh -c", "tr ")
        return [line for line in listed.splitlines() if line.strip() and not line.startswith(own)]

    def _names(self) -> str:
        lines = ["127.0.0.1 localhost"]
        for index, name in enumerate(NAMES, 1):
            if name == self.name and self.network.own_name == "localhost":
                lines[0] += f" {name}"
            elif name == self.name and self.network.own_name != "address":
                lines.append(f"{self.network.own_name} {name}")
            else:
                lines.append(f"10.77.0.{index} {name}")
        return "\n".join(lines) + "\n"


class Command:
    """A command on a host; its output is collected, and signals reach it and not what entered the host for it.

    Attributes:
        began: when it was started (monotonic seconds).
        ended: when it was seen to have ended; None before.
    """

    def __init__(self, host: Host, entry: list[str], words: list[str], environment: dict[str, str]) -> None:
        self.host, self.words = host, words
        self._output = host.folder / f"command_{uuid4().hex[:8]}.log"
        self.began, self.ended = time.monotonic(), None
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*entry, *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __str__(self) -> str:
        return f"`{shlex.join(self.words)}` on {self.host.name}"

    @property
    def said(self) -> str:
        """Everything it has written so far."""
        return self._output.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self.process.poll() is not None and self.ended is None:
            self.ended = time.monotonic()
        return self.ended is None

    def wait(self, within_s: float = WITHIN_S) -> int:
        """The exit code; 128 + n after signal n. Fails the test when it does not end by itself."""
        wait_for(lambda: not self.running, lambda: f"{self} did not end within {within_s} s:\n{self.said}", within_s)
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def tells(self, text: str) -> None:
        """Wait until it has written something."""
        wait_for(lambda: text in self.said, lambda: f"{self} does not say {text!r}:\n{self.said}")

    def pid(self) -> int:
        """Of the command itself, as seen from outside; what entered the host for it waits for it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = []

        def has_begun() -> bool:
            found[:] = [int(child) for child in children.read_text().split()]
            return bool(found) and b"nsenter" not in Path(f"/proc/{found[0]}/cmdline").read_bytes()

        wait_for(has_begun, lambda: f"{self} did not begin")
        return found[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the command itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(), number)


class _Namespaces:
    """A process that waits in new namespaces until its standard input ends, with ours at the latest."""

    def __init__(self, options: list[str], script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            ["unshare", *options, "sh", "-c", script, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            assert self._process.stderr is not None
            raise RuntimeError(f"the namespaces could not be made: {self._process.stderr.read()}")
        forks = "--fork" in options
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text().split()[0]) if forks else self._process.pid

    def entry(self, folder: Path) -> list[str]:
        """What to put before a command so that it runs here, in `folder`."""
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid"]
        return ["nsenter", "--target", str(self.pid), *spaces, f"--wdns={folder}"]

    def end(self) -> None:
        """Kill everything that is in the namespaces."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            _close(stream)
        self._process.wait()


def _close(stream: IO[str] | None) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def wait_for(condition, explain=lambda: "waited in vain", within_s: float = WITHIN_S) -> None:
    """Return as soon as `condition()` holds; fail the test with `explain()` if it never does."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(explain())
        time.sleep(0.02)
