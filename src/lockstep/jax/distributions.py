"""Action distributions parameterised by a network's output, for losses and for sampling inside compiled code.

Actions for environments on the host are sampled with numpy (`lockstep.experience.sampling`; here `sampler`). Shapes: N
rows, P parameters of the distribution, A choices, D dimensions of a continuous action.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.sac import LOG_STD_RANGE
from lockstep.envs.spec import ActionSpec
from lockstep.experience import sampling
from lockstep.jax.flat import Params

LOG_STD = "distribution.log_std"
"""Name of the log standard deviations of continuous actions among a policy's parameters."""


class Categorical:
    """One choice among A: P = A logits. Actions are integers [N]."""

    def __init__(self, action: ActionSpec) -> None:
        self.sampler = sampling.Categorical(action)
        self.num_parameters = self.sampler.num_parameters

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Gumbel noise [*shape, P]."""
        return jax.random.gumbel(key, (*shape, self.num_parameters), jnp.float32)

    def sample(self, params: Params, parameters: Array, noise: Array) -> Array:
        """argmax(logits + Gumbel noise) is a draw from softmax(logits) (Gumbel, 1954)."""
        return self.mode(params, parameters + noise)

    def mode(self, params: Params, parameters: Array) -> Array:
        """The most likely action, int32."""
        del params
        return jnp.argmax(parameters, -1).astype(jnp.int32)

    def log_prob_and_entropy(self, params: Params, parameters: Array, action: Array) -> tuple[Array, Array]:
        """Log pi(a) = logit_a - log sum exp(logits), and H = -sum p log p; both [N]."""
        del params
        return _of_choice(parameters, action)


class MultiCategorical(Categorical):
    """Several independent choices: P = sum of their sizes. Actions are integers [N, number of choices]."""

    def __init__(self, action: ActionSpec) -> None:
        self.sampler = sampling.MultiCategorical(action)
        self.sizes, self.num_parameters = self.sampler.sizes, self.sampler.num_parameters

    def mode(self, params: Params, parameters: Array) -> Array:
        """The most likely choice of each, int32."""
        del params
        parts = jax.lax.split(parameters, self.sizes, parameters.ndim - 1)
        return jnp.stack([jnp.argmax(part, -1) for part in parts], -1).astype(jnp.int32)

    def log_prob_and_entropy(self, params: Params, parameters: Array, action: Array) -> tuple[Array, Array]:
        """Sums over the independent choices; both [N]."""
        del params
        log_prob, entropy = jnp.zeros_like(parameters[:, 0]), jnp.zeros_like(parameters[:, 0])
        for i, part in enumerate(jax.lax.split(parameters, self.sizes, 1)):
            of_choice, its_entropy = _of_choice(part, action[:, i])
            log_prob, entropy = log_prob + of_choice, entropy + its_entropy
        return log_prob, entropy


class DiagonalGaussian:
    """D independent normal distributions: P = D means, with log standard deviations as separate parameters.

    Actions are float32 [N, D], not clipped: the environment receives a clipped copy, and the log-probability is that of
    the sampled action.

    Args:
        action: of the task.
        log_std: returns the current log standard deviations [D], for sampling on the host.
    """

    def __init__(self, action: ActionSpec, log_std: Callable[[], np.ndarray]) -> None:
        self.sampler = sampling.DiagonalGaussian(action, log_std)
        self.num_parameters = self.sampler.num_parameters

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Standard normal noise [*shape, D]."""
        return jax.random.normal(key, (*shape, self.num_parameters), jnp.float32)

    def sample(self, params: Params, parameters: Array, noise: Array) -> Array:
        """Mean + standard deviation * noise."""
        deviation = jnp.exp(params[LOG_STD])
        return parameters + jnp.broadcast_to(deviation, noise.shape) * noise

    def mode(self, params: Params, parameters: Array) -> Array:
        """The mean."""
        del params
        return parameters

    def log_prob_and_entropy(self, params: Params, parameters: Array, action: Array) -> tuple[Array, Array]:
        """Sums over the D dimensions; both [N].

        log pi(a) = -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2
        H         = log std + (1 + log(2 pi)) / 2
        """
        log_std, half_log_tau = params[LOG_STD], 0.5 * math.log(2 * math.pi)
        scaled = (action - parameters) * jnp.exp(-log_std)[None]
        log_prob = -(0.5 * jnp.square(scaled) + log_std[None] + half_log_tau).sum(-1)
        return log_prob, jnp.broadcast_to((log_std + (0.5 + half_log_tau)).sum(), log_prob.shape)


