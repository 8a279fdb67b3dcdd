"""What a failed run leaves for inspection, each rank its own part."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lockstep.errors import MismatchError
from lockstep.torch import non_finite
from lockstep.torch.non_finite import NonFiniteError
from lockstep.torch.tensor_file import leave_tensors

FOLDER = "mismatch"


def save_evidence(error: BaseException, run_dir: Path, rank: int, tensors: Mapping[str, Tensor]) -> None:
    """Write what the error speaks of. Never raises: the error itself is to be told.

    Of ranks that no longer agree: `mismatch/rank_R.safetensors`, the tensors that differ as those at fault and one
    other rank hold them. Of a number that is not finite: what it came with.

    Args:
        error: why the run fails.
        run_dir: the run's directory.
        rank: this one.
        tensors: everything that must be equal on all ranks, as this one holds it.
    """
    if isinstance(error, NonFiniteError):
        non_finite.save(error, run_dir)
    if isinstance(error, MismatchError):
        agreeing = next((r for r in range(len(error.ranks) + 1) if r not in error.ranks), None)
        if rank not in error.ranks and rank != agreeing:
            return
        path = run_dir / FOLDER / f"rank_{rank}.safetensors"
        held = {name: tensors[name].detach().cpu().clone() for name in error.tensors if name in tensors}
        leave_tensors(path, held, {"format": 1, "error": str(error)})
