"""PPO's networks and distributions in both frameworks: the same names, outputs and gradients."""

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import torch
from networks_alike import acted, arrays, check_gradients, observed, perturbed, spec_of

from lockstep.jax.networks import JaxActor, LinearActor, Policy, actor_of
from lockstep.run import NetworkConfig
from lockstep.torch.networks import Policy as TorchPolicy
from lockstep.torch.networks import actor_of as torch_actor_of

PIXELS = (3, 40, 44)
CASES = {
    "separate": (None, {"hidden": (16, 8)}),
    "shared": (None, {"hidden": (16, 8), "shared": True, "activation": "relu"}),
    "elu": (None, {"hidden": (8,), "activation": "elu"}),
    "silu": (None, {"hidden": (8,), "activation": "silu"}),
    "linear": (None, {"hidden": ()}),
    "pixels in a row": ((1, 4, 5), {"encoder": "mlp", "hidden": (8,)}),
    "nature": (PIXELS, {"features": 16}),
    "nature twice": (PIXELS, {"features": 16, "shared": False}),
    "small": (PIXELS, {"encoder": "small", "features": 16}),
    "wide": (PIXELS, {"encoder": "wide", "features": 16}),
    "impala": (PIXELS, {"encoder": "impala", "features": 16}),
}
QUICK = ("separate", "nature")


def both(image, network, action="discrete"):
    """The policy in JAX and in torch, with the same parameters."""
    spec, config = spec_of(action, image), NetworkConfig(**network)
    mine, theirs = Policy(spec, config, seed=3), TorchPolicy(spec, config, seed=3)
    shapes = {name: tuple(value.shape) for name, value in mine.params.items()}
    assert shapes == {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    mine.params = arrays(perturbed(theirs))
    return mine, theirs


def torchs_loss(policy, observation, action):
    parameters, value = (x.float() for x in policy(torch.from_numpy(observation)))
    log_prob, entropy = policy.distribution.log_prob_and_entropy(parameters, torch.from_numpy(action))
    return value.square().sum() - 2 * log_prob.sum() + 0.3 * (entropy * log_prob).sum()


def jaxs_loss(policy, precision="float32"):
    @jax.jit
    def loss(params, observation, action):
        parameters, value = policy.apply(params, observation, precision)
        log_prob, entropy = policy.distribution.log_prob_and_entropy(params, parameters, action)
        return (value**2).sum() - 2 * log_prob.sum() + 0.3 * (entropy * log_prob).sum()

    return loss


@pytest.mark.parametrize("case", others_slow(CASES, *QUICK))
def test_outputs_and_gradients_are_those_of_torch(case):
    mine, theirs = both(*CASES[case])
    observation, action = observed(theirs.spec), acted(theirs.spec)
    parameters, value = jax.jit(mine.apply)(mine.params, observation)
    wanted = [x.detach().numpy() for x in theirs(torch.from_numpy(observation))]
    for one, other in zip((parameters, value), wanted, strict=True):
        size = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one / size, other / size, rtol=1e-5, atol=1e-5)
    torchs_loss(theirs, observation, action).backward()
    check_gradients(jax.jit(jax.grad(jaxs_loss(mine)))(mine.params, observation, action), theirs)


@pytest.mark.parametrize("action", ["multi_discrete", "continuous"])
def test_so_are_those_of_every_kind_of_action(action):
    mine, theirs = both(*CASES["separate"], action)
    observation, actions = observed(theirs.spec), acted(theirs.spec)
    wanted = torchs_loss(theirs, observation, actions)
    wanted.backward()
    found, gradients = jax.value_and_grad(jaxs_loss(mine))(mine.params, observation, actions)
    np.testing.assert_allclose(found, wanted.item(), rtol=1e-5)
    check_gradients(gradients, theirs)


@pytest.mark.parametrize("action", ["discrete", "multi_discrete", "continuous"])
def test_log_probabilities_and_entropies_are_those_of_torch(action):
    mine, theirs = both(*CASES["separate"], action)
    parameters = 3 * np.random.default_rng(4).standard_normal((50, theirs.distribution.num_parameters), np.float32)
    actions = acted(theirs.spec, rows=50)
    found = jax.jit(mine.distribution.log_prob_and_entropy)(mine.params, parameters, actions)
    wanted = theirs.distribution.log_prob_and_entropy(torch.from_numpy(parameters), torch.from_numpy(actions))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("case", others_slow(["separate", "nature"], "separate"))
def test_bfloat16_is_near_torchs(case):
    mine, theirs = both(*CASES[case])
    observation, action = observed(theirs.spec), acted(theirs.spec)
    parameters, value = jax.jit(mine.apply, static_argnums=2)(mine.params, observation, "bfloat16")
    exact = mine.apply(mine.params, observation)[0]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = [x.float().detach().numpy() for x in theirs(torch.from_numpy(observation))]
        torchs_loss(theirs, observation, action).backward()
    assert parameters.dtype == value.dtype == np.float32
    assert not np.array_equal(parameters, exact), "it computed in float32"
    np.testing.assert_allclose(parameters, wanted[0], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(value, wanted[1], rtol=0.05, atol=0.05)
    gradients = jax.grad(jaxs_loss(mine, "bfloat16"))(mine.params, observation, action)
    assert all(g.dtype == np.float32 for g in gradients.values())
    # As a whole, relative to what float32 makes: bfloat16 has 8 bits.
    names = [name for name, _ in theirs.named_parameters()]
    wanted = np.concatenate([p.grad.numpy().ravel() for p in theirs.parameters()])
    found = np.concatenate([np.asarray(gradients[name]).ravel() for name in names])
    assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    "case", others_slow(["separate", "shared", "elu", "silu", "nature", "pixels in a row"], *QUICK)
)
def test_actors_act_alike(case):
    mine, theirs = both(*CASES[case])
    observation = np.stack([observed(theirs.spec, seed=k) for k in range(2)])
    wanted = torch_actor_of(theirs, torch.device("cpu"))(observation)
    actor = actor_of(mine)
    assert isinstance(actor, LinearActor if theirs.spec.image is None else JaxActor)
    np.testing.assert_allclose(actor(observation), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(JaxActor(mine, jax.devices()[0])(observation), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("action", ["discrete", "multi_discrete", "continuous"])
def test_the_same_noise_is_the_same_action(action):
    mine, theirs = both(*CASES["separate"], action)
    parameters = np.random.default_rng(4).standard_normal((50, theirs.distribution.num_parameters), np.float32)
    noise = theirs.distribution.draw_noise(np.random.default_rng(5), (50,))
    np.testing.assert_array_equal(mine.sampler.draw_noise(np.random.default_rng(5), (50,)), noise)
    wanted = theirs.distribution.sample(parameters, noise)
    np.testing.assert_allclose(mine.sampler.sample(parameters, noise), wanted, rtol=1e-6)
    np.testing.assert_allclose(mine.distribution.sample(mine.params, parameters, noise), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(mine.distribution.mode(mine.params, parameters), theirs.distribution.mode(parameters))
