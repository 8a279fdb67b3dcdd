"""Mirrored copies of a batch's transitions (Mittal et al., 2024, arXiv:2403.04359)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.session.symmetry import count_copies, load_symmetry
from lockstep.torch.batch import Batch


class Symmetry:
    """Adds to a batch the copies that the user's function of `symmetry` makes.

    Args:
        path: of the function.
        spec: of the environments.
        device: of the batches.
    """

    def __init__(self, path: str, spec: EnvSpec, device: torch.device) -> None:
        self._function = function = load_symmetry(path)

        def call(observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
            given = (torch.from_numpy(array).to(device) for array in (observation, action))
            return tuple(result.numpy(force=True) for result in function(*given))

        self._copies = count_copies(path, spec, call)

    @torch.no_grad()
    def augmented(self, batch: Batch) -> Batch:
        """M N rows, of which the first N are those of `batch`; each has a part of its weight, with the same total."""
        observation, action = self._function(batch.observation, batch.action)

        def repeated(column: Tensor) -> Tensor:
            return column.repeat(self._copies)

        return replace(
            batch,
            observation=observation,
            action=action,
            log_prob=repeated(batch.log_prob),
            value=repeated(batch.value),
            advantage=repeated(batch.advantage),
            target=repeated(batch.target),
            weight=repeated(batch.weight / self._copies),
        )
