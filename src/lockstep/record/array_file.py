"""Write named arrays as a safetensors file, atomically. Reading one runs no code from it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save  # pyright: ignore[reportUnknownVariableType]

from lockstep.errors import RunError
from lockstep.system.files import write_atomically


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write the arrays, by name, to a safetensors file, with `about` (JSON-able) as its metadata.

    Raises `RunError` if it cannot be written.
    """
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(held, metadata={"lockstep": json.dumps(about)}))
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} could not be written: {getattr(error, 'strerror', None) or error}") from error


def write_arrays_or_warn(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """`write_arrays` for a run that fails: prints the error instead of raising it, so that the failure is reported."""
    try:
        write_arrays(path, arrays, about)
    except RunError as problem:
        print(f"lockstep: {problem}", file=sys.stderr, flush=True)
