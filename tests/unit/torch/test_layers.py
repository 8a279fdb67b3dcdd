"""Convolutions and activations with a backward pass of their own, against torch's."""

import pytest
import torch
from torch import nn

from lockstep.torch import layers
from lockstep.torch.layers import conv2d, elu

LAYERS = {
    "nature 2": (32, 64, 4, 2, 20, 20),
    "nature 3": (64, 64, 3, 1, 9, 9),
    "wide 1": (4, 128, 8, 4, 84, 84),
    "not square": (3, 64, 4, 3, 17, 23),
    "one pixel": (5, 64, 4, 2, 4, 5),
}


@pytest.fixture(autouse=True)
def own_convolutions(monkeypatch):
    """Also on processors where the library's are faster."""
    monkeypatch.setattr(layers, "ONEDNN_IS_FASTER", False)


def image(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(memory_format=torch.channels_last)


def layer_of(name, **more):
    channels, out, side, stride, height, width = LAYERS[name]
    torch.manual_seed(1)
    return nn.Conv2d(channels, out, side, stride, **more), image((6, channels, height, width))


def ours(y):
    """Whether the backward pass is ours."""
    return type(y.grad_fn).__name__ == "_ConvolutionBackward"


def gradients(layer, x, function, inputs=True):
    """Of a function of the result that is neither linear nor symmetric."""
    layer.zero_grad()
    x = x.detach().requires_grad_(inputs)
    y = function(x)
    weights = torch.linspace(-1, 2, y.numel()).view_as(y)
    (y.tanh() * weights).sum().backward()
    return [g for g in (layer.weight.grad, layer.bias.grad, x.grad) if g is not None]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("inputs", [True, False])
def test_a_convolution_has_torchs_gradients(name, inputs):
    layer, x = layer_of(name)
    assert ours(conv2d(x, layer)), "this layer is left to torch"
    assert torch.equal(conv2d(x, layer), layer(x))
    found = gradients(layer, x, lambda x: conv2d(x, layer), inputs)
    wanted = gradients(layer.double(), x.double(), layer, inputs)
    assert len(found) == 2 + inputs
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def test_gradients_add_up_over_backward_passes_and_from_any_layout():
    layer, x = layer_of("nature 3")
    once = gradients(layer, x, lambda x: conv2d(x, layer).contiguous())
    again = [g.clone() for g in once[:2]]
    conv2d(x, layer).tanh().mul(0).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=False))
    conv2d(x, layer).sum().backward()
    assert not torch.equal(layer.bias.grad, again[1])
    assert torch.allclose(layer.bias.grad - again[1], torch.tensor(6.0 * 7 * 7), rtol=1e-4)


def test_a_view_into_a_larger_batch_is_unfolded_without_a_copy():
    layer, x = layer_of("nature 3")
    apart = gradients(layer, x[2:5].clone(memory_format=torch.channels_last), lambda x: conv2d(x, layer))
    whole = x.clone(memory_format=torch.channels_last)
    within = gradients(layer, x, lambda _: conv2d(whole[2:5], layer))
    assert all(torch.equal(a, b) for a, b in zip(apart[:2], within[:2], strict=True))


@pytest.mark.parametrize("case", ["few channels", "padded", "no bias", "contiguous", "double", "frozen", "no grad"])
def test_unsupported_layers_use_torch(case):
    more = {"padded": {"padding": 1}, "no bias": {"bias": False}}.get(case, {})
    layer, x = layer_of("nature 3", **more)
    if case == "few channels":
        layer = nn.Conv2d(64, 32, 3)
    elif case == "contiguous":
        x = x.contiguous()
    elif case == "double":
        layer, x = layer.double(), x.double()
    elif case == "frozen":
        layer.requires_grad_(False)
        x.requires_grad_(True)
    with torch.set_grad_enabled(case != "no grad"):
        y = conv2d(x, layer)
    assert not ours(y)
    assert torch.equal(y, layer(x))


def test_lower_precision_is_left_to_torch():
    layer, x = layer_of("nature 3")
    with torch.autocast("cpu", torch.bfloat16):
        assert not ours(conv2d(x, layer))


def test_a_compiled_convolution_has_the_same_gradients():
    layer, x = nn.Conv2d(4, 64, 3), image((2, 4, 6, 6))
    found = [
        gradients(layer, x, function)
        for function in (layer, torch.compile(lambda x: conv2d(x, layer), backend="eager", fullgraph=True))
    ]
    assert found[0][0].any()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("faster", [True, False])
def test_where_onednn_is_faster_all_of_a_convolution_is_left_to_it(monkeypatch, faster):
    monkeypatch.setattr(layers, "ONEDNN_IS_FASTER", faster)
    layer, x = layer_of("nature 3")
    assert ours(conv2d(x, layer)) != faster


def test_a_large_elu_equals_torchs():
    for size in (100, 1 << 15):
        x = torch.randn(size, generator=torch.Generator().manual_seed(0)).mul_(3).requires_grad_()
        y = x.detach().clone().requires_grad_()
        ours, theirs = elu(x * 1.0), torch.nn.functional.elu(y * 1.0)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
        weight = torch.linspace(-1, 1, size)
        (ours * weight).sum().backward()
        (theirs * weight).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, atol=1e-6, rtol=1e-5)
    assert elu(torch.full((1 << 15,), float("nan"))).isnan().all()
