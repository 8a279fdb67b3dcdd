import pytest
import torch

from lockstep.errors import ConfigError
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


def test_names_are_taken_in_any_order():
    metrics = Metrics(["a", "b", "c"], torch.device("cpu"))
    for _ in range(2):  # the second time, the columns are those that were found before
        metrics.add(("a", "c"), torch.tensor([1.0, 3.0]), 1.0)
        metrics.add(["b", "a"], torch.tensor([2.0, 1.0]), torch.tensor(1.0))
        assert metrics.read() == {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "d"), "there is no metric d; the known ones: a, b, c"),
        (("b", "c", "a"), "sums given: 2; needed: 3, one for each of b, c, a"),
        (("b",), "sums given: 2; needed: 1, one for each of b"),
    ],
)
def test_sums_that_belong_to_no_metric_are_refused(names, message):
    metrics = Metrics(["a", "b", "c"], torch.device("cpu"))
    with pytest.raises(ConfigError, match=message):
        metrics.add(names, torch.tensor([1.0, 2.0]), 1.0)
    assert metrics.read() == {}


def test_one_sum_is_not_that_of_several_metrics():
    metrics = Metrics(["a", "b"], torch.device("cpu"))
    with pytest.raises(ConfigError, match="sums given: 1; needed: 2"):
        metrics.add(("a", "b"), torch.tensor([1.0]), 1.0)
