"""The lock and the scratch directory of a preparation, and the disk space that it needs."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import ConfigError, RunError


@contextmanager
def locked(out: Path, show: Callable[[str], None]) -> Generator[None]:
    """Lock an output directory; waits while another process of this machine prepares it."""
    from filelock import FileLock, Timeout

    path = out.parent / f".{out.name}.lock"
    lock = FileLock(path, fallback_to_soft=False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            path.touch()  # the lock also times out where its file cannot be made
            show(f"another process prepares {out}; waiting for it")
            lock.acquire()
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error.strerror}); name another directory") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while locked: a waiting process detects it and creates a new file
        lock.release()


def remove_leftovers(out: Path) -> None:
    """Remove files that killed processes left behind. The caller holds the lock."""
    # The random part has no dot: with one, `.data.eval.x.unfinished` would be of `data`, and is of `data.eval`.
    form = re.compile(re.escape(f".{out.name}.") + r"[^.]+\.(unfinished|replaced)")
    for path in sorted(out.parent.iterdir()):
        if not (found := form.fullmatch(path.name)):
            continue
        if found[1] == "replaced" and not out.exists() and (path / "data").exists():
            os.rename(path / "data", out)  # killed between the two renames: the old data is complete
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch(out: Path) -> Generator[Path]:
    """A temporary directory on the disk of `out`. A full disk is raised as `RunError`."""
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
    """Raise `RunError` if the disk has fewer free bytes than `needed`."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise RunError(
            f"preparing takes about {_gigabytes(needed)} more of the disk of {directory.parent}, which has "
            f"{_gigabytes(free)}; free some space, or name another --out"
        )


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.3g} GB"
