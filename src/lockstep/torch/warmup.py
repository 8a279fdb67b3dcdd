"""A gradient step for show: what is compiled is compiled before the clocks start, and what it costs can be measured."""

from collections.abc import Callable

import torch
from torch import Tensor

from lockstep.torch.adam import Adam
from lockstep.torch.flat import FlatParameters
from lockstep.torch.sgd import Sgd


def warmup(
    flat: FlatParameters, optimizer: Adam | Sgd, loss: Callable[[], tuple[Tensor, Tensor]]
) -> Callable[[], object]:
    """A gradient step that sends nothing and changes nothing, as a function.

    Args:
        flat: the parameters.
        optimizer: of them.
        loss: computes the loss and its sums to tell.
    """
    skipped = torch.ones((), device=flat.values.device)

    def once() -> None:
        flat.zero_gradient_()
        total, sums = loss()
        total.backward()
        flat.keep(0, sums)
        optimizer.step(skipped)
        float(optimizer.steps)  # on a GPU: wait until it is there

    return once
