"""Returns and numbers of files that may hold anything."""

import pytest

from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import number_of, whole_number_of


@pytest.mark.parametrize(
    ("returns", "mean"),
    [
        ([1.0, 3], 2.0),
        ([1.0, None, 3.0], 2.0),
        ([float("nan"), 5.0], 5.0),
        ([None, None], None),
        ([], None),
        (None, None),
        ("12", None),
        ([True, "4", {}], None),
        ([1e308, 1e308, 1e308], 1e308),
    ],
)
def test_mean_leaves_out_episodes_without_a_number(returns, mean):
    assert mean_return(returns) == (mean if mean is None else pytest.approx(mean))


def test_only_finite_numbers_are_numbers():
    values = (3, 2.5, True, "7", None, [1], float("nan"), float("inf"), 10**400)
    assert [number_of(value) for value in values] == [3.0, 2.5, *[None] * 7]
    assert (whole_number_of(2.9), whole_number_of(10**400)) == (2, None)
