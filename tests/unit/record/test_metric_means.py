import pytest

from lockstep.errors import ConfigError
from lockstep.record.metric_means import MetricMeans


def test_names_are_taken_in_any_order():
    means = MetricMeans(("a", "b", "c"))
    means.add(("a", "c"), [1.0, 3.0], 1.0)
    means.add(("b", "a"), [2.0, 1.0], 1.0)
    assert means.read() == {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "d"), "there is no metric d; the known ones: a, b, c"),
        (("a", "a"), "each metric may be added once in a call, not as in a, a"),
        (("a", "b", "c"), "sums given: 2; needed: 3, one for each of a, b, c"),
    ],
)
def test_sums_that_belong_to_no_metric_are_refused(names, message):
    means = MetricMeans(("a", "b", "c"))
    with pytest.raises(ConfigError, match=message):
        means.add(names, [1.0, 2.0], 1.0)
    assert means.read() == {}
