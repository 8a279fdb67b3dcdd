"""Numbers as the user reads them."""

import pytest

from lockstep.record.text import significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.851, "0.8510"), (0.94, "0.9400"), (48.4, "48.40"), (499.3, "499.3"), (1234.5, "1234.5"), (0.0, "0.0")),
        *(
            (-1234.56, "-1234.6"),
            (0.00123, "0.001230"),
            (1.5e-7, "1.500e-07"),
            (-1e308, "-1.000e+308"),
            (float("inf"), "inf"),
        ),
    ],
)
def test_returns_have_significant_digits(value, text):
    assert significant(value) == text
