"""Implicit Q-learning on logged continuous actions (Kostrikov et al., 2021, arXiv:2110.06169).

No value of an action outside the log is ever asked for: V is an expectile of Q over logged actions, and the policy
imitates those of them that are better than V.

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, C critics.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.learner import OfflineLearner
from lockstep.torch.offline.losses import discount_of, model_losses
from lockstep.torch.offline.noise import Noise
from lockstep.torch.offline.optimizer import STEP_METRICS, OfflineOptimizer, TargetNetworks
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.continuous_networks import GaussianActor, ScoringCritics
from lockstep.torch.value_losses import expectile, squared, td_target

_METRICS = (
    *VALUE_METRICS,
    "loss/expectile",
    "value/advantage",
    "loss/policy",
    "policy/advantage_weight",
)


class IQL(OfflineLearner[ActorPolicy]):
    """Critics, the value of a state and a Gaussian policy, in one gradient step with one message.

    State across updates: `policy`, `target` and `optimizer`.

    Args:
        run: the config.
        policy: its `heads`, if any, are trained in the same step.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ActorPolicy, comm: Comm) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, IQLConfig) and isinstance(network.actor, GaussianActor) and network.value is not None
        super().__init__(run, policy, comm)
        self.config, self.heads = config, heads
        self.actor, self.critics, self.value = network.actor, network.critics, network.value
        with_target = [self.critics] if heads is None else [self.critics, heads.value]
        others = [self.value, self.actor] if heads is None else [heads.reward, self.value, self.actor]
        self._metrics = _METRICS if heads is None else (*_METRICS, "loss/reward", "loss/policy_value")
        self.target = TargetNetworks(with_target)
        # The sums of a gradient step: the rows' weight, then the metrics.
        num_sums = 1 + len(self._metrics)
        self.optimizer = OfflineOptimizer(run, self.loss, self.critics, [*with_target[1:], *others], comm, num_sums)
        self.target.follow(self.optimizer)
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

        L = w sum_c (y - Q_c(s, a))^2 / 2,  y = r + discount V(s')
          + w |expectile - 1{u < 0}| u^2,   u = min_c Q'_c(s, a) - V(s)
          - w min(exp(beta u), max_weight) log pi(a | s)
          + w losses of the models for estimates
        """
        c, weight = self.config, batch.weight
        with self._autocast:
            v = self.value(batch.state).squeeze(-1).float()
            with torch.no_grad():
                target_critics = cast(ScoringCritics, self.target.networks[0])
                target_q = target_critics(batch.state, batch.action).float().amin(0)
                next_v = self.value(batch.next_state).squeeze(-1).float()
                y = td_target(c.reward_scale * batch.reward, discount_of(c, batch), next_v)
                advantage = target_q - v
                advantage_weight = (c.beta * advantage).exp().clamp(max=c.max_weight)
            q = self.critics(batch.state, batch.action).float()
            log_prob = self.actor.log_prob(self.actor(batch.state).float(), batch.action)
            models = self._model_losses(batch, noise)
        value_loss = squared(y - q).sum(0)
        expectile_loss = expectile(target_q - v, c.expectile)
        actor_loss = -advantage_weight * log_prob
        total = torch.dot(weight, torch.stack([value_loss, expectile_loss, actor_loss, *models]).sum(0))
        metrics = [value_loss, q.mean(0), y, (y - q).abs().mean(0), expectile_loss]
        metrics += [advantage, actor_loss, advantage_weight, *models]
        return total, torch.stack([weight, *(weight * metric.detach() for metric in metrics)]).sum(1)

    def _model_losses(self, batch: LoggedBatch, noise: Noise) -> list[Tensor]:
        """Losses [N] of the models for estimates, whose policy samples the next action if it is not greedy."""
        if self.heads is None:
            return []
        with torch.no_grad():
            next_action = self.policy.act(batch.next_state, noise.normal[:, 0])
            following = cast(CandidateNetwork, self.target.networks[1]).of_one(batch.next_state, next_action).float()
        return model_losses(self.heads, batch, following, self.config)

    def part_of(self, rows: Rows, k: int, step: int) -> tuple[LoggedBatch, Noise]:
        """The rows of local shard `k`, and their random numbers."""
        return self.with_noise(rows, k, step, num_normal=1)
