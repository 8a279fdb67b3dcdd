"""Named arrays as a safetensors file, there whole or not at all. Reading one runs no code from it."""

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from lockstep.errors import RunError


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write a file beside, then rename it. Raises `RunError` where that cannot be.

    Args:
        path: the file; its directory is made if need be.
        arrays: by name.
        about: what they mean, JSON-able; kept in the file's metadata.
    """
    beside = path.with_name(f".{path.name}")
    held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(held, beside, metadata={"lockstep": json.dumps(about)})
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise RunError(f"{path} could not be written: {error}") from error


def write_arrays_or_warn(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """The same for a run that fails: says so where it cannot be, and never raises, as the failure is to be told."""
    try:
        write_arrays(path, arrays, about)
    except RunError as problem:
        print(f"lockstep: {problem}", file=sys.stderr, flush=True)