class StateDependentGaussian:
    """D independent normal distributions: P = 2 D, means and log standard deviations.

    Actions are as in `DiagonalGaussian`.

    Args:
        action: of the task.
        initial_log_std: added to the log standard deviations, which begin near 0.
    """

    def __init__(self, action: ActionSpec, initial_log_std: float) -> None:
        self.sampler = sampling.StateDependentGaussian(action, initial_log_std)
        self.num_parameters, self._width = self.sampler.num_parameters, self.sampler.width
        self._initial_log_std = initial_log_std

    def draw_noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Standard normal noise [*shape, D]."""
        return jax.random.normal(key, (*shape, self._width), jnp.float32)

    def sample(self, params: Params, parameters: Array, noise: Array) -> Array:
        """Mean + standard deviation * noise."""
        mean, log_std = self._split(parameters)
        return mean + jnp.exp(log_std) * noise

    def mode(self, params: Params, parameters: Array) -> Array:
        """The mean."""
        del params
        return self._split(parameters)[0]

    def log_prob_and_entropy(self, params: Params, parameters: Array, action: Array) -> tuple[Array, Array]:
        """As in `DiagonalGaussian`, with the standard deviations of each row."""
        del params
        mean, log_std = self._split(parameters)
        half_log_tau = 0.5 * math.log(2 * math.pi)
        scaled = (action - mean) * jnp.exp(-log_std)
        log_prob = -(0.5 * jnp.square(scaled) + log_std + half_log_tau).sum(-1)
        return log_prob, (log_std + (0.5 + half_log_tau)).sum(-1)

    def _split(self, parameters: Array) -> tuple[Array, Array]:
        """Means and log standard deviations."""
        return parameters[..., : self._width], parameters[..., self._width :] + self._initial_log_std


class SquashedGaussian:
    """tanh of D independent normal distributions, scaled to the bounds: P = 2 D, means and log standard deviations.

    With u = mean + std e and e standard normal, the action scaled to [-1, 1] is tanh(u), and (Haarnoja et al., 2018,
    arXiv:1801.01290, appendix C)

    log pi(tanh(u)) = sum_d -e^2 / 2 - log std - log(2 pi) / 2 - log(1 - tanh(u)^2)

    Args:
        action: of the task; every dimension needs finite bounds.
    """

    def __init__(self, action: ActionSpec) -> None:
        self.sampler = sampling.SquashedGaussian(action)
        self.num_parameters, self._width = self.sampler.num_parameters, self.sampler.width

    def scaled_action_and_log_prob(self, parameters: Array, noise: Array) -> tuple[Array, Array]:
        """Actions in [-1, 1], [N, D], from standard normal noise [N, D], and their log-probabilities [N]."""
        mean, log_std = self._split(parameters)
        u = mean + jnp.exp(log_std) * noise
        return jnp.tanh(u), _squashed_log_prob(noise, log_std, u)

    def _split(self, parameters: Array) -> tuple[Array, Array]:
        """Means and log standard deviations."""
        return parameters[:, : self._width], jnp.clip(parameters[:, self._width :], *LOG_STD_RANGE)


def _squashed_log_prob(noise: Array, log_std: Array, u: Array) -> Array:
    """Log-probabilities [N] of tanh(u), u = mean + std noise."""
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) loses no digits where tanh(u) rounds to 1.
    log_slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return -(0.5 * jnp.square(noise) + log_std + 0.5 * math.log(2 * math.pi) + log_slope).sum(-1)


Distribution = Categorical | MultiCategorical | DiagonalGaussian | StateDependentGaussian


def distribution_of(
    action: ActionSpec, log_std: Callable[[], np.ndarray], initial_log_std: float = 0.0, *, state_dependent_std: bool
) -> Distribution:
    """The distribution for a kind of action; `log_std` is of continuous ones where it is a parameter."""
    if action.kind == "continuous" and state_dependent_std:
        return StateDependentGaussian(action, initial_log_std)
    if action.kind == "continuous":
        return DiagonalGaussian(action, log_std)
    return Categorical(action) if action.kind == "discrete" else MultiCategorical(action)


def _of_choice(logits: Array, action: Array) -> tuple[Array, Array]:
    log_p = jax.nn.log_softmax(logits, -1)
    # A masked sum instead of indexing, whose gradient is a scatter that CPUs run row by row.
    taken = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None] == action.astype(jnp.int32)[:, None]
    return jnp.where(taken, log_p, 0.0).sum(-1), -(jnp.exp(log_p) * log_p).sum(-1)
