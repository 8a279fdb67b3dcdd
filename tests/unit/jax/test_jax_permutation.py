"""Random orders within compiled code: every row once, each order as likely as another."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.jax.permutation import _permuted, permutations


def orders_of(count, size, seed=5):
    return np.asarray(jax.jit(permutations, static_argnums=(1, 2))(jax.random.key(seed), count, size))


@pytest.mark.parametrize("size", [1, 2, 60, 1024, 1025, 20_000, 65_536])
def test_they_are_permutations_and_fair(size):
    orders = orders_of(50, size)
    assert orders.dtype == np.int32
    assert (np.sort(orders, -1) == np.arange(size)).all()
    if size >= 60:
        assert len({order.tobytes() for order in orders}) == 50
        assert abs(orders[:, : size // 2].mean() / ((size - 1) / 2) - 1) < 0.1
        assert abs(np.corrcoef(orders[0], np.arange(size))[0, 1]) < 0.4


def chi_square(counts):
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


@pytest.mark.parametrize("size", [1000, 1025, 16_000, 65_536])
def test_rows_are_uniform_over_positions_and_independent_of_their_neighbours(size):
    parts = 64 * orders_of(40, size).astype(np.int64) // size
    bound = 63 + 6 * np.sqrt(2 * 63)
    for place in (0, size // 2, size - 1):
        counts = np.bincount(parts[:, max(place - 50, 0) : place + 50].reshape(-1), minlength=64)
        assert chi_square(counts) < bound, place
    steps = (parts[:, 1:] - parts[:, :-1]) % 64
    assert chi_square(np.bincount(steps.reshape(-1), minlength=64)) < bound
    across = (parts[1:] - parts[:-1]) % 64
    assert chi_square(np.bincount(across.reshape(-1), minlength=64)) < bound, "one order tells of the next"
    minibatches = parts.reshape(40, -1)[:, : size // 8 * 8].reshape(40, 8, -1)
    for number in range(8):
        assert chi_square(np.bincount(minibatches[:, number].reshape(-1), minlength=64)) < bound, number


def test_small_grids_are_permuted_too():
    keys = np.random.default_rng(0).integers(2**32, size=(30, 12, 3), dtype=np.uint32)
    for size in (5, 17, 100):
        orders = np.asarray(jax.jit(jax.vmap(lambda key, size=size: _permuted(key, size)))(keys))
        assert (np.sort(orders, -1) == np.arange(size)).all()
