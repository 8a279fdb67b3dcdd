"""The copy of the actor, which the imitation of the log is computed with."""

import pytest
import torch

import small_learners


@pytest.mark.parametrize("max_grad_norm", [None, 0.01])
def test_the_copy_remains_equal_to_the_actor(max_grad_norm, tmp_path):
    settings = {"max_grad_norm": max_grad_norm, "policy_delay": 1, "learning_rate": 0.01}
    small = small_learners.make("td3_bc", tmp_path, config=settings)
    first = torch.cat([p.detach().flatten().clone() for p in small.learner.actor.parameters()])
    for number in range(5):
        small.update(number)
    actor, copy = ([*one.parameters()] for one in (small.learner.actor, small.learner._copy))
    assert (torch.cat([p.detach().flatten() for p in actor]) - first).abs().max() > 1e-3
    assert all(torch.equal(a, b) for a, b in zip(actor, copy, strict=True))
