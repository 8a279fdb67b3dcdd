"""Conservative Q-learning on logged continuous actions, on soft actor-critic (Kumar et al., 2020, arXiv:2006.04779).

Q of sampled actions is pushed down and Q of logged actions up, so that the policy does not seek actions whose values
are guesses.

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, C critics, J sampled actions of each kind,
D dimensions of an action.
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline_continuous import CQLConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.flat import frozen_copy
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.learner import OfflineLearner
from lockstep.torch.offline.losses import discount_of, model_losses
from lockstep.torch.offline.noise import Noise
from lockstep.torch.offline.optimizer import STEP_METRICS, OfflineOptimizer, TargetNetworks
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.continuous_networks import ScoringCritics, SquashedGaussianActor
from lockstep.torch.value_losses import squared, td_target

_METRICS = (
    *VALUE_METRICS,
    "loss/conservative",
    "loss/policy",
    "policy/entropy",
    "policy/alpha",
    "policy/cql_alpha",
)
_MOST = 1e6
"""Largest learned weight of the penalty."""


class ContinuousCQL(OfflineLearner[ActorPolicy]):
    """Critics with a penalty, a squashed Gaussian policy and a temperature, in one gradient step with one message.

    All losses are evaluated at the parameters before the step. State across updates: `policy`, `target` and
    `optimizer`.

    Args:
        run: the config.
        policy: its `heads`, if any, are trained in the same step.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ActorPolicy, comm: Comm) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, CQLConfig) and isinstance(network.actor, SquashedGaussianActor)
        super().__init__(run, policy, comm)
        self.config, self.heads = config, heads
        self.actor, self.critics, self.weights = network.actor, network.critics, network.loss_weights
        size = policy.info.action_size
        self._uniform_log_density = -size * math.log(2.0)
        self._target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        with_target = [self.critics] if heads is None else [self.critics, heads.value]
        others = [self.actor, self.weights] if heads is None else [heads.reward, self.actor, self.weights]
        self._metrics = _METRICS if heads is None else (*_METRICS, "loss/reward", "loss/policy_value")
        self.target = TargetNetworks(with_target)
        # The sums of a gradient step: the rows' weight, then the metrics.
        num_sums = 1 + len(self._metrics)
        self.optimizer = OfflineOptimizer(run, self.loss, self.critics, [*with_target[1:], *others], comm, num_sums)
        self.target.follow(self.optimizer)
        self._frozen_critics = frozen_copy(self.critics, self.optimizer.flat.params.detach())
        self.metrics = Metrics([*self._metrics, *STEP_METRICS], comm.device)

    def update(self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch, as `OfflineDQN.update`; *collective*."""
        batches = [self.part_of(rows, k, progress.env_steps) for k, rows in enumerate(parts)]
        sums, caller_sums, skipped = self.optimizer.learn(batches, caller_sums, progress)
        if not skipped:
            self.target.move(self.config.target_rate)
        self.metrics.add(self._metrics, sums[1:-2], sums[0])
        self.optimizer.add_metrics(self.metrics, sums)
        return caller_sums

    def loss(self, batch: LoggedBatch, noise: Noise) -> tuple[Tensor, Tensor]:
        """The weighted *sum* of the losses of all networks over rows [N], and the sums of a gradient step.

        L = w sum_c ((y - Q_c(s, a))^2 / 2 + cql_alpha CQL_c(s, a)),  y = r + discount min_c Q'_c(s', a'), a' ~ pi(s')
          + w (alpha log pi(b | s) - min_c Q_c(s, b)),                b ~ pi(s)
          - w log alpha (log pi(b | s) + target_entropy)
          - w cql_alpha (mean_c CQL_c(s, a) - cql_gap),               if `cql_gap` is set
          + w losses of the models for estimates
        """
        c, weight = self.config, batch.weight
        alpha, cql_alpha = self.weights["log_alpha"].exp(), self._cql_alpha()
        normal = noise.normal
        with self._autocast:
            parameters, next_parameters = self.actor(batch.state).float(), self.actor(batch.next_state).float()
            action, log_prob = self.actor.sample_with_log_prob(parameters, normal[:, 0])
            with torch.no_grad():
                next_action = self.actor.sample(next_parameters, normal[:, 1])
                next_q = cast(ScoringCritics, self.target.networks[0])(batch.next_state, next_action).float().amin(0)
                y = td_target(c.reward_scale * batch.reward, discount_of(c, batch), next_q)
                sampled = self._sampled_actions(parameters, next_parameters, noise)
            q = self.critics(batch.state, batch.action).float()
            penalty = self._log_sum_exp(batch.state, *sampled) - q
            policy_q = self._frozen_critics(batch.state, action).float().amin(0)
            models = self._model_losses(batch, next_action)
        value_loss, mean_penalty = squared(y - q).sum(0), penalty.mean(0)
        actor_loss = alpha.detach() * log_prob - policy_q
        losses = [value_loss, cql_alpha.detach() * penalty.sum(0), actor_loss, *models]
        losses.append(-self.weights["log_alpha"] * (log_prob.detach() + self._target_entropy))
        if c.cql_gap is not None:
            losses.append(-cql_alpha * (mean_penalty.detach() - c.cql_gap))
        total = torch.dot(weight, torch.stack(losses).sum(0))
        metrics = [value_loss, q.mean(0), y, (y - q).abs().mean(0), mean_penalty, actor_loss, -log_prob]
        metrics += [alpha.expand_as(weight), cql_alpha.expand_as(weight), *models]
        return total, torch.stack([weight, *(weight * metric.detach() for metric in metrics)]).sum(1)

    def _cql_alpha(self) -> Tensor:
        """The weight of the penalty: fixed, or learned."""
        if self.config.cql_gap is None:
            return self.weights["log_alpha"].new_full((), self.config.cql_alpha)
        return self.weights["log_cql_alpha"].exp().clamp(max=_MOST)

    def _sampled_actions(self, parameters: Tensor, next_parameters: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Actions [N, 3 J, D] and their log-densities [N, 3 J]: uniform, of the policy in s, and in s'."""
        of_state, of_next = noise.normal[:, 2:].chunk(2, 1)
        drawn, log_prob = self.actor.sample_with_log_prob(parameters.unsqueeze(1), of_state)
        next_drawn, next_log_prob = self.actor.sample_with_log_prob(next_parameters.unsqueeze(1), of_next)
        uniform = torch.full_like(log_prob, self._uniform_log_density)
        return torch.cat([noise.uniform, drawn, next_drawn], 1), torch.cat([uniform, log_prob, next_log_prob], 1)

    def _log_sum_exp(self, state: Tensor, actions: Tensor, log_density: Tensor) -> Tensor:
        """Log sum_j exp(Q_c(s, a_j)) / p(a_j) [C, N]: importance weights correct for how a_j was drawn (appendix F)."""
        return (self.critics(state, actions).float() - log_density).logsumexp(-1)

    def _model_losses(self, batch: LoggedBatch, next_action: Tensor) -> list[Tensor]:
        """Losses [N] of the models for estimates; a greedy policy takes the mode in place of the sampled action."""
        if self.heads is None:
            return []
        with torch.no_grad():
            if self.policy.deterministic:
                next_action = self.policy.act(batch.next_state)
            following = cast(CandidateNetwork, self.target.networks[1]).of_one(batch.next_state, next_action).float()
        return model_losses(self.heads, batch, following, self.config)

    def part_of(self, rows: Rows, k: int, step: int) -> tuple[LoggedBatch, Noise]:
        """The rows of local shard `k`, and their random numbers."""
        count = self.config.num_sampled_actions
        return self.with_noise(rows, k, step, num_normal=2 + 2 * count, num_uniform=count)
