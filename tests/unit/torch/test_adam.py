import pytest
import torch

from lockstep.torch.adam import Adam

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("given", [{"eps": 1e-5}, {}], ids=["eps", "defaults"])
def test_same_bits_as_torchs_fused_adam(given):
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(1000, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    gradient = torch.zeros(1000)
    learning_rate = torch.tensor(3e-4)
    adam = Adam(ours, gradient, learning_rate, **given)
    reference = torch.optim.Adam([theirs], lr=learning_rate.clone(), fused=True, **given)
    before = ours.clone()
    for _ in range(5):
        gradient.copy_(torch.randn(1000, generator=generator))
        theirs.grad = gradient.clone()
        adam.step()
        reference.step()
    assert torch.equal(ours, theirs.detach())
    assert not torch.equal(ours, before)


def test_eps_is_torchs_unless_given():
    ours, gradient, theirs = torch.zeros(2), torch.tensor([1e-8, -3e-9]), torch.nn.Parameter(torch.zeros(2))
    theirs.grad = gradient.clone()
    Adam(ours, gradient, torch.tensor(0.1)).step()
    torch.optim.Adam([theirs], lr=torch.tensor(0.1), fused=True).step()
    assert torch.equal(ours, theirs.detach())


def test_learning_rate_may_change_between_steps():
    values, gradient, learning_rate = torch.zeros(3), torch.ones(3), torch.tensor(0.1)
    adam = Adam(values, gradient, learning_rate)
    adam.step()
    torch.testing.assert_close(values, torch.full((3,), -0.1))
    learning_rate.fill_(0.0)
    adam.step()
    torch.testing.assert_close(values, torch.full((3,), -0.1))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
def test_a_step_that_is_left_out_never_was(device, poison):
    values, gradient = torch.linspace(-1, 1, 1000, device=device), torch.linspace(0.5, 2, 1000, device=device)
    plain, usual, rate = values.clone(), gradient.clone(), torch.tensor(0.1, device=device)
    adam = Adam(values, gradient, rate, eps=1e-8)
    reference = Adam(plain, usual, rate, eps=1e-8)
    for poisoned in (True, False, True, False):
        gradient.copy_(usual)
        if poisoned:
            gradient[[0, -1]] = poison
        else:
            reference.step()
        adam.step(torch.tensor(float(poisoned), device=device))
        assert torch.equal(values, plain)
        assert all(torch.equal(adam.state()[name], tensor) for name, tensor in reference.state().items())
    assert adam.steps == 2


def test_decay_is_added_to_the_gradient():
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(100, generator=generator)
    theirs, gradient = torch.nn.Parameter(ours.clone()), torch.zeros(100)
    adam = Adam(ours, gradient, torch.tensor(1e-2), eps=1e-5, l2_decay=0.3)
    reference = torch.optim.Adam([theirs], lr=1e-2, eps=1e-5, weight_decay=0.3)
    for _ in range(5):
        gradient.copy_(torch.randn(100, generator=generator))
        theirs.grad = gradient.clone()
        adam.step()
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
