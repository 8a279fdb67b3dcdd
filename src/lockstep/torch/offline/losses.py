"""Losses that the algorithms on logged data share, per row, without a mean.

Shapes: N rows of a shard's part of a minibatch, A named actions, m candidates of all rows together, C outcomes (the
reward, then each metric).
"""

import torch
from torch import Tensor

from lockstep.algorithms.all import OfflineConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.optimizer import Scorer
from lockstep.torch.scoring.choices import Choices
from lockstep.torch.scoring.networks import OutcomeHeads
from lockstep.torch.value_losses import squared


def discount_of(config: OfflineConfig, batch: LoggedBatch) -> Tensor:
    """The discount of the next decision [N]: gamma ** steps, or gamma ** (time / unit); 0 after a terminal state."""
    exponent = batch.steps
    if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
        exponent = batch.time_diff / config.time_diff_unit
    return batch.not_terminal * config.gamma**exponent


def imitation(logits: Tensor, batch: LoggedBatch, smoothing: float = 0.0) -> Tensor:
    """-sum_a t(a) log softmax(logits)(a) over the possible actions [N].

    Args:
        logits: [N, A] or [m], of `batch.possible_actions`.
        batch: t is 1 for the logged action.
        smoothing: spread this part of t evenly over the possible actions (label smoothing; Szegedy et al., 2016).
    """
    log_p = batch.possible_actions.log_softmax(logits)
    row_loss = -batch.possible_actions.pick(log_p, batch.action_index)
    if smoothing == 0:
        return row_loss
    return (1.0 - smoothing) * row_loss - batch.possible_actions.spread_evenly(smoothing, log_p)


def outcome_losses(
    heads: OutcomeHeads,
    target: Scorer,
    batch: LoggedBatch,
    choices: Choices,
    scores: Tensor,
    config: OfflineDQNConfig | CloningConfig,
) -> list[Tensor]:
    """Losses [N] of the models of the reward and of the policy's value.

    With o = (reward, metrics), R(s, a) is fitted to o and Q_pi(s, a) to o + discount sum_a' pi(a' | s') Q'_pi(s', a').
    This is expected SARSA (van Seijen et al., 2009): Q_pi is the action value of the policy pi that is being learned.

    Args:
        heads: R and Q_pi.
        target: Q'_pi.
        batch: rows of one step.
        choices: the actions that pi may take in the next states.
        scores: of `choices`, by which pi chooses [N, A] or [m].
        config: `policy`, `temperature` and discount.
    """
    with torch.no_grad():
        following = choices.expected(target.of_choices(batch.next_state, choices).float(), scores, config)
    return model_losses(heads, batch, following, config)


def model_losses(heads: OutcomeHeads, batch: LoggedBatch, following: Tensor, config: OfflineConfig) -> list[Tensor]:
    """Losses [N] of R(s, a) and Q_pi(s, a), given E Q'_pi(s', .) of the policy in the next states [N, C]."""
    outcome = torch.cat([batch.reward.unsqueeze(-1), batch.metrics], -1)
    with torch.no_grad():
        goal = outcome + discount_of(config, batch).unsqueeze(-1) * following
    reward, value = (head.of_one(batch.state, batch.action).float() for head in (heads.reward, heads.value))
    return [squared(error).mean(-1) for error in (reward - outcome, value - goal)]
