"""Where data is prepared: one process at a time, nothing left behind, and enough space."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import ConfigError, RunError


@contextmanager
def locked(out: Path, say: Callable[[str], None]) -> Generator[None]:
    """Hold the lock of a directory that is to be made; waits while another process of this machine prepares it."""
    path = out.parent / f".{out.name}.lock"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path, say)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error.strerror}); name another directory") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who waits for it sees that it is gone, and makes a new one
        os.close(descriptor)


def _locked(path: Path, say: Callable[[str], None]) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process prepares {path.parent / path.name[1:].removesuffix('.lock')}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def leftovers_removed(out: Path) -> None:
    """Clear away what processes that were killed left of earlier tries. Needs the lock."""
    for path in out.parent.glob(f".{out.name}.*.replaced"):
        if not out.exists() and (path / "data").exists():
            os.rename(path / "data", out)  # killed between the two renames: the old data is still whole
        shutil.rmtree(path, ignore_errors=True)
    for path in out.parent.glob(f".{out.name}.*.unfinished"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch(out: Path) -> Generator[Path]:
    """A directory on the disk of `out`, gone afterwards. A full disk is a `RunError` that says so."""
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent))
    try:
        yield directory
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"the disk of {out.parent} is full; nothing was prepared: free some space, or name another --out"
        ) from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_space(directory: Path, needed: float) -> None:
    """Raise `RunError` if the disk has less room than so many bytes."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise RunError(
            f"preparing takes about {_gigabytes(needed)} more of the disk of {directory.parent}, which has "
            f"{_gigabytes(free)}; free some space, or name another --out"
        )


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.3g} GB"
