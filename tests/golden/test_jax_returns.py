"""`make test-jax` runs this in `.venv-jax`, which has no torch; elsewhere without JAX it skips."""

import subprocess
import sys

import gae_cases
import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.jax.returns import gae

jitted = jax.jit(gae, static_argnames=("gamma", "gae_lambda"))


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def advantage(arrays, **constants):
    return np.asarray(jitted(*map(jax.numpy.asarray, arrays), **constants))


def test_torch_is_not_needed():
    program = "import sys, lockstep.jax.returns; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


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


def test_outside_jit_and_inside_grad():
    arrays = [jax.numpy.asarray(array) for array in gae_cases.random_inputs(3, num_envs=4)]
    plain = gae(*arrays, gamma=0.99, gae_lambda=0.95)
    np.testing.assert_allclose(jitted(*arrays, gamma=0.99, gae_lambda=0.95), plain, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda reward: gae(reward, *arrays[1:], gamma=0.99, gae_lambda=0.95)[-1].sum())(arrays[0])
    np.testing.assert_array_equal(slope[-1], np.ones(4))
    np.testing.assert_array_equal(slope[:-1], np.zeros((2, 4)))
