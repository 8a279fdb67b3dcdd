import pytest
import torch
from torch import nn

from lockstep.torch import gradient
from lockstep.torch.flat import FlatParameters
from lockstep.torch.gradient import LossGradient

pytestmark = [
    pytest.mark.slow,  # compiles
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of torch's own compiler
]


def stored(*, compiled):
    """The rows of two shards, and what the loss returns after its sums; the last layer is not part of the loss."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    flat = FlatParameters(module, 2, num_sums=3)

    def loss(x):
        features = module[:2](x).square().sum(-1)
        return features.sum(), torch.stack([torch.tensor(float(len(x))), features.detach().sum()]), features

    of_loss = LossGradient(flat, loss, compiled=compiled, dynamic=False)
    inputs = [torch.randn(5, 3), torch.randn(5, 3)]
    more = [of_loss(k, [x], torch.tensor([7.0 + k])) for k, x in enumerate(inputs)]
    return flat.rows, more


@pytest.mark.parametrize("traces", [True, False])
def test_a_compiled_function_stores_what_a_backward_pass_stores(monkeypatch, traces):
    if not traces:  # torch before 2.11
        monkeypatch.setattr(gradient, "_traces_autograd", lambda: False)
    rows, more = stored(compiled=False)
    assert rows[:, -1].tolist() == [7.0, 8.0]
    assert (rows[:, 16:26] == 0).all(), "the layer without a loss has a gradient"
    compiled_rows, compiled_more = stored(compiled=True)
    torch.testing.assert_close(compiled_rows, rows)
    torch.testing.assert_close(compiled_more, more)
