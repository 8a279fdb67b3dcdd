"""A run that is resumed with another learning rate learns with it."""

from pathlib import Path

import pytest
import torch

import small_learners

NAMES = ("ppo", "ppo on tensors", "dqn", "sac", "td3", *small_learners.OFFLINE)
CONSTANT = {"learning_rate_schedule": "constant"}


def rates(learner) -> list[float]:
    """The rates of a learner, which has one or two."""
    named = learner.shared_tensors()
    found = [tensor for name, tensor in named.items() if name.endswith(("learning_rate", "learning_rates"))]
    assert found
    return [rate for tensor in found for rate in tensor.reshape(-1).tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_rate_is_that_of_the_config(name: str, tmp_path: Path):
    old = small_learners.make(name, tmp_path, config=CONSTANT | {"learning_rate": 3e-4})
    old.update(0)
    new = small_learners.make(name, tmp_path, config=CONSTANT | {"learning_rate": 1e-5})
    with torch.no_grad():
        for key, tensor in new.learner.shared_tensors().items():
            tensor.copy_(old.learner.shared_tensors()[key])
    assert rates(new.learner) == pytest.approx([3e-4] * len(rates(new.learner)))
    new.update(1)
    assert rates(new.learner) == pytest.approx([1e-5] * len(rates(new.learner)))
