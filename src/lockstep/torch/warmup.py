"""A gradient step without effect, to compile before the clocks start and to measure its cost."""

from collections.abc import Callable, Sequence

import torch

from lockstep.torch.adam import Adam
from lockstep.torch.sgd import Sgd


def warmup_step(optimizers: Sequence[Adam | Sgd], accumulate: Callable[[], object]) -> Callable[[], object]:
    """Return a function that takes a gradient step without messages or effects.

    Args:
        optimizers: of the parameters.
        accumulate: computes their gradient.
    """
    skipped = torch.ones((), device=optimizers[-1].steps.device)

    def once() -> None:
        accumulate()
        for optimizer in optimizers:
            optimizer.step(skipped)
        float(optimizers[-1].steps)  # wait for the GPU

    return once
