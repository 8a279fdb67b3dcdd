"""Which cases of a parametrized test run each time."""

from collections.abc import Iterable
from typing import Any

import pytest


def others_slow(cases: Iterable[Any], *quick: Any, several: bool = False) -> list[Any]:
    """Arguments for `pytest.mark.parametrize`: the `quick` cases, and the others for `make test-slow` only.

    Args:
        cases: all cases.
        quick: those that are not marked `slow`.
        several: a case is a tuple of arguments, for a test that takes several.
    """
    return [
        case if case in quick else pytest.param(*(case if several else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
