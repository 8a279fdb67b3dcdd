import torch

from lockstep.torch.adam import Adam


def test_same_bits_as_torchs_fused_adam():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(1000, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    gradient = torch.zeros(1000)
    learning_rate = torch.tensor(3e-4)
    adam = Adam(ours, gradient, learning_rate, eps=1e-5)
    reference = torch.optim.Adam([theirs], lr=learning_rate.clone(), eps=1e-5, fused=True)
    before = ours.clone()
    for _ in range(5):
        gradient.copy_(torch.randn(1000, generator=generator))
        theirs.grad = gradient.clone()
        adam.step()
        reference.step()
    assert torch.equal(ours, theirs.detach())
    assert not torch.equal(ours, before)


def test_learning_rate_may_change_between_steps():
    values, gradient, learning_rate = torch.zeros(3), torch.ones(3), torch.tensor(0.1)
    adam = Adam(values, gradient, learning_rate, eps=1e-8)
    adam.step()
    torch.testing.assert_close(values, torch.full((3,), -0.1))
    learning_rate.fill_(0.0)
    adam.step()
    torch.testing.assert_close(values, torch.full((3,), -0.1))
