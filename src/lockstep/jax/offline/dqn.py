"""Q-learning on logged data with named actions (Mnih et al., 2015; Levine et al., 2020, arXiv:2005.01643).

Shapes: K shards of this process, N rows of a shard's part of a minibatch, A named actions.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.jax import value_losses as losses
from lockstep.jax.comm import Comm
from lockstep.jax.flat import Params
from lockstep.jax.offline.batch import LoggedBatch, Part
from lockstep.jax.offline.learner import OfflineLearner
from lockstep.jax.offline.losses import discount_of, model_losses
from lockstep.jax.offline.optimizer import STEP_METRICS, OfflineOptimizer
from lockstep.jax.scoring import choices
from lockstep.jax.scoring.scoring_policy import ScoringPolicy
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun

_ERROR = {"huber": losses.huber, "mse": losses.squared}


class OfflineDQN(OfflineLearner[ScoringPolicy]):
    """Q-learning with a target network, and models of the policy's value for the estimates.

    State across updates: that of `optimizer`, and `metrics`.

    Args:
        run: the config.
        policy: scores actions; its models, if any, are trained in the same step.
        comm: the ranks.
        read: returns rows of the data with one reward each. Needed with `n_step` > 1 and models, which learn from
            single steps whatever `n_step` is.
    """

    def __init__(
        self,
        run: OfflineRun,
        policy: ScoringPolicy,
        comm: Comm,
        read: Callable[[NDArray[np.int64]], Rows] | None = None,
    ) -> None:
        config = run.algorithm
        assert isinstance(config, OfflineDQNConfig)
        super().__init__(run, policy, comm)
        self.config = config
        self._read = read
        self._q_metrics = (*VALUE_METRICS, "loss/conservative") if config.cql_alpha > 0 else VALUE_METRICS
        self._other_metrics: tuple[str, ...] = ()
        followed = [policy.scores_name]
        if policy.behaviour_name is not None:
            self._other_metrics = ("loss/behaviour",)
        if policy.has_models:
            self._other_metrics += ("loss/reward", "loss/policy_value")
            followed.append("heads.value")
        # The sums of a gradient step: the rows' weight, their weight in the loss of Q, then the losses.
        self.optimizer = OfflineOptimizer(
            run,
            policy.params,
            comm,
            self.loss,
            followed=followed,
            num_sums=2 + len(self._q_metrics) + len(self._other_metrics),
            score_weight_index=0 if config.maxq else 1,
        )
        self.metrics = MetricMeans([*self._q_metrics, *self._other_metrics, *STEP_METRICS])
        boost = [config.reward_boost.get(name, 0.0) for name in policy.info.actions]
        self._boost = np.array(boost, np.float32)

    def update(self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch; *collective*, one message.

        Args:
            parts: one for each local shard.
            caller_sums: [K, I] numbers of the caller, summed over all shards in the same message.
            progress: of the run, before this step.

        Returns:
            The sums of `caller_sums` [I].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        sums, caller_sums = self.learn(parts, caller_sums, progress)
        first = 2 + len(self._q_metrics)
        self.metrics.add(self._q_metrics, sums[2:first], sums[1])
        self.metrics.add(self._other_metrics, sums[first:-2], sums[0])
        return caller_sums

    def part_of(self, rows: Rows, k: int, step: int) -> Part:
        """A shard's part of a minibatch; with the same rows of one step each, if the models need them."""
        batch = LoggedBatch.of(rows)
        if not self.policy.has_models or self.config.n_step == 1:
            return Part(batch)
        assert self._read is not None, "the models learn from single steps, which `read` returns"
        return Part(batch, single=LoggedBatch.of(self._read(rows.index)))

    def loss(self, params: Params, target: Params, part: Part) -> tuple[Array, Array]:
        """The weighted *sum* of the losses of all networks over rows [N], and the sums of a gradient step.

        L = w (l(y, Q(s, a)) + alpha CQL(s, a)) + w losses of other networks, which share no parameters with Q

        SARSA gives rows without a known next action the weight 0 in the loss of Q.

        Args:
            params: of all networks.
            target: of the target networks.
            part: rows, each of one or several steps.
        """
        c, batch, weight = self.config, part.batch, part.batch.weight
        scores = self.policy.q(params, batch.state, self._precision)
        q = losses.gather_actions(scores, batch.action)
        y = jax.lax.stop_gradient(self._target(params, target, batch))
        if c.loss == "bce":  # -y log p - (1 - y) log(1 - p), p = sigmoid(q)
            row_loss, predicted = -y * jax.nn.log_sigmoid(q) - (1.0 - y) * jax.nn.log_sigmoid(-q), jax.nn.sigmoid(q)
        else:
            row_loss, predicted = _ERROR[c.loss](y - q), q
        q_metrics = [row_loss, predicted, y, jnp.abs(y - predicted)]
        if c.cql_alpha > 0:
            # CQL(s, a) = log sum_b exp Q(s, b) - Q(s, a), b possible (Kumar et al., 2020, arXiv:2006.04779, eq. 4).
            conservative = choices.log_sum_exp(scores, batch.possible_actions) - q
            row_loss = row_loss + c.cql_alpha * conservative
            q_metrics.append(conservative)
        q_weight = weight if c.maxq else weight * jnp.maximum(batch.has_next_action, 1.0 - batch.not_terminal)
        others = self._other_losses(params, target, part)
        sums = [weight, q_weight, *(q_weight * one for one in q_metrics), *(weight * one for one in others)]
        total = jnp.dot(q_weight, row_loss) + sum(jnp.dot(weight, one) for one in others)
        return total, jnp.stack(sums).sum(1)

    def _next_choices(self, params: Params, batch: LoggedBatch) -> Array:
        """The actions to choose among in the next state: 1 or True [N, A]."""
        return self.policy.allowed(params, batch.next_state, batch.possible_next_actions, self._precision)

    def _target(self, params: Params, target: Params, batch: LoggedBatch) -> Array:
        """The target of Q(s, a): y = r + boost(a) + gamma^n Q'(s', a') [N].

        a' is argmax Q(s', .) with `double`, else argmax Q'(s', .); for SARSA it is the logged action.
        """
        c = self.config
        next_q = self.policy.q(target, batch.next_state, self._precision)
        if c.maxq:
            selector = self.policy.q(params, batch.next_state, self._precision) if c.double else next_q
            next_q = choices.pick_best(next_q, selector, self._next_choices(params, batch))
        else:
            next_q = losses.gather_actions(next_q, batch.next_action)
        reward = batch.reward
        if c.reward_boost:
            reward = reward + jnp.asarray(self._boost)[batch.action]
        return losses.td_target(reward, discount_of(c, batch), next_q)

    def _other_losses(self, params: Params, target: Params, part: Part) -> list[Array]:
        """Losses [N] of the networks other than Q, in the order of `_other_metrics`."""
        policy, precision, found = self.policy, self._precision, list[Array]()
        if policy.behaviour_name is not None:  # -log softmax(logits)(a) over the possible actions
            logits = policy.behaviour(params, part.batch.state, precision)
            log_p = choices.log_softmax(logits, part.batch.possible_actions)
            found.append(-losses.gather_actions(log_p, part.batch.action))
        if policy.has_models:
            batch = part.single_step
            values = policy.outcomes(target, "value", batch.next_state, precision)
            scores = policy.q(params, batch.next_state, precision)
            following = choices.expected(values, scores, self._next_choices(params, batch), self.config)
            reward, value = (
                losses.gather_actions(policy.outcomes(params, head, batch.state, precision), batch.action)
                for head in ("reward", "value")
            )
            found += model_losses(reward, value, jax.lax.stop_gradient(following), batch, self.config)
        return found
