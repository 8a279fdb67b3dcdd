"""Which cases of a parametrized test run each time."""

from collections.abc import Iterable
from typing import Any

import pytest


def others_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Arguments for `pytest.mark.parametrize`: the `quick` cases, and the others for `make test-slow` only."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
