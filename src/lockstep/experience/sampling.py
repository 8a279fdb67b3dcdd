"""Sampling actions in numpy, without a framework.

Noise for a whole rollout is drawn at once; `sample` turns a step's noise into actions without further randomness.
Shapes: P parameters of the distribution, A choices, D dimensions of a continuous action.
"""

from collections.abc import Callable

import numpy as np

from lockstep.algorithms.sac import LOG_STD_RANGE
from lockstep.envs.spec import ActionSpec

_SMALLEST_VARIATE = np.float32(2.0**-24)


class Categorical:
    """One choice among A: P = A logits. Actions are int64 [...]."""

    def __init__(self, action: ActionSpec) -> None:
        self.num_parameters = action.sizes[0]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Gumbel noise [*shape, P]."""
        return gumbel(generator, (*shape, self.num_parameters))

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """argmax(logits + Gumbel noise) is a draw from softmax(logits) (Gumbel, 1954)."""
        return self.mode(parameters + noise)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The most likely action."""
        return parameters.argmax(-1)


class MultiCategorical(Categorical):
    """Several independent choices: P = sum of their sizes. Actions are int64 [..., number of choices]."""

    def __init__(self, action: ActionSpec) -> None:
        self.sizes = list(action.sizes)
        self.num_parameters = sum(self.sizes)
        self._splits = list(np.cumsum(self.sizes)[:-1])

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The most likely choice of each."""
        return np.stack([part.argmax(-1) for part in np.split(parameters, self._splits, -1)], -1)


class DiagonalGaussian:
    """D independent normal distributions: P = D means. Actions are float32 [..., D], not clipped.

    Args:
        action: of the task.
        log_std: gives the log standard deviations [D] as they are now.
    """

    def __init__(self, action: ActionSpec, log_std: Callable[[], np.ndarray]) -> None:
        self.num_parameters = action.sizes[0]
        self._log_std = log_std

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Mean + standard deviation * noise."""
        return parameters + np.exp(self._log_std()) * noise

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The mean."""
        return parameters

    def mean_and_log_std(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation of each number, [..., D] each."""
        return parameters, np.broadcast_to(self._log_std(), parameters.shape).copy()


class StateDependentGaussian:
    """D independent normal distributions: P = 2 D, means and log standard deviations.

    Actions are as in `DiagonalGaussian`.

    Args:
        action: of the task.
        initial_log_std: added to the log standard deviations, which begin near 0.
    """

    def __init__(self, action: ActionSpec, initial_log_std: float) -> None:
        self.width = action.sizes[0]
        self.num_parameters = 2 * self.width
        self.initial_log_std = initial_log_std

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.width), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Mean + standard deviation * noise."""
        mean, log_std = self.mean_and_log_std(parameters)
        return mean + np.exp(log_std) * noise

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The mean."""
        return parameters[..., : self.width]

    def mean_and_log_std(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation of each number, [..., D] each."""
        return parameters[..., : self.width], parameters[..., self.width :] + np.float32(self.initial_log_std)


class SquashedGaussian:
    """tanh of D independent normal distributions, scaled to the bounds: P = 2 D, means and log standard deviations.

    Args:
        action: of the task; every dimension needs finite bounds.
    """

    def __init__(self, action: ActionSpec) -> None:
        self.width = action.sizes[0]
        self.num_parameters = 2 * self.width
        self.center, self.half_range = center_and_half_range(action)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.width), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Center + half range * tanh(mean + standard deviation * noise)."""
        std = np.exp(np.clip(parameters[..., self.width :], *LOG_STD_RANGE))
        return self.center + self.half_range * np.tanh(parameters[..., : self.width] + std * noise)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The action of the normal distribution's mean: center + half range * tanh(mean)."""
        return self.center + self.half_range * np.tanh(parameters[..., : self.width])


class NoisyDeterministic:
    """One action per observation, tanh(parameters) scaled to the bounds, and normal noise to explore: P = D.

    Args:
        action: of the task; every dimension needs finite bounds.
        std: standard deviation of the noise, for actions scaled to [-1, 1].
    """

    def __init__(self, action: ActionSpec, std: float) -> None:
        self.num_parameters = action.sizes[0]
        self.std = np.float32(std)
        self.center, self.half_range = center_and_half_range(action)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Center + half range * (tanh(parameters) + std * noise), clipped to the bounds."""
        return self.center + self.half_range * np.clip(np.tanh(parameters) + self.std * noise, -1.0, 1.0)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """Center + half range * tanh(parameters)."""
        return self.center + self.half_range * np.tanh(parameters)

    def mean_and_log_std(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation of each number before it is clipped, [..., D] each."""
        return self.mode(parameters), np.broadcast_to(np.log(self.std * self.half_range), parameters.shape).copy()


class ClippedGaussian:
    """D independent normal distributions, clipped to [-1, 1] and scaled to the bounds: P = 2 D.

    The parameters are means and log standard deviations of the scaled actions.

    Args:
        action: of the task; every dimension needs finite bounds.
        deterministic: take the mean always.
    """

    def __init__(self, action: ActionSpec, *, deterministic: bool) -> None:
        self.width = action.sizes[0]
        self.num_parameters = 2 * self.width
        self.deterministic = deterministic
        self.center, self.half_range = center_and_half_range(action)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.width), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Center + half range * (mean + standard deviation * noise), clipped to the bounds."""
        if self.deterministic:
            return self.mode(parameters)
        scaled = parameters[..., : self.width] + np.exp(parameters[..., self.width :]) * noise
        return self.center + self.half_range * np.clip(scaled, -1.0, 1.0)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """Center + half range * mean."""
        return self.center + self.half_range * parameters[..., : self.width]


def center_and_half_range(action: ActionSpec) -> tuple[np.ndarray, np.ndarray]:
    """(high + low) / 2 and (high - low) / 2 of continuous actions, [D] float32: they map [-1, 1] to the bounds."""
    low, high = np.array(action.low), np.array(action.high)
    return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise, float32, at most 16.7: -log of an exponential variate."""
    # One in 2**23 of numpy's float32 variates is 0, in place of about 2**-24. Its logarithm would let any action
    # win, however unlikely.
    return -np.log(np.maximum(generator.standard_exponential(shape, dtype=np.float32), _SMALLEST_VARIATE))
