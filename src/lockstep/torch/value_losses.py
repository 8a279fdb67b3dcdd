"""Targets and losses of Q-learning, per row.

Shapes: N rows, A actions, Z points of a return's distribution (atoms of C51, quantiles of QR-DQN). A reward here is the
sum gamma^k r_k of the n rewards before the target bootstraps, a discount gamma^n, or 0 where the episode terminated
within them. Compute targets under `torch.no_grad()`.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def gather_actions(outputs: Tensor, action: Tensor) -> Tensor:
    """The outputs [N, A] or [N, A, Z] of the action of each row [N]; [N] or [N, Z]."""
    index = action.view(-1, 1, *[1] * (outputs.ndim - 2))
    return outputs.gather(1, index.expand(-1, 1, *outputs.shape[2:])).squeeze(1)


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """The target of Q(s, a): y = r + discount Q'(s', a'), all [N].

    Q-learning takes a' = argmax Q' (Mnih et al., 2015), double Q-learning a' = argmax Q of the online network (van
    Hasselt et al., 2016, arXiv:1509.06461). Quantiles [N, Z] of the next return become those of r + discount Z'
    (Dabney et al., 2018, arXiv:1710.10044, algorithm 1).
    """
    if next_q.ndim > 1:
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    return reward + discount * next_q


def squared(error: Tensor) -> Tensor:
    """L = e^2 / 2."""
    return 0.5 * error.square()


def expectile(error: Tensor, tau: float) -> Tensor:
    """L = |tau - 1{e < 0}| e^2, whose minimum over targets is their tau-expectile (Newey and Powell, 1987)."""
    return torch.where(error < 0, 1.0 - tau, tau) * error.square()


def huber(error: Tensor, kappa: float = 1.0) -> Tensor:
    """L = e^2 / 2 within kappa, kappa (|e| - kappa / 2) beyond (Huber, 1964)."""
    return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)


def quantile_huber(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss of QR-DQN (Dabney et al., 2018, arXiv:1710.10044, eq. 10), [N].

    u_ij = targets_j - quantiles_i,  tau_i = (i + 1/2) / Z
    L    = sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) / kappa

    Args:
        quantiles: theta of the chosen action [N, Z]; learned.
        targets: those of the target [N, Z'].
        kappa: where the Huber loss becomes linear.
    """
    count = quantiles.shape[-1]
    tau = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    error = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)
    weight = (tau.unsqueeze(-1) - (error.detach() < 0).to(tau.dtype)).abs()
    return (weight * huber(error, kappa)).mean(-1).sum(-1) / kappa


def categorical_projection(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """The distribution of r + discount Z on the atoms of Z (C51; Bellemare et al., 2017, arXiv:1707.06887, eq. 7).

    m_j = sum_i max(0, 1 - |clip(r + discount z_i, z_1, z_Z) - z_j| / (z_2 - z_1)) p_i

    Args:
        probability: p of each atom at the next state, for the action taken there [N, Z].
        reward: r [N].
        discount: 0 puts all mass where r is [N].
        support: atoms z, rising in equal steps [Z].

    Returns:
        m [N, Z]; the rows have the sums of the rows of `probability`.
    """
    last = len(support) - 1
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support
    # In units of atoms: a mass exactly on an atom needs no special case.
    place = ((moved - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)
    atoms = torch.arange(last + 1, dtype=place.dtype, device=place.device)
    near = (1.0 - (place.unsqueeze(-2) - atoms.unsqueeze(-1)).abs()).clamp(min=0.0)
    # Not a matrix product, whose precision and order of additions depend on the device.
    return (near * probability.unsqueeze(-2)).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_j target_j log softmax(logits)_j, of [N, Z] each: the loss of C51 (Bellemare et al., 2017), [N]."""
    return -(target * logits.log_softmax(-1)).sum(-1)
