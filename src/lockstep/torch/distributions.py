"""Action distributions: log-probabilities and entropies in torch, sampled in torch or numpy.

The numpy half is in `lockstep.experience.sampling`; `draw_noise_tensor` and `sample_tensor` are its twins in torch.

Shapes: N rows, P parameters of the distribution, A choices, D dimensions of a continuous action.
"""

import math
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.algorithms.sac import LOG_STD_RANGE
from lockstep.envs.spec import ActionSpec
from lockstep.experience import sampling

_SMALLEST_VARIATE = 2.0**-24
"""Of an exponential variate: a smaller one could let any action win, however unlikely."""


class Categorical(nn.Module, sampling.Categorical):
    """One choice among A: P = A logits. Actions are int64 [N]."""

    def __init__(self, action: ActionSpec) -> None:
        nn.Module.__init__(self)
        sampling.Categorical.__init__(self, action)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log pi(a) = logit_a - log sum exp(logits), and H = -sum p log p; both [N]."""
        log_p = parameters.log_softmax(-1)
        return -F.nll_loss(log_p, action, reduction="none"), -(log_p.exp() * log_p).sum(-1)

    def draw_noise_tensor(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Gumbel noise [*shape, A] on the generator's device."""
        return _gumbel(generator, (*shape, self.num_parameters))

    def sample_tensor(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """argmax(logits + Gumbel noise)."""
        return (parameters + noise).argmax(-1)


class MultiCategorical(nn.Module, sampling.MultiCategorical):
    """Several independent choices: P = sum of their sizes. Actions are int64 [N, number of choices]."""

    def __init__(self, action: ActionSpec) -> None:
        nn.Module.__init__(self)
        sampling.MultiCategorical.__init__(self, action)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the independent choices; both [N]."""
        log_prob, entropy = torch.zeros_like(parameters[:, 0]), torch.zeros_like(parameters[:, 0])
        for part, chosen in zip(torch.split(parameters, self.sizes, -1), action.unbind(-1), strict=True):
            log_p = part.log_softmax(-1)
            log_prob = log_prob - F.nll_loss(log_p, chosen, reduction="none")
            entropy = entropy - (log_p.exp() * log_p).sum(-1)
        return log_prob, entropy

    def draw_noise_tensor(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Gumbel noise [*shape, P] on the generator's device."""
        return _gumbel(generator, (*shape, self.num_parameters))

    def sample_tensor(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Each choice as in `Categorical`."""
        parts = torch.split(parameters + noise, self.sizes, -1)
        return torch.stack([part.argmax(-1) for part in parts], -1)


class DiagonalGaussian(nn.Module, sampling.DiagonalGaussian):
    """D independent normal distributions: P = D means; the log standard deviations are parameters of their own.

    Actions are float32 [N, D], not clipped: what the environment clips is not what was drawn, and the log-probability
    is that of what was drawn.
    """

    def __init__(self, action: ActionSpec, initial_log_std: float = 0.0) -> None:
        nn.Module.__init__(self)
        sampling.DiagonalGaussian.__init__(self, action, self._newest_log_std)
        self.log_std = nn.Parameter(torch.full((self.num_parameters,), initial_log_std))

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the D dimensions; both [N].

        log pi(a) = -((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2
        H         = log std + (1 + log(2 pi)) / 2
        """
        scaled = (action - parameters) * (-self.log_std).exp()
        half_log_tau = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * scaled.square() + self.log_std + half_log_tau).sum(-1)
        return log_prob, (self.log_std + (0.5 + half_log_tau)).sum().expand(len(parameters))

    def moments(self, parameters: Tensor) -> Tensor:
        """Means and log standard deviations of each row, [N, 2 D]."""
        return torch.cat([parameters, self.log_std.expand_as(parameters)], -1)

    def draw_noise_tensor(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Standard normal noise [*shape, D] on the generator's device."""
        return torch.randn((*shape, self.num_parameters), generator=generator, device=generator.device)

    def sample_tensor(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Mean + standard deviation * noise."""
        return torch.addcmul(parameters, self.log_std.exp(), noise)

    def _newest_log_std(self) -> np.ndarray:
        return self.log_std.detach().cpu().numpy()


class StateDependentGaussian(nn.Module, sampling.StateDependentGaussian):
    """D independent normal distributions: P = 2 D, means and log standard deviations.

    Actions are as in `DiagonalGaussian`.
    """

    def __init__(self, action: ActionSpec, initial_log_std: float) -> None:
        nn.Module.__init__(self)
        sampling.StateDependentGaussian.__init__(self, action, initial_log_std)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As in `DiagonalGaussian`, with the standard deviations of each row."""
        mean, log_std = self._split(parameters)
        scaled = (action - mean) * (-log_std).exp()
        half_log_tau = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * scaled.square() + log_std + half_log_tau).sum(-1)
        return log_prob, (log_std + (0.5 + half_log_tau)).sum(-1)

    def moments(self, parameters: Tensor) -> Tensor:
        """Means and log standard deviations of each row, [N, 2 D]."""
        return torch.cat(self._split(parameters), -1)

    def draw_noise_tensor(self, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
        """Standard normal noise [*shape, D] on the generator's device."""
        return torch.randn((*shape, self.width), generator=generator, device=generator.device)

    def sample_tensor(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Mean + standard deviation * noise."""
        mean, log_std = self._split(parameters)
        return torch.addcmul(mean, log_std.exp(), noise)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations."""
        return parameters[..., : self.width], parameters[..., self.width :] + self.initial_log_std


class SquashedGaussian(nn.Module, sampling.SquashedGaussian):
    """tanh of D independent normal distributions, scaled to the bounds: P = 2 D, means and log standard deviations.

    With u = mean + std e and e standard normal, the action scaled to [-1, 1] is tanh(u), and (Haarnoja et al., 2018,
    arXiv:1801.01290, appendix C)

    log pi(tanh(u)) = sum_d -e^2 / 2 - log std - log(2 pi) / 2 - log(1 - tanh(u)^2)
    """

    def __init__(self, action: ActionSpec) -> None:
        nn.Module.__init__(self)
        sampling.SquashedGaussian.__init__(self, action)

    def scaled_action_and_log_prob(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in [-1, 1], [N, D], from standard normal noise [N, D], and their log-probabilities [N]."""
        mean, log_std = self._split(parameters)
        u = torch.addcmul(mean, log_std.exp(), noise)
        return u.tanh(), self._log_prob(noise, log_std, u)

    def log_density(self, parameters: Tensor, action: Tensor, half_range: Tensor, at_bound: Tensor) -> Tensor:
        """The log-density of executed or logged actions [N, D], in the environment's units [N], float64; for estimates.

        log pi(center + half_range a) = log pi(a) - sum_d log half_range_d

        Near a bound many u have the same float32 action, so that u, and its density, cannot be found from it. There it
        is the logarithm of the probability of all u whose action is at the bound, which has no unit.

        Args:
            parameters: [N, 2 D].
            action: scaled to [-1, 1].
            half_range: half the distance between the bounds [D], float64.
            at_bound: the smallest magnitude of an action at a bound [D], float64.
        """
        mean, log_std = self._split(parameters.double())
        action, farthest = action.double(), at_bound.atanh()
        u = action.clamp(-at_bound, at_bound).atanh()
        each = ((u - mean) * (-log_std).exp(), log_std, u)
        inside = self._log_prob(*(number.unsqueeze(-1) for number in each)) - half_range.log()
        outwards = (action.sign() * mean - farthest) * (-log_std).exp()
        beyond = cast(Tensor, torch.special.log_ndtr(outwards))
        return torch.where(action.abs() >= at_bound, beyond, inside).sum(-1)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations."""
        return parameters[..., : self.width], parameters[..., self.width :].clamp(*LOG_STD_RANGE)

    def _log_prob(self, noise: Tensor, log_std: Tensor, u: Tensor) -> Tensor:
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) loses no digits where tanh(u) rounds to 1.
        log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
        return -(0.5 * noise.square() + log_std + 0.5 * math.log(2 * math.pi) + log_slope).sum(-1)


Distribution = Categorical | MultiCategorical | DiagonalGaussian | StateDependentGaussian


def distribution_of(
    action: ActionSpec, initial_log_std: float = 0.0, *, state_dependent_std: bool = False
) -> Distribution:
    """The distribution for a kind of action."""
    if action.kind == "continuous" and state_dependent_std:
        return StateDependentGaussian(action, initial_log_std)
    if action.kind == "continuous":
        return DiagonalGaussian(action, initial_log_std)
    return Categorical(action) if action.kind == "discrete" else MultiCategorical(action)


def gaussian_kl(moments: Tensor, others: Tensor) -> Tensor:
    """KL(p || q) [N] of normal distributions by their means and log standard deviations [N, 2 D], summed over D.

    KL = log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1 / 2
    """
    (mean, log_std), (other_mean, other_log_std) = moments.chunk(2, -1), others.chunk(2, -1)
    scaled = (mean - other_mean) * (-other_log_std).exp()
    log_ratio = log_std - other_log_std
    return (0.5 * ((2 * log_ratio).exp() + scaled.square() - 1.0) - log_ratio).sum(-1)


def _gumbel(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Standard Gumbel noise, as `lockstep.experience.sampling.gumbel`."""
    exponential = torch.empty(shape, device=generator.device).exponential_(generator=generator)
    return exponential.clamp_(min=_SMALLEST_VARIATE).log_().neg_()
