"""Write named arrays as a safetensors file, atomically. Reading one runs no code from it."""

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
    """Write the arrays, by name, to a safetensors file, with `about` (JSON-able) as its metadata.

    The file is written under another name, then renamed. Raises `RunError` if it cannot be written.
    """
    beside = path.with_name(f".{path.name}")
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(held, beside, metadata={"lockstep": json.dumps(about)})
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise RunError(f"{path} could not be written: {error}") from error


def write_arrays_or_warn(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """`write_arrays` for a run that fails: prints the error instead of raising it, so that the failure is reported."""
    try:
        write_arrays(path, arrays, about)
    except RunError as problem:
        print(f"lockstep: {problem}", file=sys.stderr, flush=True)
