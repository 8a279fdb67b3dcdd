import torch

from lockstep.torch.metrics import Metrics


def test_means_are_weighted_and_reading_starts_afresh():
    metrics = Metrics(["a", "b", "c"], torch.device("cpu"))
    metrics.add(("a", "b"), torch.tensor([6.0, 3.0]), 3.0)
    metrics.add(("a", "b"), torch.tensor([4.0, 1.0]), torch.tensor(1.0))
    metrics.add(("c",), torch.tensor([5.0]), 0.0)
    assert metrics.read() == {"a": 2.5, "b": 1.0}, "what weighs nothing has no mean"
    assert metrics.read() == {}
    metrics.add(("c",), torch.tensor([5.0]), 2)
    assert metrics.read() == {"c": 2.5}


def test_many_small_numbers_are_not_lost():
    metrics = Metrics(["a"], torch.device("cpu"))
    metrics.add(("a",), torch.tensor([1e8]), 1.0)
    for _ in range(1000):
        metrics.add(("a",), torch.tensor([1.0]), 0.0)
    assert metrics.read() == {"a": 1e8 + 1000}
