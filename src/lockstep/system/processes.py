"""Identity of processes on this machine, and a private folder for small files that belong to one."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from lockstep.errors import ConfigError

TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Set for ranks by torch's elastic agent."""


def torchrun_agent(environment: Mapping[str, str] = os.environ) -> int | None:
    """The process id of torchrun's agent on this node: the nearest ancestor without the variables of this rank.

    Wrappers between the agent and the rank inherit them. None without an agent, or if its process is not visible.
    """
    return launching_process(TORCHRUN, environment)


def launching_process(variable: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """The process id of the nearest ancestor without this process's value of a variable."""
    value = environment.get(variable)
    if value is None:
        return None
    for ancestor in psutil.Process().parents():
        try:
            inherited = ancestor.environ().get(variable) == value
        except psutil.AccessDenied:  # of another user, so not a wrapper that inherited the variables
            return ancestor.pid
        except psutil.NoSuchProcess:
            return None
        if not inherited:
            return ancestor.pid
    return None


def started_process(variable: str, environment: Mapping[str, str] = os.environ) -> int:
    """The process id of what a launcher started: this process, or its topmost ancestor with its value of a variable.

    A shell script that trains several times is one for all of its trainings.
    """
    value, topmost = environment.get(variable), os.getpid()
    for ancestor in psutil.Process().parents():
        try:
            if ancestor.environ().get(variable) != value:
                break
        except psutil.Error:
            break
        topmost = ancestor.pid
    return topmost


def runs_here(name: str) -> bool:
    """Whether the process of an `identity` still runs, on this machine and in this namespace."""
    where, _, started = name.rpartition("-")
    where, _, pid = where.rpartition("-")
    return where == machine() and started != "" and _started(int(pid)) == started and not _is_zombie(int(pid))


def identity(pid: int) -> str:
    """A name that is unique among all processes of all machines, even if a process id is reused."""
    return f"{machine()}-{pid}-{_started(pid)}"


def machine() -> str:
    """The machine and process namespace, within which a process id means one process.

    Containers and machines may share a directory, and containers of one machine its name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").replace("-", "").strip()
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def private_folder() -> Path:
    """A directory that only this user can write to, for files `IDENTITY.*`. Files of ended processes are removed.

    Not `XDG_RUNTIME_DIR`: it is removed when the user logs out, while a run may continue.

    Raises:
        ConfigError: another user created it, or it cannot be created.
    """
    path = Path(tempfile.gettempdir(), f"lockstep-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(f"{path} is not private to this user; remove it, or set TMPDIR to another directory")
        _remove_ended(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used ({error.strerror}); set TMPDIR to another directory") from None
    return path


def _remove_ended(folder: Path) -> None:
    """Remove files of processes of this machine that have ended."""
    for entry in os.listdir(folder):
        words = entry.partition(".")[0].split("-")
        if len(words) == 4 and "-".join(words[:2]) == machine() and words[3] != _started(int(words[2])):
            (folder / entry).unlink(missing_ok=True)


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty without such a process.

    Not `psutil.Process.create_time()`: it adds the boot time, which moves when the clock of the machine is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent does not know yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
