"""The tables of test_torch_q_learning.py, for JAX; runs without torch."""

import numpy as np
import pytest
import q_cases

pytest.importorskip("jax")

import jax

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.jax.q_networks import QPolicy
from lockstep.jax.value_losses import (
    categorical_projection,
    cross_entropy,
    gather_actions,
    huber,
    quantile_huber,
    squared,
    td_target,
)
from lockstep.run import NetworkConfig
from quick import others_slow


def given(case, *names):
    return [jax.numpy.asarray(array) for array in q_cases.arrays(case, *names)]


@q_cases.cases("projection")
def test_projection_table(case):
    result = categorical_projection(*given(case, "probability", "reward", "discount", "support"))
    np.testing.assert_array_equal(result, *q_cases.arrays(case, "projected"))
    assert result.dtype == np.float32


@pytest.mark.parametrize("atoms", others_slow([2, 3, 51, 101], 51))
def test_projection_equals_the_papers_algorithm(atoms):
    inputs = q_cases.random_distributions(64, atoms)
    result = np.asarray(jax.jit(categorical_projection)(*inputs))
    np.testing.assert_allclose(result, q_cases.projection(*inputs), atol=1e-5)
    np.testing.assert_allclose(result.sum(1), 1.0, rtol=1e-5)
    assert (result >= 0).all()


def test_projection_loses_no_mass_at_any_atom():
    """Where r + discount z falls on an atom, or by rounding next to one."""
    support, probability = np.linspace(-10, 10, 51, dtype=np.float32), np.full((51, 51), 1 / 51, np.float32)
    for discount in (0.0, 1.0):
        result = categorical_projection(probability, support, np.full(51, discount, np.float32), support)
        np.testing.assert_allclose(result.sum(1), np.ones(51), rtol=1e-5)
    ended = categorical_projection(probability, support, np.zeros(51, np.float32), support)
    np.testing.assert_allclose(ended, np.eye(51), atol=2e-5)


@q_cases.cases("quantile_huber")
def test_quantile_huber_table(case):
    result = quantile_huber(*given(case, "quantiles", "targets"), kappa=case["kappa"])
    np.testing.assert_array_equal(result, *q_cases.arrays(case, "loss"))


@pytest.mark.parametrize(
    ("count", "targets", "kappa"),
    others_slow([(1, 1, 1.0), (5, 8, 1.0), (200, 200, 1.0), (32, 32, 0.5)], (5, 8, 1.0), several=True),
)
def test_quantile_huber_equals_the_papers_equation(count, targets, kappa):
    draws = np.random.default_rng(count)
    theta, wanted = (3 * draws.standard_normal((4, n), np.float32) for n in (count, targets))
    result = quantile_huber(theta, wanted, kappa)
    np.testing.assert_allclose(result, q_cases.quantile_regression(theta, wanted, kappa), rtol=1e-4)


@q_cases.cases("target")
def test_target_table(case):
    online, target, reward, discount = given(case, "next_online", "next_target", "reward", "discount")
    for judge, name in ((target, "single"), (online, "double")):
        result = td_target(reward, discount, gather_actions(target, judge.argmax(-1)))
        np.testing.assert_array_equal(result, *q_cases.arrays(case, name))


def test_targets_of_quantiles_are_those_of_each():
    quantiles = np.float32([[2, 4], [6, 8]])
    assert td_target(*map(jax.numpy.asarray, (np.float32([1, 2]), np.float32([0.5, 0]), quantiles))).tolist() == [
        [2, 3],
        [2, 2],
    ]


def test_chosen_takes_one_action_of_each_row():
    action = jax.numpy.asarray([2, 0])
    assert gather_actions(jax.numpy.arange(6).reshape(2, 3), action).tolist() == [2, 3]
    assert gather_actions(jax.numpy.arange(12).reshape(2, 3, 2), action).tolist() == [[4, 5], [6, 7]]


def test_actions_not_chosen_get_no_gradient():
    q = jax.numpy.asarray([[1.0, np.inf], [np.nan, 2.0]])
    assert gather_actions(q, jax.numpy.asarray([0, 1])).tolist() == [1, 2]


def test_errors_are_quadratic_or_linear_as_they_are_called():
    error = jax.numpy.asarray([-3.0, -1.0, 0.0, 0.5, 2.0])
    assert squared(error).tolist() == [4.5, 0.5, 0, 0.125, 2]
    assert huber(error).tolist() == [2.5, 0.5, 0, 0.125, 1.5]
    assert jax.vmap(jax.grad(huber))(error).tolist() == [-1, -1, 0, 0.5, 1]
    assert huber(error, 2.0).tolist() == [4, 0.5, 0, 0.125, 2]


@q_cases.cases("dueling")
def test_dueling_table(case):
    value, advantage, wanted = given(case, "value", "advantage", "q")
    actions, points = advantage.shape[1:]
    kind = {1: "none"}.get(points, "quantile")
    config = DQNConfig(dueling=True, value_distribution=kind, num_quantiles=points)
    size = points * (1 + actions)
    spec = EnvSpec(size, ActionSpec("discrete", (actions,)), "same_step", True)
    policy = QPolicy(spec, NetworkConfig(hidden=()), config)
    params = {name: np.zeros_like(value) for name, value in policy.params.items()}
    for stream, part in (("value", slice(points)), ("advantage", slice(points, size))):
        params[f"network.{stream}.layers.0.weight"] = np.eye(size, dtype=np.float32)[part]  # it sees what is observed
    seen = jax.numpy.concatenate([value.reshape(len(value), -1), advantage.reshape(len(value), -1)], 1)
    outputs = policy.outputs(params, seen)
    np.testing.assert_allclose(outputs.reshape(wanted.shape), wanted, atol=1e-6 * float(abs(advantage).max()))


def test_cross_entropy_is_that_of_the_definition():
    logits, target = np.float32([[0, 0], [1, 3]]), np.float32([[0.5, 0.5], [0.25, 0.75]])
    log_p = np.log(np.exp([1, 3]) / np.exp([1, 3]).sum())
    wanted = [np.log(2), -(0.25 * log_p[0] + 0.75 * log_p[1])]
    np.testing.assert_allclose(cross_entropy(logits, target), wanted, rtol=1e-6)
