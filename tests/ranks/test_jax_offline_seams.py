"""The seams of data-parallel learning from logged data in JAX: the tests of `test_offline_seams.py`."""

import pytest
from test_offline_seams import (
    seen_by_ranks,
    test_counters,
    test_extra_sums,
    test_files,
    test_gradient,
    test_initialized_from,
    test_metrics,
    test_one_rank_bad,
    test_shuffles,
    test_start_equal,
)

pytest.importorskip("jax")

__all__ = [
    "test_counters",
    "test_extra_sums",
    "test_files",
    "test_gradient",
    "test_initialized_from",
    "test_metrics",
    "test_one_rank_bad",
    "test_shuffles",
    "test_start_equal",
]


@pytest.fixture(scope="module")
def seam(request, tmp_path_factory):
    """The results of both ranks for each seam that a selected test needs."""
    return seen_by_ranks(request, tmp_path_factory, "jax")
