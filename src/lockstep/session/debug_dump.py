"""What a failed run leaves for inspection, each process its own part."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lockstep.errors import MismatchError
from lockstep.record.array_file import leave_arrays
from lockstep.session import non_finite as locate_non_finite
from lockstep.session.non_finite import NonFiniteError

FOLDER = "mismatch"


def save_debug_dump(error: BaseException, run_dir: Path, rank: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Write what the error speaks of. Never raises: the error itself is to be told.

    Of ranks that no longer agree: `mismatch/rank_R.safetensors`, the arrays that differ as those at fault and one other
    rank hold them. Of a number that is not finite: what it came with.

    Args:
        error: why the run fails.
        run_dir: the run's directory.
        rank: this one.
        arrays: everything that must be equal on all ranks, as this one holds it.
    """
    if isinstance(error, NonFiniteError):
        locate_non_finite.save(error, run_dir)
    if isinstance(error, MismatchError):
        agreeing = next((r for r in range(len(error.ranks) + 1) if r not in error.ranks), None)
        if rank not in error.ranks and rank != agreeing:
            return
        held = {name: arrays[name] for name in error.tensors if name in arrays}
        leave_arrays(run_dir / FOLDER / f"rank_{rank}.safetensors", held, {"format": 1, "error": str(error)})
