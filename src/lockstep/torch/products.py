"""Linear layers whose matrix products are faster on a CPU than torch's.

Torch multiplies float32 matrices by Intel's library MKL, on all processors. Here

- large products are computed by oneDNN, which is part of torch too, on AMD processors with AVX-512: MKL uses half of
  the width of their registers;
- the gradient of a weight is computed transposed if the layer has more outputs than inputs, as the first layer of most
  networks: MKL computes rows of a result in blocks of 16 numbers, and the rows of x^T g are longer than those of g^T x;
- the gradient of a very large weight is added in place, if the parameter allows it.

Results equal torch's up to rounding. On GPUs, under autocast, in exported programs and for small layers, torch's
functions are used.

Shapes: N rows, I inputs and O outputs of a layer, C layers.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.system.cores import is_amd

_LARGE_PRODUCT = 1_500_000
"""Multiplications from which oneDNN is faster than MKL, where it can be."""
_MANY_WEIGHTS = 1 << 11
"""Size of a weight from which this is true of its gradient as well, a product with long sums."""
_MANY_OUTPUTS = 1 << 17
"""Rows times outputs of a layer from which a faster gradient is worth a backward pass in Python."""
_VERY_LARGE_WEIGHT = 1 << 18
"""Size of a weight above which adding its gradient in place is faster."""
_ADDS = "adds_in_place"
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def _onednn_is_faster() -> bool:
    has_product = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_product and torch.backends.cpu.get_cpu_capability() == "AVX512" and is_amd()


ONEDNN_IS_FASTER = _onednn_is_faster()
"""Whether this processor multiplies large float32 matrices faster by oneDNN than by MKL."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[N, I] to x W^T + b [N, O]."""
    if not _is_supported(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled() or not (x.requires_grad or weight.requires_grad):
        return product(x, weight, bias)
    compiling = torch.compiler.is_compiling()
    adds = not compiling and weight.numel() >= _VERY_LARGE_WEIGHT and getattr(weight, _ADDS, False)
    if adds or _is_large(x, weight) or (_widens(weight) and (compiling or len(x) * len(weight) >= _MANY_OUTPUTS)):
        return cast(Tensor, _Linear.apply(x, weight, bias, adds))
    return F.linear(x, weight, bias)


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[C, N, I] to x_c W_c^T + b_c [C, N, O], with weights [C, O, I] and biases [C, O]."""
    if not _is_supported(x, weight) or not _is_large(x[0], weight[0]):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    return torch.stack([linear(*layer) for layer in zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)])


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[N, I] and [O, I] to x W^T + b [N, O], without a gradient."""
    if not _is_large(x, weight):
        return F.linear(x, weight, bias)
    # The compiler knows torch's function only for weights that never change: it calls ours.
    by_onednn = torch.ops.lockstep.onednn_product if torch.compiler.is_compiling() else _onednn_product
    return cast(Tensor, by_onednn(x, weight, bias))


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[N, I] and [O, I], with any strides, to x W^T + b [N, O]."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


def _like_onednn_product(x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(weight))


_library = torch.library.Library("lockstep", "DEF")
_library.define("onednn_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("onednn_product", _onednn_product, "CPU")
torch.library.register_fake("lockstep::onednn_product", _like_onednn_product)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """g^T x [O, I], of the gradient [N, O] of the outputs and the inputs [N, I]."""
    transposed = x.shape[1] < gradient.shape[1]
    if gradient.shape[1] * x.shape[1] >= _MANY_WEIGHTS:
        return product(x.T, gradient.T).T if transposed else product(gradient.T, x.T)
    return (x.T @ gradient).T if transposed else gradient.T @ x


def add_in_place(parameter: nn.Parameter) -> None:
    """Let `linear` accumulate `parameter.grad` in place in backward passes.

    Only for a parameter whose `.grad` always exists, without hooks and not passed to `torch.autograd.grad`. A copy of
    the parameter is an ordinary one.
    """
    setattr(parameter, _ADDS, True)


def add_by_autograd(parameter: nn.Parameter) -> None:
    """Undo `add_in_place`, so that the parameter may have hooks."""
    if hasattr(parameter, _ADDS):
        delattr(parameter, _ADDS)


def _is_supported(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.ndim == weight.ndim
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not _is_exporting()
    )


def _is_large(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of [N, I] with [O, I] is one for oneDNN."""
    return ONEDNN_IS_FASTER and len(x) * weight.numel() >= _LARGE_PRODUCT


def _widens(weight: Tensor) -> bool:
    outputs, inputs = weight.shape
    return 1 < inputs < outputs


class _Linear(torch.autograd.Function):
    """y = x W^T + b; dL/dx = g W, dL/dW = g^T x and dL/db = sum of g, with g = dL/dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, adds: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight = weight if adds else None  # `saved_tensors` may return another tensor, without `.grad`
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        gradient, (x, weight) = gradients[0], ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
        of_weight = None
        if to_weight and ctx.weight is None:
            of_weight = weight_gradient(gradient, x)
        elif to_weight and _is_large(gradient, weight):
            ctx.weight.grad.add_(weight_gradient(gradient, x))
        elif to_weight:
            ctx.weight.grad.addmm_(gradient.T, x)
        return product(gradient, weight.T) if to_x else None, of_weight, gradient.sum(0) if to_bias else None, None
