"""Networks of images among numbers in both frameworks, the value network's own too: names, outputs and gradients."""

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import torch
from networks_alike import arrays, check_gradients, perturbed

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.jax.networks import JaxActor, Policy, actor_of
from lockstep.jax.recurrent import Sequences
from lockstep.run import NetworkConfig
from lockstep.torch.networks import Policy as TorchPolicy
from lockstep.torch.networks import TorchActor
from lockstep.torch.networks import actor_of as torch_actor_of
from lockstep.torch.recurrent import Sequences as TorchSequences

ARM = EnvSpec(
    3 + 2 * 8 * 9 + 4,
    ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)),
    "same_step",
    separately_seedable=True,
    image_parts=(ImagePart(3, (2, 8, 9)),),
    critic_size=8 * 9 + 1,
    critic_image_parts=(ImagePart(0, (1, 8, 9)),),
)
SYMMETRIC = EnvSpec(153, ARM.action, "same_step", separately_seedable=True, image_parts=(ImagePart(3, (2, 5, 15)),))
PIXELS = EnvSpec(
    2 * 8 * 9, ARM.action, "same_step", separately_seedable=True, image=(2, 8, 9), critic_size=5,
)  # fmt: skip
CASES = {
    "own critic": (ARM, {}),
    "shared": (SYMMETRIC, {}),
    "separate": (SYMMETRIC, {"shared": False}),
    "recurrent": (ARM, {"recurrent": "gru", "recurrent_size": 6}),
    "mlp": (ARM, {"encoder": "mlp"}),
    "recurrent mlp": (PIXELS, {"encoder": "mlp", "recurrent": "gru", "recurrent_size": 6}),
}


def both(case):
    spec, network = CASES[case]
    config = NetworkConfig(**{"features": 16, "hidden": (16, 8), **network})
    mine, theirs = Policy(spec, config, seed=3), TorchPolicy(spec, config, seed=3)
    shapes = {name: tuple(value.shape) for name, value in mine.params.items()}
    assert shapes == {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    mine.params = arrays(perturbed(theirs))
    return mine, theirs


def observed(spec, rows=6):
    random = np.random.default_rng(1)
    return [random.random((rows, size), np.float32) for size in (spec.observation_size, spec.critic_size) if size]


@pytest.mark.parametrize("case", others_slow(["own critic", "shared", "separate", "mlp"], "own critic"))
def test_outputs_and_gradients_are_those_of_torch(case):
    mine, theirs = both(case)
    given = observed(theirs.spec)

    def loss(params):
        parameters, value = mine.apply(params, given[0], critic=given[1] if len(given) > 1 else None)
        return (parameters**2).sum() + (value**3).sum()

    parameters, value = theirs(*map(torch.from_numpy, given))
    wanted = parameters.square().sum() + (value**3).sum()
    wanted.backward()
    found, gradients = jax.jit(jax.value_and_grad(loss))(mine.params)
    np.testing.assert_allclose(found, wanted.item(), rtol=1e-5, atol=1e-6)
    check_gradients(gradients, theirs, atol=1e-4)


def test_recurrent_policies_act_alike():
    mine, theirs = both("recurrent")
    observation, state = observed(theirs.spec)[0], np.zeros((6, theirs.actor_state_size), np.float32)
    found = actor_of(mine)(observation, state)
    for one, other in zip(found, torch_actor_of(theirs, torch.device("cpu"))(observation, state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_recurrent_policies_take_an_image_as_a_vector():
    mine, theirs = both("recurrent mlp")
    images = np.random.default_rng(1).integers(256, size=(6, *PIXELS.image), dtype=np.uint8)
    critic, state = observed(PIXELS)[1], np.zeros((6, theirs.actor_state_size), np.float32)
    acting, same = actor_of(mine)(images, state), torch_actor_of(theirs, torch.device("cpu"))(images, state)
    begin = np.zeros((6, theirs.state_size), np.float32), np.zeros((1, 6), np.float32)
    learned = mine.unroll(mine.params, images, Sequences(*begin), critic)
    with torch.no_grad():
        expected = theirs(*map(torch.from_numpy, (images, critic)), TorchSequences(*map(torch.from_numpy, begin)))
    for found, wanted in zip((*acting, *learned[:2], acting[0]), (*same, *expected, expected[0]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.ptp(acting[0], 0).max() > 0


def test_they_act_with_their_encoder():
    """The actor for linear layers would leave it out."""
    mine, theirs = both("own critic")
    actor, other = actor_of(mine), torch_actor_of(theirs, torch.device("cpu"))
    assert isinstance(actor, JaxActor) and isinstance(other, TorchActor)
    observation = observed(theirs.spec)[0]
    np.testing.assert_allclose(actor(observation), other(observation), rtol=1e-5, atol=1e-6)
