"""Linear layers with products of their own, against torch's."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from lockstep.torch import products
from lockstep.torch.flat import FlatParameters
from lockstep.torch.products import add_in_place, batched_linear, linear

SHAPES = {
    "widens": (4096, 4, 32),
    "narrows": (4096, 64, 6),
    "square": (512, 64, 64),
    "one input": (4096, 1, 64),
    "one output": (4096, 64, 1),
    "small": (7, 5, 3),
}
"""Rows, inputs, outputs."""


@pytest.fixture(params=["by MKL", "by oneDNN"])
def library(request, monkeypatch):
    """Who computes large products, whatever this processor is."""
    if request.param == "by oneDNN" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "ONEDNN_IS_FASTER", request.param == "by oneDNN")
    return request.param


def ours(y):
    """Whether the backward pass is ours."""
    return type(y.grad_fn).__name__ == "_LinearBackward"


def layer_of(inputs, outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def gradients(function, x, parameters, inputs=True):
    """Of a function of the result that is neither linear nor symmetric."""
    x = x.detach().requires_grad_(inputs)
    y = function(x)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y.tanh() * weights).sum()
    return [y.detach(), *torch.autograd.grad(loss, [*parameters, *([x] if inputs else [])])]


def assert_equal_up_to_rounding(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5 * float(other.abs().max())), (
            "differs from torch by more than rounding"
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_has_torchs_result_and_gradients(library, shape, inputs, bias):
    rows, size, out = SHAPES[shape]
    layer = nn.Linear(size, out, bias=bias)
    x = torch.randn(rows, size)
    found = gradients(lambda x: linear(x, layer.weight, layer.bias), x, layer.parameters(), inputs)
    wanted = gradients(layer.double(), x.double(), layer.parameters(), inputs)
    assert len(found) == 2 + bias + inputs
    assert_equal_up_to_rounding(found, wanted)


def test_what_is_not_worth_it_is_left_to_torch(library):
    x = torch.randn(512, 64, requires_grad=True)
    large, small = layer_of(64, 64), layer_of(64, 6)
    assert ours(linear(x, large.weight, large.bias)) == (library == "by oneDNN")
    assert not ours(linear(x, small.weight, small.bias))
    assert not ours(linear(x.double(), large.double().weight, large.bias))
    with torch.no_grad():
        y = linear(x.detach(), layer_of(64, 64).weight, None)
    assert y.grad_fn is None
    torch.testing.assert_close(y, F.linear(x.detach(), layer_of(64, 64).weight))


def test_a_frozen_layer_passes_the_gradient_on(library):
    layer, x = layer_of(64, 64).requires_grad_(False), torch.randn(512, 64)
    found = gradients(lambda x: linear(x, layer.weight, layer.bias), x, [])
    assert_equal_up_to_rounding(found, gradients(layer.double(), x.double(), []))


@pytest.mark.parametrize("rows", [512, 5])
def test_batched_layers_are_each_one_layer(library, rows):
    torch.manual_seed(0)
    weight, bias = torch.randn(3, 40, 96, requires_grad=True), torch.randn(3, 40, requires_grad=True)
    x = torch.randn(rows, 96).expand(3, -1, -1)
    found = gradients(lambda x: batched_linear(x, weight, bias), x, [weight, bias])
    doubles = [tensor.detach().double().requires_grad_() for tensor in (weight, bias)]
    wanted = gradients(lambda x: x @ doubles[0].mT + doubles[1].unsqueeze(1), x.double(), doubles)
    assert_equal_up_to_rounding(found, wanted)
    with torch.no_grad():
        torch.testing.assert_close(batched_linear(x, weight, bias), found[0])


def test_rows_have_the_same_bits_in_any_position(library):
    """Shards of one size on one rank and on several: the same shapes, other rows."""
    layer, x = layer_of(64, 64), torch.randn(1024, 64)
    y = linear(x[512:].clone(), layer.weight, layer.bias)
    assert torch.equal(y, linear(x[512:], layer.weight, layer.bias))
    assert torch.equal(y, linear(torch.cat([x[512:], x[:512]])[:512], layer.weight, layer.bias))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ["widens", "square"])
def test_a_compiled_layer_has_the_same_gradients(library, shape, backend):
    rows, size, out = SHAPES[shape]
    layer, x = layer_of(size, out), torch.randn(rows, size)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: linear(x, layer.weight, layer.bias), backend=backend, fullgraph=True)
    found = gradients(compiled, x, layer.parameters())
    assert_equal_up_to_rounding(found, gradients(layer.double(), x.double(), layer.parameters()))


def test_an_exported_layer_is_torchs(library):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer_of(64, 64)

        def forward(self, x):
            return linear(x, self.layer.weight, self.layer.bias)

    rows = {"x": {0: torch.export.Dim("rows", min=2)}}
    with torch.no_grad():
        program = torch.export.export(Module(), (), {"x": torch.randn(512, 64)}, dynamic_shapes=rows)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert names == {"aten.linear.default"}


def test_lower_precision_is_left_to_torch(library):
    weight = nn.Parameter(torch.randn(512, 1024))
    add_in_place(weight)
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(torch.ones(2, 1024), weight, None)
    assert y.dtype == torch.bfloat16
    assert not ours(y)


def wide(seed=0):
    return layer_of(1024, 300, seed)


@pytest.mark.parametrize("rows", [7, 70])
def test_a_large_linear_layer_accumulates_its_gradient_in_place(library, rows):
    layer, plain, x = wide(), wide(), torch.randn(rows, 1024)
    flat = FlatParameters(layer)
    assert ours(linear(x, layer.weight, layer.bias))
    place = layer.weight.grad.data_ptr()
    for part in (x[: rows // 2], x[rows // 2 :]):
        inputs, others = part.clone().requires_grad_(), part.clone().requires_grad_()
        linear(inputs, layer.weight, layer.bias).square().sum().backward()
        plain(others).square().sum().backward()
        torch.testing.assert_close(inputs.grad, others.grad, rtol=1e-4, atol=1e-4)
    assert layer.weight.grad.data_ptr() == place
    wanted = torch.cat([p.grad.flatten() for p in plain.parameters()])
    torch.testing.assert_close(flat.gradient, wanted, rtol=1e-4, atol=1e-4)
    flat.zero_gradient_()
    assert not layer.weight.grad.any()


def test_a_gradient_has_the_same_bits_however_many_shards_lie_here(library):
    x, found = torch.randn(8, 1024), []
    for shards in (1, 2):
        flat = FlatParameters(layer := wide(), shards)
        for shard in range(shards):
            flat.zero_gradient_()
            linear(x, layer.weight, layer.bias).tanh().sum().backward()
            flat.store_shard(shard, torch.ones(1))
        found += list(flat.rows)
    assert found[0].any()
    assert all(torch.equal(found[0], row) for row in found)


def test_only_what_flat_parameters_own_is_added_in_place(library):
    layer, x = wide(), torch.randn(2, 1024)
    assert not ours(linear(x, layer.weight, layer.bias)), "its gradient may not exist"
    FlatParameters(layer)
    assert ours(linear(x, layer.weight, layer.bias))
    other = copy.deepcopy(layer)  # a target network, say
    assert not ours(linear(x, other.weight, other.bias))
    small = nn.Linear(4, 4)
    FlatParameters(small)
    assert not ours(linear(x[:, :4], small.weight, small.bias)), "torch is as fast for a small layer"


def test_a_compiled_network_stores_its_gradients_in_place(library):
    layer, x = wide(), torch.randn(2, 1024)
    flat = FlatParameters(layer)

    def loss(x):
        return linear(x, layer.weight, layer.bias).relu().square().sum()

    for function in (loss, torch.compile(loss, backend="eager", fullgraph=True)):
        flat.zero_gradient_()
        function(x).backward()
        if function is loss:
            wanted = flat.gradient.clone()
    assert wanted.any()
    torch.testing.assert_close(flat.gradient, wanted)
    assert layer.weight.grad.data_ptr() == flat.gradient.data_ptr()
