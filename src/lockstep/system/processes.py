"""Which process is which on this machine, and where to keep small files that belong to one. Costs little to import."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import ConfigError

TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Set for ranks by whatever drives torch's elastic agent."""


def torchrun_agent(environment: Mapping[str, str] = os.environ) -> int | None:
    """The process of torchrun's agent on this node: the nearest ancestor without the variables of this rank.

    Wrappers between it and the rank have them. None without such an agent, or if its process cannot be found.
    """
    return starter(TORCHRUN, environment)


def starter(variable: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """The nearest ancestor that does not have this process's value of a variable: it, or its launcher, set it."""
    value = environment.get(variable)
    pid = os.getppid()
    while value is not None and pid > 0:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(_stat(pid)[1])
        except PermissionError:  # another user's: no wrapper that inherited the variables
            return pid
        except OSError:
            return None
        if f"{variable}={value}".encode() not in variables:
            return pid
        pid = parent
    return None


def identity(pid: int) -> str:
    """Names a process, and no other that ever had its number, here or on another machine."""
    return f"{_machine()}-{pid}-{_started(pid)}"


def private_folder() -> Path:
    """A directory that only this user can write to, for files `IDENTITY.*`, without those of processes that have ended.

    Not `XDG_RUNTIME_DIR`: that goes when the user logs out, and a run need not.

    Raises:
        ConfigError: somebody else made it, or it cannot be made.
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
    """Remove what belongs to processes of this machine that are no more."""
    for entry in os.listdir(folder):
        words = entry.partition(".")[0].split("-")
        if len(words) == 4 and "-".join(words[:2]) == _machine() and words[3] != _started(int(words[2])):
            (folder / entry).unlink(missing_ok=True)


def _machine() -> str:
    """Whose process numbers these are: containers and machines may share a directory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").replace("-", "").strip()
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; empty without such a process."""
    try:
        return _stat(pid)[19]
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """`/proc/PID/stat` behind the command: state, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
