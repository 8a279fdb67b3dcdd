"""Convolutions and activations with a faster backward pass on a CPU than torch's.

Results equal torch's up to rounding. On GPUs, under autocast, while compiling, and for small layers, torch's are used.

Shapes: N rows, C channels, H and W height and width, K side of a kernel.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.torch.products import ONEDNN_IS_FASTER

_MANY_CHANNELS = 64
"""Output channels above which the weight gradient of a convolution is faster as one matrix product."""
_MANY = 1 << 15
"""Numbers above which an activation that writes into its argument is faster than torch's."""


def conv2d(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """The convolution `layer` of [N, C, H, W]; the gradient of its weight is one matrix product over unfolded images.

    The library behind torch's convolutions, oneDNN, reaches 3/4 of a core's speed there, torch's matrix products 9/10,
    except where `ONEDNN_IS_FASTER`.
    """
    unfolds = not ONEDNN_IS_FASTER and _unfolds(layer)
    if unfolds and _trains(x, layer.weight) and x.is_contiguous(memory_format=torch.channels_last):
        return cast(Tensor, _Convolution.apply(x, layer.weight, layer.bias, layer.stride[0]))
    return F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def elu(x: Tensor) -> Tensor:
    """max(x, 0) + exp(min(x, 0)) - 1. A large `x` on a CPU is overwritten: no other function may have saved it."""
    if torch.compiler.is_compiling():  # comes first: a traced program must not depend on the number of rows
        return F.elu(x)
    plain = x.numel() < _MANY or x.device.type != "cpu" or x.dtype != torch.float32
    return F.elu(x) if plain else cast(Tensor, _Elu.apply(x))


def _unfolds(layer: nn.Conv2d) -> bool:
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.stride[0] == layer.stride[1]
    plain = layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1
    return layer.out_channels >= _MANY_CHANNELS and square and plain and layer.bias is not None


def _trains(x: Tensor, weight: Tensor) -> bool:
    """Whether the weight needs a gradient and `_Convolution` supports it."""
    return (
        weight.requires_grad
        and torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Convolution(torch.autograd.Function):
    """y = conv(x, w) + b without padding; dL/dw = g^T unfold(x), with g = dL/dy, one row for each pixel of y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(x, weight, bias, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient, stride = gradients[0].contiguous(memory_format=torch.channels_last), ctx.stride
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
            )[0]  # fmt: skip
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        out, channels, side, _ = weight.shape
        to_weight = (rows.T @ _unfolded(x, side, stride)).view(out, side, side, channels).permute(0, 3, 1, 2)
        return to_x, to_weight, rows.sum(0), None


def _unfolded(x: Tensor, side: int, stride: int) -> Tensor:
    """The input patch of each output pixel: [N, C, H, W], channels last, to [N H' W', K K C]."""
    count, channels, height, width = x.shape
    shape = (count, (height - side) // stride + 1, (width - side) // stride + 1, side, side * channels)
    image, row, pixel = height * width * channels, width * channels, channels
    windows = x.as_strided(shape, (image, stride * row, stride * pixel, row, 1))
    return windows.reshape(-1, side * side * channels)


class _Elu(torch.autograd.Function):
    """y = elu(x), in place; dy/dx = min(y, 0) + 1. Torch's kernel spends three quarters of its time in expm1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        negative = x.clamp(max=0).exp_().sub_(1)
        torch.maximum(x, negative, out=x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.elu_backward(gradients[0], 1.0, 1.0, 1.0, True, y)
