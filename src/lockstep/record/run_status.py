"""Whether a run is in progress, as its directory shows it."""

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RANKS_FILE, RUN_FILE, SUMMARY_FILE

COMPLETE = ("finished", "solved")
"""The statuses of a run that has ended successfully."""
FRESH_S = 120.0
"""Where locks do not show it, a run that wrote so recently counts as running."""

_FILES = (RUN_FILE, METRICS_FILE, EVALUATIONS_FILE, RANKS_FILE, SUMMARY_FILE)
_RECORDS = (METRICS_FILE, EVALUATIONS_FILE)
"""Locked by who writes them: `RunDir` in a loop of one's own, which leaves its directory to a `CheckpointManager`."""
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "9p", "beegfs", "gpfs")
"""File systems on which another machine's lock may be invisible; also all of FUSE, such as sshfs."""
_MOUNTS = Path("/proc/self/mountinfo")


def is_running(run_dir: Path) -> bool:
    """Whether a process trains the run: it has locked the directory, or is a loop of one's own that records in it.

    On file systems of a network, or without locks, a run without a summary that wrote lately counts as running.
    """
    locked = _is_locked(run_dir)
    if locked is None:
        return _wrote_lately(run_dir)
    if locked:
        return True
    if not (run_dir / SUMMARY_FILE).exists() and any(_is_locked(run_dir / name) for name in _RECORDS):
        return True
    return _is_on_network(run_dir) and _wrote_lately(run_dir)


def status_of(summary: Mapping[str, Any], *, running: bool) -> str:
    """`running`, the status in `summary.json`, or `cut short` for a run that ended without a result.

    A summary without a status is that of a loop of the user's own, which writes it at its end: `finished`.
    """
    status = str(summary.get("status", "finished" if summary else "cut short"))
    return "running" if running else "cut short" if status == "running" else status


def written_at(run_dir: Path) -> float:
    """Time of the last change of the run's files, in seconds since 1970; 0 without files."""
    times = [0.0]
    for name in _FILES:
        with suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times)


def _is_locked(path: Path) -> bool | None:
    """Whether a process has locked the file or directory; None where that cannot be asked."""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    else:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wrote_lately(run_dir: Path) -> bool:
    return not (run_dir / SUMMARY_FILE).exists() and time.time() - written_at(run_dir) < FRESH_S


def _is_on_network(path: Path) -> bool:
    """Whether the file system of `path` belongs to another machine."""
    try:
        device = os.stat(path).st_dev
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            kind = after.split()[0]
            return kind in _NETWORK or kind.startswith("fuse.")
    return False
