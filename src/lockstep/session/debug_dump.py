"""Files that a failed run saves for inspection, one part per process."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lockstep.errors import MismatchError
from lockstep.record.array_file import write_arrays_or_warn
from lockstep.session.non_finite import NonFiniteError, save_batches

FOLDER = "mismatch"


def save_debug_dump(error: BaseException, run_dir: Path, rank: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Save the arrays of an error. Never raises, so that `error` itself is reported.

    For a mismatch: `mismatch/rank_R.safetensors`, the differing arrays of the ranks at fault and of one other rank. For
    a non-finite value: its batch.

    Args:
        error: of the run.
        run_dir: the run's directory.
        rank: this rank.
        arrays: this rank's arrays that must be equal on all ranks.
    """
    if isinstance(error, NonFiniteError):
        save_batches(error, run_dir)
    if isinstance(error, MismatchError):
        agreeing = next((r for r in range(len(error.ranks) + 1) if r not in error.ranks), None)
        if rank not in error.ranks and rank != agreeing:
            return
        differing = {name: arrays[name] for name in error.tensors if name in arrays}
        write_arrays_or_warn(
            run_dir / FOLDER / f"rank_{rank}.safetensors", differing, {"format": 1, "error": str(error)}
        )
