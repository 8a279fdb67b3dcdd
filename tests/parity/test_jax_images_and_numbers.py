"""Networks of images among numbers in both frameworks, the value network's own too: names, outputs and gradients."""

import numpy as np
import pytest

from quick import others_slow

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from networks_alike import arrays, check_gradients, perturbed  # noqa: E402

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart  # noqa: E402
from lockstep.jax.networks import JaxActor, Policy, actor_of  # noqa: E402
from lockstep.run import NetworkConfig  # noqa: E402
from lockstep.torch.networks import Policy as TorchPolicy  # noqa: E402
from lockstep.torch.networks import TorchActor  # noqa: E402
from lockstep.torch.networks import actor_of as torch_actor_of  # noqa: E402

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
CASES = {
    "own critic": (ARM, {}),
    "shared": (SYMMETRIC, {}),
    "separate": (SYMMETRIC, {"shared": False}),
    "recurrent": (ARM, {"recurrent": "gru", "recurrent_size": 6}),
    "mlp": (ARM, {"encoder": "mlp"}),
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


def test_they_act_with_their_encoder():
    """The actor for linear layers would leave it out."""
    mine, theirs = both("own critic")
    actor, other = actor_of(mine), torch_actor_of(theirs, torch.device("cpu"))
    assert isinstance(actor, JaxActor) and isinstance(other, TorchActor)
    observation = observed(theirs.spec)[0]
    np.testing.assert_allclose(actor(observation), other(observation), rtol=1e-5, atol=1e-6)
