"""One network in both frameworks: the same parameters, observations and actions."""

import jax
import numpy as np
import torch

from lockstep.envs.spec import ActionSpec, EnvSpec

ACTIONS = {
    "discrete": ActionSpec("discrete", (5,)),
    "multi_discrete": ActionSpec("multi_discrete", (2, 4, 3)),
    "continuous": ActionSpec("continuous", (3,), (-1.0,) * 3, (1.0,) * 3),
}


def spec_of(action="discrete", image=None, size=6, critic_size=None):
    """Of a task that observes a vector, or an image."""
    size = int(np.prod(image)) if image else size
    return EnvSpec(size, ACTIONS[action], "next_step", True, image=image, critic_size=critic_size)


def observed(spec, rows=5, seed=0, whole=False):
    """Random observations; the `whole` ones with those of the critic's own."""
    draws = np.random.default_rng(seed)
    if spec.image:
        return draws.integers(256, size=(rows, *spec.image), dtype=np.uint8)
    size = spec.observation_size + (spec.critic_size or 0) * whole
    return draws.standard_normal((rows, size)).astype(np.float32)


def acted(spec, rows=5, seed=1):
    """Random actions."""
    draws, action = np.random.default_rng(seed), spec.action
    if action.kind == "continuous":
        return draws.standard_normal((rows, *action.sizes)).astype(np.float32)
    chosen = np.stack([draws.integers(n, size=rows) for n in action.sizes], -1)
    return chosen[:, 0] if action.kind == "discrete" else chosen


def perturbed(theirs, seed=2):
    """Torch's module with parameters that are all unlike each other (biases begin at 0), and the same as arrays."""
    draws = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            numbers = np.asarray(0.05 * draws.standard_normal(parameter.shape), np.float32)
            parameter += torch.from_numpy(numbers)
    return {name: tensor.detach().numpy().copy() for name, tensor in theirs.state_dict().items()}


def check_gradients(mine, theirs, rtol=1e-4, atol=1e-5):
    """Gradients by name (`mine`) equal those that torch's module holds, each to its own size."""
    named = {name: p.grad for name, p in theirs.named_parameters()}
    assert mine.keys() == named.keys()
    for name, gradient in named.items():
        wanted = np.zeros(mine[name].shape) if gradient is None else gradient.numpy()
        scale = max(float(np.abs(wanted).max()), 1e-3)
        np.testing.assert_allclose(np.asarray(mine[name]) / scale, wanted / scale, rtol, atol, err_msg=name)


def arrays(tree):
    """On the device."""
    return jax.tree.map(jax.numpy.asarray, tree)
