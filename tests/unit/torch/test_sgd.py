import pytest
import torch

from lockstep.torch.sgd import Sgd


def test_same_numbers_as_torchs():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(1000, generator=generator)
    theirs, gradient, before = torch.nn.Parameter(ours.clone()), torch.zeros(1000), ours.clone()
    sgd = Sgd(ours, gradient, torch.tensor(0.1), l2_decay=0.2)
    reference = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.2)
    for _ in range(5):
        gradient.copy_(torch.randn(1000, generator=generator))
        theirs.grad = gradient.clone()
        sgd.step()
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
    assert not torch.equal(ours, before)
    assert sgd.state()["steps"] == 5


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_left_out_never_was(poison):
    values, gradient = torch.ones(100), torch.ones(100)
    sgd = Sgd(values, gradient, torch.tensor(0.5))
    sgd.step(torch.tensor(0.0))
    assert values.tolist() == [0.5] * 100
    gradient[[0, -1]] = poison
    sgd.step(torch.tensor(1.0))
    assert values.tolist() == [0.5] * 100
    assert sgd.steps == 1
