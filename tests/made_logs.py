"""Small logs for tests, as files."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import zstandard

from lockstep.data.logs.format import Log, read_log


def row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A discrete decision: the `number`-th of trajectory `a`. `...` leaves a column out."""
    made = {
        "mdp_id": "a",
        "sequence_number": number,
        "state_features": {"0": number + 0.5, "1": -1.0},
        "action": "left",
        "reward": 1.0,
        **changes,
    }
    return {name: value for name, value in made.items() if value is not ...}


def parametric(number: int = 0, **changes: Any) -> dict[str, Any]:
    """The same with an action that is a map."""
    return row(number, **{"action": {"7": 1.0}, **changes})


def text_of(rows: list[Any]) -> bytes:
    """A line of JSON for each row; a row that is text stands as it is."""
    return b"".join((one if isinstance(one, str) else json.dumps(one)).encode() + b"\n" for one in rows)


def write(path: Path, rows: list[Any]) -> Path:
    """JSON lines, compressed as the name says."""
    text = text_of(rows)
    compress = {".bz2": bz2.compress, ".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text))
    return path


def whole(log: Log) -> pl.DataFrame:
    """All rows of a log in one table."""
    return pl.concat(list(log.frames()), how="diagonal_relaxed")


def table(path: Path, **options: Any) -> pl.DataFrame:
    """All rows of a log file in one table."""
    return whole(read_log([path], **options))
