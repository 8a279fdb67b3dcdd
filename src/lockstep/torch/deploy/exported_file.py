"""A traced policy as one file: ONNX, or torch's own `.pt2`. It appears only once it was tried, and whole."""

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from lockstep.errors import RunError
from lockstep.torch.deploy.onnx_model import METADATA, run_onnx, to_onnx
from lockstep.torch.deploy.program import Program

Format = Literal["onnx", "torch"]
Arrays = dict[str, NDArray[Any]]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
EXTRA_FILE = f"{METADATA}.json"
"""Where a `.pt2` file says what it is: an extra file of this name, JSON."""
LARGEST_DIFFERENCE = 1e-4
"""Relative to the mean size of the best scores; float32 in another order differs by 1e-6."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written and tried."""

    path: Path
    rows: int
    """Inputs of which it made what the policy makes."""
    difference: float
    """The largest, relative to the mean size of the best scores."""
    same_choice: int | None
    """Rows in which it chooses the same action; None where nothing was chosen."""

    def __str__(self) -> str:
        choice = "" if self.same_choice is None else f", the same action in {self.same_choice}"
        return f"{self.path}: compared in {self.rows} rows, largest relative difference {self.difference:.1e}{choice}"


def write_program(
    program: Program,
    path: Path,
    to: Format,
    about: Mapping[str, Any],
    compare: Callable[[Callable[[Arrays], Arrays]], Exported],
    actions: Sequence[str] = (),
) -> Exported:
    """Write a program beside, try it, then rename it.

    Args:
        program: what is written.
        path: where to; its directory is made if need be.
        to: which format.
        about: what a user of the file has to know, JSON-able.
        compare: given what runs the file, from inputs to outputs by name, says how it went, or raises.
        actions: names that an ONNX file gives to what its output `action` numbers.

    Raises:
        ConfigError: a package is missing.
        RunError: the file cannot be written, or whatever `compare` raised.
    """
    versions = {"lockstep": version("lockstep-rl"), "torch": str(torch.__version__)}
    said = json.dumps({"format": _FORMAT, **about, "versions": versions})
    content = to_onnx(program, actions, said) if to == "onnx" else _serialized(program.exported, said)
    run, beside = run_onnx if to == "onnx" else run_program, path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        tried = compare(partial(run, beside))
        beside.replace(path)
    except OSError as error:
        raise RunError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return tried


def run_program(path: Path, inputs: Arrays) -> Arrays:
    """What a `.pt2` file makes of inputs, on a CPU."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's about its own parts
        module = torch.export.load(path).module()
        outputs: dict[str, torch.Tensor] = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> tuple[float, int]:
    """The largest difference of scores, [n] or [n, A], relative to the mean size of the best; and in which row it is.

    A score that is larger than that is compared to itself: one of -1e9 says that an action is left out. NaN is never
    the same.
    """
    rows = len(wanted)
    best = wanted if wanted.ndim == 1 else wanted.max(-1)
    size = float(np.abs(best).mean()) or 1.0
    apart = np.abs(found - wanted) / np.maximum(np.abs(wanted), size)
    apart = np.nan_to_num(apart.reshape(rows, -1).max(-1), nan=np.inf)
    return float(apart.max()), int(apart.argmax())


def _serialized(program: ExportedProgram, about: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about its own parts
        torch.export.save(program, file, extra_files={EXTRA_FILE: about})
    return file.getvalue()
