"""Implicit Q-learning on logged continuous actions (Kostrikov et al., 2021, arXiv:2110.06169).

No value of an action outside the log is ever computed: V is an expectile of Q over logged actions, and the policy
imitates those of them that are better than V.

Shapes: K shards of this process, N rows of a shard's part of a minibatch, C critics.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.experience.offline_noise import draw_noise
from lockstep.jax.comm import Comm
from lockstep.jax.flat import Params
from lockstep.jax.offline.batch import LoggedBatch, Part
from lockstep.jax.offline.learner import OfflineLearner
from lockstep.jax.offline.losses import discount_of, model_losses
from lockstep.jax.offline.optimizer import STEP_METRICS, OfflineOptimizer
from lockstep.jax.scoring.actor_policy import CRITICS, ActorPolicy
from lockstep.jax.value_losses import expectile, squared, td_target
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun

_METRICS = (
    *VALUE_METRICS,
    "loss/expectile",
    "value/advantage",
    "loss/policy",
    "policy/advantage_weight",
)


class IQL(OfflineLearner[ActorPolicy]):
    """Critics, the value of a state and a Gaussian policy, in one gradient step with one message.

    State across updates: that of `optimizer`, and `metrics`.

    Args:
        run: the config.
        policy: its models, if any, are trained in the same step.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ActorPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, IQLConfig)
        super().__init__(run, policy, comm)
        self.config = config
        self._metrics = (*_METRICS, "loss/reward", "loss/policy_value") if policy.has_models else _METRICS
        self.optimizer = OfflineOptimizer(
            run,
            policy.params,
            comm,
            self.loss,
            followed=[CRITICS, "heads.value"] if policy.has_models else [CRITICS],
            num_sums=1 + len(self._metrics),  # the rows' weight, then the metrics
        )
        self.metrics = MetricMeans([*self._metrics, *STEP_METRICS])

    def update(self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch, as `OfflineDQN.update`; *collective*."""
        sums, caller_sums = self.learn(parts, caller_sums, progress)
        self.metrics.add(self._metrics, sums[1:-2], sums[0])
        return caller_sums

    def part_of(self, rows: Rows, k: int, step: int) -> Part:
        """The rows of local shard `k`, and their random numbers."""
        shape = (len(rows), 1, rows.action.shape[1])
        normal, _ = draw_noise(self._seed, self.comm.world.shards[k], step, shape)
        return Part(LoggedBatch.of(rows), noise=normal[:, 0])

    def loss(self, params: Params, target: Params, part: Part) -> tuple[Array, Array]:
        """The weighted *sum* of the losses of all networks over rows [N], and the sums of a gradient step.

        L = w sum_c (y - Q_c(s, a))^2 / 2,  y = r + discount V(s')
          + w |expectile - 1{u < 0}| u^2,   u = min_c Q'_c(s, a) - V(s)
          - w min(exp(beta u), max_weight) log pi(a | s)
          + w losses of the models for estimates
        """
        c, policy, precision, batch = self.config, self.policy, self._precision, part.batch
        v = policy.value(params, batch.state, precision)
        next_v = policy.value(params, batch.next_state, precision)
        y = jax.lax.stop_gradient(td_target(c.reward_scale * batch.reward, discount_of(c, batch), next_v))
        target_q = policy.q(target, batch.state, batch.action, precision).min(0)
        advantage = jax.lax.stop_gradient(target_q - v)
        advantage_weight = jnp.minimum(jnp.exp(c.beta * advantage), c.max_weight)
        q = policy.q(params, batch.state, batch.action, precision)
        value_loss = squared(y[None] - q).sum(0)
        expectile_loss = expectile(target_q - v, c.expectile)
        actor_loss = -advantage_weight * policy.log_prob(params, batch.state, batch.action, precision)
        models = self._model_losses(params, target, part)
        metrics = [value_loss, q.mean(0), y, jnp.abs(y[None] - q).mean(0), expectile_loss]
        metrics += [advantage, actor_loss, advantage_weight, *models]
        rows = value_loss + expectile_loss + actor_loss + sum(models)
        sums = jnp.stack([batch.weight, *(batch.weight * metric for metric in metrics)]).sum(1)
        return jnp.dot(batch.weight, rows), sums

    def _model_losses(self, params: Params, target: Params, part: Part) -> list[Array]:
        """Losses [N] of the models for estimates, whose policy samples the next action if it is not greedy."""
        policy, precision, batch = self.policy, self._precision, part.batch
        if not policy.has_models:
            return []
        next_action = policy.act(params, batch.next_state, part.noise)
        following = jax.lax.stop_gradient(policy.outcomes(target, "value", batch.next_state, next_action, precision))
        reward, value = (
            policy.outcomes(params, head, batch.state, batch.action, precision) for head in ("reward", "value")
        )
        return model_losses(reward, value, following, batch, self.config)
