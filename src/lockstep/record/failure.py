"""The first failure of a start: one small file, which ranks and launcher create exclusively."""

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from lockstep.record.follow import read_json

_NAME = Path("logs", "failure.json")


def record_failure(run_dir: Path, *, rank: int, message: str, code: int, phase: str | None = None) -> bool:
    """Record the first failure of a start; returns False if one was recorded before. Never raises.

    Where the file cannot be written, as on a full disk, every failure counts as the first. Later failures are usually
    consequences of the first and change nothing. `rank` is at fault, which need not be the writing one; `phase` is what
    it was doing, if that is known.
    """
    path = run_dir / _NAME
    text = json.dumps({"rank": rank, "code": code, "message": message, "phase": phase}) + "\n"
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return not path.parent.is_dir()
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()  # an empty file would be the first failure
    return True


def read_failure(run_dir: Path) -> dict[str, Any] | None:
    """The first failure, with keys `rank`, `code`, `message` and `phase`; None if none was recorded."""
    return read_json(run_dir / _NAME) or None


def archive_failure(run_dir: Path) -> Path | None:
    """Rename the failure of an earlier start to `logs/failure_N.json`, N from 1; returns the new path, if any.

    Never raises. Call it before the ranks of the next start live.
    """
    path = run_dir / _NAME
    kept = next(there for n in itertools.count(1) if not (there := path.with_name(f"{path.stem}_{n}.json")).exists())
    try:
        path.rename(kept)
    except OSError:  # nothing to keep
        return None
    return kept
