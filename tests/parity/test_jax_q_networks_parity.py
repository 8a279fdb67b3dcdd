"""DQN's networks and losses in both frameworks: the same names, outputs, noise and gradients."""

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import torch
from networks_alike import arrays, check_gradients, observed, perturbed, spec_of

from lockstep.algorithms.dqn import DQNConfig
from lockstep.jax import value_losses as losses
from lockstep.jax.networks import JaxActor, LinearActor, actor_of
from lockstep.jax.q_networks import QPolicy, noisy_actor
from lockstep.run import NetworkConfig
from lockstep.torch import value_losses as torch_losses
from lockstep.torch.networks import actor_of as torch_actor_of
from lockstep.torch.q_networks import QPolicy as TorchQPolicy
from lockstep.torch.q_networks import noisy_actor as torch_noisy_actor

CPU, PIXELS = torch.device("cpu"), (3, 40, 44)
KINDS = ("none", "categorical", "quantile")
HEADS = [
    ({"value_distribution": kind, "dueling": dueling, "noisy": noisy}, None)
    for kind in KINDS
    for dueling in (False, True)
    for noisy in (False, True)
]
IMAGES = [({"dueling": True, "noisy": True}, PIXELS), ({"value_distribution": "categorical"}, PIXELS)]
QUICK = [HEADS[0], HEADS[7], HEADS[8], IMAGES[0]]  # plain; dueling noisy categorical; quantile; images


def named(case):
    heads, image = case
    return " ".join(str(v) for v in heads.values() if v) + (" image" if image else "")


def both(heads, image=None):
    spec, network = spec_of(image=image), NetworkConfig(hidden=(16, 8), features=16, activation="relu")
    config = DQNConfig(num_atoms=5, num_quantiles=7, v_min=-2.0, v_max=3.0, **heads)
    mine, theirs = QPolicy(spec, network, config, seed=3), TorchQPolicy(spec, network, config, seed=3)
    shapes = {name: tuple(value.shape) for name, value in mine.params.items()}
    assert shapes == {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    assert mine.num_noise == theirs.num_noise
    np.testing.assert_allclose(mine.support, theirs.support.numpy(), rtol=1e-6)
    mine.params = arrays(perturbed(theirs))
    return mine, theirs


@pytest.mark.parametrize("case", others_slow([*HEADS, *IMAGES], *QUICK), ids=named)
def test_outputs_and_gradients_are_those_of_torch(case):
    mine, theirs = both(*case)
    observation = observed(theirs.spec)
    noise = mine.draw_noise(np.random.default_rng(5))
    theirs.set_noise(np.random.default_rng(5).standard_normal(theirs.num_noise, np.float32))
    assert (noise is None) == (not case[0].get("noisy"))

    def mean_square(params, observation, noise):
        outputs = mine.outputs(params, observation, noise)
        return (outputs**2).mean(), (outputs, mine.expected(outputs))

    compiled = jax.jit(jax.value_and_grad(mean_square, has_aux=True))
    (_, (outputs, q)), gradients = compiled(mine.params, observation, noise)
    wanted = theirs.outputs(torch.from_numpy(observation))
    np.testing.assert_allclose(outputs, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(q, theirs.expected(wanted).detach().numpy(), rtol=1e-5, atol=1e-5)
    wanted.square().mean().backward()
    check_gradients(gradients, theirs)
    theirs.disable_noise()
    quiet = theirs(torch.from_numpy(observation))
    for one, other in zip(jax.jit(mine.apply)(mine.params, observation), quiet, strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_noise_of_each_row_is_torchs():
    mine, theirs = both({"dueling": True, "noisy": True})
    observation = observed(theirs.spec)
    numbers = np.random.default_rng(5).standard_normal((len(observation), mine.num_noise), np.float32)
    theirs.set_noise(numbers)
    wanted = theirs(torch.from_numpy(observation))[0].detach().numpy()
    np.testing.assert_allclose(mine.outputs(mine.params, observation, numbers), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_is_near_torchs():
    mine, theirs = both({"dueling": True, "noisy": True})
    observation, noise = observed(theirs.spec), mine.draw_noise(np.random.default_rng(5))
    theirs.set_noise(np.random.default_rng(5).standard_normal(theirs.num_noise, np.float32))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = theirs.outputs(torch.from_numpy(observation)).float().detach().numpy()
    found = mine.outputs(mine.params, observation, noise, "bfloat16")
    assert found.dtype == jax.numpy.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("case", [({}, None), ({"noisy": True}, None), ({}, PIXELS)], ids=named)
def test_actors_act_alike(case):
    mine, theirs = both(*case)
    observation = np.stack([observed(theirs.spec, seed=k) for k in range(2)])
    actor = actor_of(mine)
    assert isinstance(actor, JaxActor if case[1] or case[0] else LinearActor)
    np.testing.assert_allclose(actor(observation), torch_actor_of(theirs, CPU)(observation), rtol=1e-5, atol=1e-5)


def test_environments_explore_by_the_same_noise():
    mine, theirs = both({"dueling": True, "noisy": True})
    observation, envs = np.stack([observed(theirs.spec, 4, seed=k) for k in range(2)]), [range(4), range(4, 8)]
    actors = noisy_actor(mine, 3, envs), torch_noisy_actor(theirs, CPU, 3, envs)
    for iteration in (0, 7):
        drawn = []
        for actor in actors:
            actor.begin(iteration)
            drawn.append(np.stack([actor(observation) for _ in range(2)]))
        np.testing.assert_allclose(*drawn, rtol=1e-5, atol=1e-5)


def random_losses():
    """Arguments of every loss: name, arrays, and which of them are learned."""
    draws = np.random.default_rng(0)
    q, quantiles, targets, logits, error = (
        2 * draws.standard_normal(shape, np.float32) for shape in ((6, 5), (6, 7), (6, 9), (6, 51), (6,))
    )
    reward, discount = draws.standard_normal(6, np.float32), np.float32([0, 0.99, 0.5, 0.99, 1, 0.9])
    probability = draws.dirichlet(np.ones(51), 6).astype(np.float32)
    action, support = draws.integers(5, size=6), np.linspace(-2, 2, 51, dtype=np.float32)
    return {
        "gather_actions": (q, action),
        "td_target": (reward, discount, quantiles),
        "squared": (error,),
        "huber": (error,),
        "quantile_huber": (quantiles, targets),
        "categorical_projection": (probability, reward, discount, support),
        "cross_entropy": (logits, probability),
    }


@pytest.mark.parametrize("name", list(random_losses()))
def test_losses_and_their_gradients_are_those_of_torch(name):
    arguments = random_losses()[name]
    given = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arguments]
    given[0].requires_grad_()
    wanted = getattr(torch_losses, name)(*given)
    wanted.square().sum().backward()

    def summed(first):
        row = getattr(losses, name)(first, *arguments[1:])
        return (row**2).sum(), row

    gradient, found = jax.jit(jax.grad(summed, has_aux=True))(arguments[0])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, given[0].grad.numpy(), rtol=1e-4, atol=2e-5)
