"""Who failed first: one small file that ranks and launcher agree on without talking to each other."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

_NAME = Path("logs", "failure.json")


def record_failure(run_dir: Path, *, rank: int, message: str, code: int, phase: str | None = None) -> bool:
    """Write down the first failure of a start; later ones are usually its consequences and change nothing.

    Never raises: whoever fails has an error of its own to report.

    Args:
        run_dir: the run's directory.
        rank: the rank at fault, which need not be the one that writes.
        message: one line for the user.
        code: the exit code that follows from it.
        phase: what the rank was doing, if it is known.

    Returns:
        Whether this was the first.
    """
    path = run_dir / _NAME
    text = json.dumps({"rank": rank, "code": code, "message": message, "phase": phase}) + "\n"
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_failure(run_dir: Path) -> dict[str, Any] | None:
    """The first failure, with keys `rank`, `code`, `message` and `phase`; None if none was recorded."""
    try:
        return json.loads((run_dir / _NAME).read_text())
    except (OSError, ValueError):  # ValueError: its writer was killed half-way
        return None


def archive_failure(run_dir: Path) -> Path | None:
    """Set the failure of an earlier start aside, as `logs/failure_N.json`, so that the next one can be recorded.

    Never raises. Call it before the ranks of the next start live.

    Args:
        run_dir: the run's directory.

    Returns:
        Where it went; N counts from 1. None if there was none.
    """
    path = run_dir / _NAME
    kept = next(there for n in itertools.count(1) if not (there := path.with_name(f"{path.stem}_{n}.json")).exists())
    try:
        path.rename(kept)
    except OSError:  # nothing to keep
        return None
    return kept
