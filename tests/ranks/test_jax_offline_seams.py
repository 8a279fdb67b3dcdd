"""The seams of data-parallel learning from logged data in JAX: what `test_offline_seams.py` checks in torch."""

import pytest
import test_offline_seams as seams
from offline_seams import KINDS, LEARNERS

from lockstep.algorithms.all import JAX_OFFLINE_ALGORITHMS

pytest.importorskip("jax")

HAS = [name for name, (algo, _) in LEARNERS.items() if algo in JAX_OFFLINE_ALGORITHMS]
HAS_KINDS = [kind for kind in KINDS if kind != "candidates"]


@pytest.fixture(scope="module")
def seam(request, tmp_path_factory):
    """The results of both ranks for each seam that a selected test needs."""
    return seams.seen_by_ranks(request, tmp_path_factory, "jax")


@pytest.mark.parametrize("kind", HAS_KINDS)
def test_start_equal(seam, kind):
    seams.test_start_equal(seam, kind)


@pytest.mark.parametrize("kind", HAS_KINDS)
def test_initialized_from(seam, kind):
    seams.test_initialized_from(seam, kind)


@pytest.mark.parametrize("name", HAS)
def test_gradient(seam, name):
    seams.test_gradient(seam, name)


def test_extra_sums(seam):
    seams.test_extra_sums(seam)


@pytest.mark.parametrize("kind", HAS_KINDS)
def test_one_rank_bad(seam, kind):
    seams.test_one_rank_bad(seam, kind)


def test_counters(seam):
    seams.test_counters(seam)


def test_shuffles(seam):
    seams.test_shuffles(seam)


def test_metrics(seam):
    seams.test_metrics(seam)


def test_files(seam):
    seams.test_files(seam)
