"""What a network's output says about actions. Drawing is numpy (environments live there), learning is torch.

Noise for a whole rollout is drawn at once; `sample` turns a step's noise into actions without further randomness.
Shapes: N rows, P parameters of the distribution, A choices, D dimensions of a continuous action.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.envs.spec import ActionSpec


class Categorical(nn.Module):
    """One choice among A: P = A logits. Actions are int64 [N]."""

    def __init__(self, action: ActionSpec) -> None:
        super().__init__()
        self.num_parameters = action.sizes[0]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Gumbel noise [*shape, A]."""
        return gumbel(generator, (*shape, self.num_parameters))

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """argmax(logits + Gumbel noise) is a draw from softmax(logits) (Gumbel, 1954)."""
        return (parameters + noise).argmax(-1)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The most likely action."""
        return parameters.argmax(-1)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log pi(a) = logit_a - log sum exp(logits), and H = -sum p log p; both [N]."""
        log_p = parameters.log_softmax(-1)
        return -F.nll_loss(log_p, action, reduction="none"), -(log_p.exp() * log_p).sum(-1)


class MultiCategorical(nn.Module):
    """Several independent choices: P = sum of their sizes. Actions are int64 [N, number of choices]."""

    def __init__(self, action: ActionSpec) -> None:
        super().__init__()
        self.sizes = list(action.sizes)
        self.num_parameters = sum(self.sizes)
        self._splits = list(np.cumsum(self.sizes)[:-1])

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Gumbel noise [*shape, P]."""
        return gumbel(generator, (*shape, self.num_parameters))

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Each choice as in `Categorical`."""
        return self.mode(parameters + noise)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The most likely choice of each."""
        return np.stack([part.argmax(-1) for part in np.split(parameters, self._splits, -1)], -1)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the independent choices; both [N]."""
        log_prob, entropy = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters[:, 0])
        for part, chosen in zip(torch.split(parameters, self.sizes, -1), action.unbind(-1), strict=True):
            log_p = part.log_softmax(-1)
            log_prob = log_prob - F.nll_loss(log_p, chosen, reduction="none")
            entropy = entropy - (log_p.exp() * log_p).sum(-1)
        return log_prob, entropy


class DiagonalGaussian(nn.Module):
    """D independent normal distributions: P = D means; the log deviations are parameters of their own.

    Actions are float32 [N, D], not clipped: what the environment clips is not what was drawn, and the log-probability
    is that of what was drawn.
    """

    def __init__(self, action: ActionSpec, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.num_parameters = action.sizes[0]
        self.log_std = nn.Parameter(torch.full((self.num_parameters,), initial_log_std))

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Mean + deviation * noise."""
        return parameters + np.exp(self.log_std.detach().cpu().numpy()) * noise

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The mean."""
        return parameters

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the D dimensions; both [N].

        log pi(a) = -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2
        H         = log std + (1 + log(2 pi)) / 2
        """
        scaled = (action - parameters) * (-self.log_std).exp()
        half_log_tau = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * scaled.square() + self.log_std + half_log_tau).sum(-1)
        return log_prob, (self.log_std + (0.5 + half_log_tau)).sum().expand(len(parameters))


Distribution = Categorical | MultiCategorical | DiagonalGaussian


def distribution_of(action: ActionSpec, initial_log_std: float = 0.0) -> Distribution:
    """The distribution for a kind of action."""
    if action.kind == "continuous":
        return DiagonalGaussian(action, initial_log_std)
    return Categorical(action) if action.kind == "discrete" else MultiCategorical(action)


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise, float32: -log of an exponential variate."""
    # Never 0: the smallest positive float32 keeps the logarithm finite.
    return -np.log(np.maximum(generator.standard_exponential(shape, dtype=np.float32), np.finfo(np.float32).tiny))
