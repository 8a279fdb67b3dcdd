"""Reads and durable writes of small files, and their paths in messages."""

import errno
import os
from pathlib import Path

from lockstep.errors import ConfigError

_MOUNTS = Path("/proc/self/mountinfo")


def read_text(path: Path) -> str:
    """The content of a text file. Raises `ConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def shown_path(path: Path) -> str:
    """A path for messages: relative to the working directory if it is below it, else absolute.

    Ranks that a cluster places may have a working directory far from the run's, and far from the user's.
    """
    relative = os.path.relpath(path)
    return os.path.abspath(path) if Path(relative).parts[:1] == (os.pardir,) else relative


def not_writable(path: Path, error: OSError) -> ConfigError:
    """The error for a file of an existing run that cannot be written, with the way out."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free its disk" if full else "make it writable, or resume a copy of the run"
    return ConfigError(f"{path} cannot be written ({error.strerror}); {way_out}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under another name, sync it to the disk, and rename it. An `OSError` names the file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)  # a write knows no name
        raise


def sync_file(path: Path) -> None:
    """Sync a file to the disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to the disk."""
    sync_file(path)


def is_mount_point(path: Path) -> bool:
    """Whether a file system is mounted on `path`, or another directory is bound to it, so that it has no other name."""
    if not path.exists():
        return False
    if path.is_mount():
        return True
    try:  # a directory of the same disk, bound to this one: `is_mount` compares disks
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    escaped = str(path.resolve()).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == escaped for line in lines)
