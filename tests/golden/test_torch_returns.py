import gae_cases
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lockstep.torch.returns import gae


def advantage(arrays, **constants):
    return gae(*map(torch.from_numpy, arrays), **constants).numpy()


@pytest.mark.parametrize("case", gae_cases.CASES, ids=gae_cases.NAMES)
def test_table(case):
    result = advantage(gae_cases.inputs(case), gamma=case["gamma"], gae_lambda=case["gae_lambda"])
    np.testing.assert_array_equal(result, gae_cases.expected(case))
    assert result.dtype == np.float32


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 128])
def test_equals_the_recursion(steps):
    arrays = gae_cases.random_inputs(steps, num_envs=16)
    wanted = gae_cases.recursion(*arrays, gamma=0.99, gae_lambda=0.95)
    np.testing.assert_allclose(advantage(arrays, gamma=0.99, gae_lambda=0.95), wanted, rtol=1e-4, atol=1e-5)


def test_arguments_stay_as_they_were():
    arrays = gae_cases.random_inputs(8, num_envs=4)
    before = [array.copy() for array in arrays]
    advantage(arrays, gamma=0.99, gae_lambda=0.95)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
