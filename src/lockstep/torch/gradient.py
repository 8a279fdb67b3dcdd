"""The gradient of a loss over the rows of a shard: by a backward pass, or as one compiled function."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from lockstep.torch.flat import FlatParameters, write_shard

_MODES = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
"""torch's names. Its modes with CUDA graphs are left out: `capture` makes them, of the whole gradient step."""


@contextmanager
def in_training(network: nn.Module) -> Generator[None]:
    """Context of a loss: a network of the user's, else in evaluation mode, is in training mode."""
    if network.training:  # as Lockstep's own networks always are
        yield
        return
    network.train()
    try:
        yield
    finally:
        network.eval()


class LossGradient:
    """Computes the gradient of a loss, and its sums, for the rows of one local shard.

    Compiled, the loss, its backward pass and the row to send are one function without the fixed costs of autograd: for
    small networks it takes about half the time.

    Args:
        flat: the parameters; gradient and sums are stored in its rows.
        loss: returns the loss, its sums [S], and possibly more tensors.
        compiled: use `torch.compile`.
        network: in training mode while the loss is computed; None: no part of the loss has modes.
        mode: `compile_mode` of the run.
        dynamic: as in `torch.compile`: False compiles again for each new shape, None makes sizes that change symbols.
    """

    def __init__(
        self,
        flat: FlatParameters,
        loss: Callable[..., tuple[Tensor, ...]],
        *,
        compiled: bool,
        dynamic: bool | None,
        mode: str = "default",
        network: nn.Module | None = None,
    ) -> None:
        self._flat = flat
        self._network = network
        self._loss = loss
        self._compiled: Callable[..., Sequence[Tensor]] | None = None
        if compiled and _traces_autograd():
            self._compiled = torch.compile(self._store_row, dynamic=dynamic, mode=_MODES[mode])
        elif compiled:
            self._loss = torch.compile(loss, dynamic=dynamic, mode=_MODES[mode])

    def __call__(self, shard: int, inputs: Sequence[Any], extra: Tensor | None = None) -> Sequence[Tensor]:
        """Store the gradient and the sums of a shard, by its local index.

        Args:
            shard: local index.
            inputs: the arguments of the loss.
            extra: sums that follow those of the loss.

        Returns:
            What the loss returns after its sums.
        """
        with nullcontext() if self._network is None else in_training(self._network):
            if self._compiled is not None:
                return self._compiled(self._flat.rows[shard], inputs, extra)
            self._flat.zero_gradient_()
            loss, sums, *more = self._loss(*inputs)
            loss.backward()
        write_shard(self._flat, shard, _joined(sums, extra))
        return more

    def _store_row(self, row: Tensor, inputs: Sequence[Any], extra: Tensor | None) -> Sequence[Tensor]:
        """The same into a row of `flat.rows`, without `.grad`, which would be a side effect for the compiler."""
        loss, sums, *more = self._loss(*inputs)
        gradients = torch.autograd.grad(loss, self._flat.module_parameters, allow_unused=True, materialize_grads=True)
        flat = [gradient.reshape(-1) for gradient in gradients]
        torch.cat([*flat, _joined(sums, extra)], out=row)
        return [tensor.detach() for tensor in more]


def _joined(sums: Tensor, extra: Tensor | None) -> Tensor:
    return sums.detach() if extra is None else torch.cat([sums.detach(), extra])


def _traces_autograd() -> bool:
    """Whether this torch compiles `torch.autograd.grad`, as from 2.11 on; allows it."""
    import torch._dynamo.config as config  # imports the compiler

    allowed = hasattr(config, "trace_autograd_ops")
    if allowed:
        cast(Any, config).trace_autograd_ops = True
    return allowed
