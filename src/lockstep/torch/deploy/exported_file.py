"""Writing a traced policy to an ONNX or `.pt2` file, atomically and only after verification."""

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
"""The extra file in a `.pt2` file that holds its metadata as JSON."""
LARGEST_DIFFERENCE = 1e-4
"""The tolerance, relative to the mean magnitude of the best scores. Reordered float32 sums differ by 1e-6."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written and verified."""

    path: Path
    rows: int
    """The number of inputs on which its outputs were compared with those of the policy."""
    difference: float
    """The largest difference, relative to the mean magnitude of the best scores."""
    num_same_action: int | None
    """Rows in which both choose the same action; None for continuous actions and for candidates."""

    def __str__(self) -> str:
        choice = "" if self.num_same_action is None else f", the same action in {self.num_same_action}"
        return f"{self.path}: compared in {self.rows} rows, largest relative difference {self.difference:.1e}{choice}"


def write_program(
    program: Program,
    path: Path,
    to: Format,
    metadata: Mapping[str, Any],
    compare: Callable[[Callable[[Arrays], Arrays]], Exported],
    actions: Sequence[str] = (),
) -> Exported:
    """Write a program to a temporary file, verify that file, then rename it.

    Args:
        program: the traced program.
        path: the file to write; its directory is created if it does not exist.
        to: the format.
        metadata: stored in the file as JSON.
        compare: verifies the file; receives a function that runs it, from inputs to outputs by name.
        actions: names of the actions, for an ONNX file.

    Raises:
        ConfigError: a package is missing.
        RunError: the file cannot be written, or `compare` rejects it.
    """
    versions = {"lockstep": version("lockstep-rl"), "torch": str(torch.__version__)}
    header = json.dumps({"format": _FORMAT, **metadata, "versions": versions})
    if to == "onnx":
        content, run = to_onnx(program, actions, header), run_onnx
    else:
        content, run = _serialize(program.exported, header), run_program
    temporary = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        result = compare(partial(run, temporary))
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return result


def run_program(path: Path, inputs: Arrays) -> Arrays:
    """Run a `.pt2` file on the CPU."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # from torch's own modules
        module = torch.export.load(path).module()
        outputs: dict[str, torch.Tensor] = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}


def difference(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> tuple[float, int]:
    """The largest difference of scores [n] or [n, A], relative to the mean magnitude of the best ones, and its row.

    A score with a larger magnitude is compared relative to itself: excluded actions have a score of -1e9. NaN counts as
    an infinite difference.
    """
    best = expected if expected.ndim == 1 else expected.max(-1)
    scale = float(np.abs(best).mean()) or 1.0
    relative = np.abs(actual - expected) / np.maximum(np.abs(expected), scale)
    of_row = np.nan_to_num(relative.reshape(len(expected), -1).max(-1), nan=np.inf)
    return float(of_row.max()), int(of_row.argmax())


def _serialize(program: ExportedProgram, metadata: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from torch's own modules
        torch.export.save(program, file, extra_files={EXTRA_FILE: metadata})
    return file.getvalue()
