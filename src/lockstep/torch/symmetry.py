"""Mirrored copies of a batch's transitions (Mittal et al., 2024, arXiv:2403.04359).

Shapes: N transitions; M, the transition and its mirrored copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.session.symmetry import count_copies, load_symmetry
from lockstep.torch.batch import Batch


class Symmetry:
    """The user's function of `symmetry`.

    Args:
        path: of the function.
        spec: of the environments.
        device: of the batches.
    """

    def __init__(self, path: str, spec: EnvSpec, device: torch.device) -> None:
        self._function = function = load_symmetry(path, spec)

        def call(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            given = (torch.from_numpy(array).to(device) for array in arrays)
            return tuple(result.numpy(force=True) for result in function(*given))

        self._copies = count_copies(path, spec, call)

    @torch.no_grad()
    def mirrored(self, batch: Batch, raw: Sequence[Tensor], normalize: Sequence[Callable[[Tensor], Tensor]]) -> Batch:
        """The batch with the columns `mirrored_observation`, `mirrored_action` and `mirrored_critic`.

        Args:
            batch: N transitions.
            raw: observations [N, *O], and the critic's own [N, C], if there are any, as the environments returned them:
                a normalizer's mean is not symmetric.
            normalize: for each of `raw`, the function that normalized it for the batch.
        """
        results = self._function(raw[0], batch.action, *raw[1:])
        observation, action, *critic = (x.unflatten(0, (self._copies, -1))[1:].transpose(0, 1) for x in results)
        return replace(
            batch,
            mirrored_observation=normalize[0](observation),
            mirrored_action=action,
            mirrored_critic=normalize[1](critic[0]) if critic else None,
        )


@torch.no_grad()
def augmented(batch: Batch) -> Batch:
    """M N rows, of which the first N are those of `batch`; each has a part of its weight, with the same total."""
    if batch.mirrored_observation is None or batch.mirrored_action is None:
        return batch
    copies = 1 + batch.mirrored_action.shape[1]

    def joined(column: Tensor, mirrored: Tensor) -> Tensor:
        return torch.cat([column, mirrored.transpose(0, 1).flatten(0, 1)])

    def repeated(column: Tensor) -> Tensor:
        return column.repeat(copies)

    return replace(
        batch,
        observation=joined(batch.observation, batch.mirrored_observation),
        action=joined(batch.action, batch.mirrored_action),
        log_prob=repeated(batch.log_prob),
        value=repeated(batch.value),
        advantage=repeated(batch.advantage),
        target=repeated(batch.target),
        weight=repeated(batch.weight / copies),
        critic=None if batch.mirrored_critic is None else joined(cast(Tensor, batch.critic), batch.mirrored_critic),
        mirrored_observation=None,
        mirrored_action=None,
        mirrored_critic=None,
    )
