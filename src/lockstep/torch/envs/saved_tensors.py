"""Trees of plain values with tensors, as environments save them, and with numpy arrays, as checkpoints hold them."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch


def to_arrays(tree: Any) -> Any:
    """The tree with each tensor as a numpy array, copied."""
    return _map(tree, lambda leaf: np.array(leaf.detach().cpu().numpy()) if isinstance(leaf, torch.Tensor) else leaf)


def to_tensors(tree: Any) -> Any:
    """The tree with each array as a tensor on the CPU, copied."""
    return _map(tree, lambda leaf: torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf)


def _map(tree: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _map(item, convert) for key, item in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        return [_map(item, convert) for item in cast("list[Any]", tree)]
    return convert(tree)
