"""A gradient step without effect, to compile before the clocks start and to measure its cost."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.torch.adam import Adam
from lockstep.torch.flat import FlatParameters
from lockstep.torch.sgd import Sgd


def warmup(
    flat: FlatParameters, optimizers: Sequence[Adam | Sgd], loss: Callable[[], tuple[Tensor, Tensor]]
) -> Callable[[], object]:
    """Return a function that takes a gradient step without messages or effects.

    Args:
        flat: the parameters.
        optimizers: of these parameters.
        loss: computes the loss and its sums.
    """
    skipped = torch.ones((), device=flat.values.device)

    def once() -> None:
        flat.zero_gradient_()
        total, sums = loss()
        total.backward()
        flat.store_shard(0, sums)
        for optimizer in optimizers:
            optimizer.step(skipped)
        float(optimizers[-1].steps)  # wait for the GPU

    return once
