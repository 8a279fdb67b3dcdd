"""Linear layers by numpy, beside their definition."""

import math
from itertools import pairwise

import numpy as np
import pytest

from lockstep.experience.numpy_actor import NumpyActor

ACTIVATIONS = {
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def layers(*sizes, seed=0):
    draws = np.random.default_rng(seed)
    return [
        (draws.standard_normal((a, b)).astype(np.float32), draws.standard_normal(b).astype(np.float32))
        for a, b in pairwise(sizes)
    ]


def by_hand(chain, activation, row):
    for i, (weight, bias) in enumerate(chain):
        row = [
            sum(x * w for x, w in zip(row, column, strict=True)) + b for column, b in zip(weight.T, bias, strict=True)
        ]
        row = row if i == len(chain) - 1 else [ACTIVATIONS[activation](x) for x in row]
    return row


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("sizes", [(5, 4, 3, 2), (5, 2)], ids=["three layers", "one layer"])
def test_they_are_what_they_are_called(activation, sizes):
    chain, seen = layers(*sizes), np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)
    before = seen.copy()
    found = NumpyActor(chain, activation)(seen)
    wanted = [[by_hand(chain, activation, row) for row in shard] for shard in seen.tolist()]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(seen, before)


def test_memory_that_changes_and_layers_that_are_replaced_count_at_once():
    chain, seen = layers(3, 2), np.ones((1, 3), np.float32)
    actor = NumpyActor(chain, "tanh")
    first = actor(seen)
    chain[0][1][:] += 1
    np.testing.assert_allclose(actor(seen), first + 1, rtol=1e-6)
    other = layers(3, 2, seed=1)
    actor.replace(other)
    np.testing.assert_array_equal(actor(seen), NumpyActor(other, "tanh")(seen))


@pytest.mark.parametrize("activation", ["elu", "silu"])
def test_large_numbers_give_no_warning(activation):
    """No warning of an overflow where the exponential is not wanted."""
    weight = (np.eye(1, dtype=np.float32), np.zeros(1, np.float32))
    assert NumpyActor([weight, weight], activation)(np.float32([[1e30]])).tolist() == [[np.float32(1e30)]]
    assert NumpyActor([weight, weight], activation)(np.float32([[-1e30]])).tolist() == [
        [{"elu": -1, "silu": 0}[activation]]
    ]
