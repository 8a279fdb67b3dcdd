import numpy as np
import pytest
import q_cases

pytest.importorskip("torch")

import torch

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.run import NetworkConfig
from lockstep.session.shard_replays import importance_weights
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.value_losses import (
    categorical_projection,
    cross_entropy,
    gather_actions,
    quantile_huber,
    td_target,
)


def tensors(case, *names):
    return [torch.from_numpy(array) for array in q_cases.arrays(case, *names)]


@q_cases.cases("projection")
def test_projection_table(case):
    result = categorical_projection(*tensors(case, "probability", "reward", "discount", "support"))
    np.testing.assert_array_equal(result.numpy(), *q_cases.arrays(case, "projected"))
    assert result.dtype == torch.float32


@pytest.mark.parametrize("atoms", [2, 3, 51, 101])
def test_projection_equals_the_papers_algorithm(atoms):
    inputs = q_cases.random_distributions(64, atoms)
    result = categorical_projection(*map(torch.from_numpy, inputs)).numpy()
    np.testing.assert_allclose(result, q_cases.projection(*inputs), atol=1e-5)
    np.testing.assert_allclose(result.sum(1), 1.0, rtol=1e-5)
    assert (result >= 0).all()


def test_projection_loses_no_mass_at_any_atom():
    """Where r + discount z falls on an atom, or by rounding next to one."""
    support = torch.linspace(-10.0, 10.0, 51)
    probability = torch.full((51, 51), 1 / 51)
    for discount in (0.0, 1.0):
        result = categorical_projection(probability, support, torch.full((51,), discount), support)
        torch.testing.assert_close(result.sum(1), torch.ones(51))
    ended = categorical_projection(probability, support, torch.zeros(51), support)
    torch.testing.assert_close(ended, torch.eye(51), atol=2e-5, rtol=0)


@q_cases.cases("quantile_huber")
def test_quantile_huber_table(case):
    result = quantile_huber(*tensors(case, "quantiles", "targets"), kappa=case["kappa"])
    np.testing.assert_array_equal(result.numpy(), *q_cases.arrays(case, "loss"))


@pytest.mark.parametrize(("count", "targets", "kappa"), [(1, 1, 1.0), (5, 8, 1.0), (200, 200, 1.0), (32, 32, 0.5)])
def test_quantile_huber_equals_the_papers_equation(count, targets, kappa):
    stream = np.random.default_rng(count)
    theta, wanted = (3 * stream.standard_normal((4, n), np.float32) for n in (count, targets))
    result = quantile_huber(torch.from_numpy(theta), torch.from_numpy(wanted), kappa)
    np.testing.assert_allclose(result, q_cases.quantile_regression(theta, wanted, kappa), rtol=1e-4)


def test_quantile_huber_settles_on_the_quantiles():
    """What it is for: its minimum over samples of a distribution are the quantiles of that distribution."""
    samples = torch.linspace(0.0, 100.0, 1001).unsqueeze(0)
    theta = torch.full((1, 4), 50.0, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.5)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber(theta, samples).sum().backward()
        optimizer.step()
    torch.testing.assert_close(theta.detach(), torch.tensor([[12.5, 37.5, 62.5, 87.5]]), atol=1.0, rtol=0)


@q_cases.cases("target")
def test_target_table(case):
    online, target, reward, discount = tensors(case, "next_online", "next_target", "reward", "discount")
    for judge, name in ((target, "single"), (online, "double")):
        result = td_target(reward, discount, gather_actions(target, judge.argmax(-1)))
        np.testing.assert_array_equal(result.numpy(), *q_cases.arrays(case, name))


def test_targets_of_quantiles_are_those_of_each():
    reward, discount, quantiles = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), torch.tensor([[2.0, 4], [6, 8]])
    assert td_target(reward, discount, quantiles).tolist() == [[2, 3], [2, 2]]


def test_gather_actions_takes_one_action_of_each_row():
    action = torch.tensor([2, 0])
    assert gather_actions(torch.arange(6).view(2, 3), action).tolist() == [2, 3]
    assert gather_actions(torch.arange(12).view(2, 3, 2), action).tolist() == [[4, 5], [6, 7]]


@q_cases.cases("dueling")
def test_dueling_table(case):
    value, advantage, wanted = tensors(case, "value", "advantage", "q")
    actions, points = advantage.shape[1:]
    kind = {1: "none"}.get(points, "quantile")
    config = DQNConfig(dueling=True, value_distribution=kind, num_quantiles=points)
    size = points * (1 + actions)
    spec = EnvSpec(size, ActionSpec("discrete", (actions,)), "same_step", True)
    policy = QPolicy(spec, NetworkConfig(hidden=()), config)
    with torch.no_grad():  # the streams show the observation as it is: the value first, then the advantages
        for stream, part in ((policy.network.value, slice(points)), (policy.network.advantage, slice(points, size))):
            stream.layers[0].weight.copy_(torch.eye(size)[part])
            stream.layers[0].bias.zero_()
    outputs = policy.outputs(torch.cat([value, advantage.flatten(1)], 1))
    torch.testing.assert_close(outputs.view(wanted.shape), wanted, rtol=0, atol=1e-6 * float(advantage.abs().max()))


@q_cases.cases("importance")
def test_importance_table(case):
    probability = [np.array(p) / sum(p) / len(case["priority"]) for p in case["priority"]]
    for computed, given in zip(probability, case["probability"], strict=True):
        np.testing.assert_allclose(computed, given)
    count = sum(map(len, case["priority"]))
    config = DQNConfig(prioritized=True, importance_exponent=case["exponent"])
    weight = [importance_weights(config, p, count, 0.0) for p in probability]
    largest = max(float(w.max()) for w in weight)
    for computed, given, scaled in zip(weight, case["weight"], case["scaled"], strict=True):
        np.testing.assert_allclose(computed, given, rtol=1e-6)
        np.testing.assert_allclose(computed / largest, scaled, rtol=1e-6)


def test_full_correction_is_that_of_drawing_uniformly():
    """Sum_i P(i) w_i f_i = mean f for exponent 1, however unequal the shards."""
    case, f = q_cases.TABLES["importance"][1], np.arange(5.0)
    probability = np.array([p for shard in case["probability"] for p in shard])
    weight = importance_weights(DQNConfig(prioritized=True), probability, len(f), 1.0)
    assert float((probability * weight * f).sum()) == pytest.approx(f.mean())


def test_cross_entropy_is_that_of_the_definition():
    logits, target = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    log_p = np.log(np.exp([1, 3]) / np.exp([1, 3]).sum())
    wanted = [np.log(2), -(0.25 * log_p[0] + 0.75 * log_p[1])]
    np.testing.assert_allclose(cross_entropy(logits, target), wanted, rtol=1e-6)
