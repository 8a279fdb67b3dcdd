"""Q-learning on logged data (Mnih et al., 2015; Levine et al., 2020, arXiv:2005.01643).

Actions have names, or are candidates: features, of which every row has its own list. The equations are the same for
both. `lockstep.torch.scoring.choices` has the maxima and sums over a row's actions.

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, A named actions, m candidates of all rows
together.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch import value_losses as losses
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.learner import OfflineLearner
from lockstep.torch.offline.losses import discount_of, imitation, outcome_losses
from lockstep.torch.offline.optimizer import STEP_METRICS, OfflineOptimizer, TargetNetworks
from lockstep.torch.scoring.choices import ActionMask, Choices
from lockstep.torch.scoring.networks import ConstrainedNetwork
from lockstep.torch.scoring.policy import ScoringPolicy

_ERROR = {"huber": losses.huber, "mse": losses.squared}


class OfflineDQN(OfflineLearner[ScoringPolicy]):
    """Q-learning with a target network, and models of the policy's value for the estimates.

    State across updates: `policy`, `target` and `optimizer`.

    Args:
        run: the config.
        policy: its `network` scores actions; its `heads`, if any, are trained in the same step.
        comm: the ranks.
        read: returns rows of the data with one reward each. Needed with `n_step` > 1 and `heads`, which learn from
            single steps whatever `n_step` is.
    """

    def __init__(
        self,
        run: OfflineRun,
        policy: ScoringPolicy,
        comm: Comm,
        read: Callable[[NDArray[np.int64]], Rows] | None = None,
    ) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, OfflineDQNConfig)
        super().__init__(run, policy, comm)
        self.config, self.heads = config, heads
        self.constrained = network if isinstance(network, ConstrainedNetwork) else None
        self.scores = network.scores if isinstance(network, ConstrainedNetwork) else network
        with_target = [self.scores]
        others = []
        self._q_metrics = (*VALUE_METRICS, "loss/conservative") if config.cql_alpha > 0 else VALUE_METRICS
        self._other_metrics: tuple[str, ...] = ()
        if self.constrained is not None:
            others = [self.constrained.behaviour]
            self._other_metrics = ("loss/behaviour",)
        if heads is not None:
            with_target = [*with_target, heads.value]
            others = [heads.reward, *others]
            self._other_metrics += ("loss/reward", "loss/policy_value")
        self.target = TargetNetworks(with_target)
        # The sums of a gradient step: the rows' weight, their weight in the loss of Q, then the losses.
        num_sums = 2 + len(self._q_metrics) + len(self._other_metrics)
        self.optimizer = OfflineOptimizer(run, self.loss, self.scores, [*with_target[1:], *others], comm, num_sums)
        self.target.follow(self.optimizer)
        boost = [config.reward_boost.get(name, 0.0) for name in policy.info.actions]
        self._boost = torch.tensor(boost, device=comm.device) if config.reward_boost else None
        self._read = read
        self.metrics = Metrics([*self._q_metrics, *self._other_metrics, *STEP_METRICS], comm.device)

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
        pairs = [self.part_of(rows, k, progress.env_steps) for k, rows in enumerate(parts)]
        sums, caller_sums, skipped = self.optimizer.learn(
            pairs, caller_sums, progress, score_weight_index=None if self.config.maxq else 1
        )
        if not skipped:
            self.target.move(self.config.target_rate)
        first = 2 + len(self._q_metrics)
        self.metrics.add(self._q_metrics, sums[2:first], sums[1])
        if self._other_metrics:
            self.metrics.add(self._other_metrics, sums[first:-2], sums[0])
        self.optimizer.add_metrics(self.metrics, sums)
        return caller_sums

    def part_of(self, rows: Rows, k: int, step: int) -> tuple[LoggedBatch, LoggedBatch]:
        """The rows of local shard `k`, and the same rows of one step each, if the models need them."""
        batch = LoggedBatch.of(rows, self.comm.device)
        if self.heads is None or self.config.n_step == 1:
            return batch, batch
        assert self._read is not None, "the heads learn from single steps, which `read` returns"
        return batch, LoggedBatch.of(self._read(rows.index), self.comm.device)

    def loss(self, batch: LoggedBatch, single: LoggedBatch) -> tuple[Tensor, Tensor]:
        """The weighted *sum* of the losses of all networks over rows [N], and the sums of a gradient step.

        L = w (l(y, Q(s, a)) + alpha CQL(s, a)) + w losses of other networks, which share no parameters with Q

        SARSA gives rows without a known next action the weight 0 in the loss of Q.

        Args:
            batch: rows, each of one or several steps.
            single: the same rows with one step, for the models of the policy's value.
        """
        c, weight = self.config, batch.weight
        with self._autocast:
            q, conservative = self._logged_q(batch)
            with torch.no_grad():
                same = single is batch
                choices, scores = self._next(batch, (c.maxq and c.double) or (same and self.heads is not None))
                y = self._target(batch, choices, scores)
                if self.heads is not None and not same:
                    choices, scores = self._next(single, with_scores=True)
            other_losses = self._other_losses(batch, single, choices, scores)
        if c.loss == "bce":  # -y log p - (1 - y) log(1 - p), p = sigmoid(q)
            row_loss, predicted = F.binary_cross_entropy_with_logits(q, y, reduction="none"), q.sigmoid()
        else:
            row_loss, predicted = _ERROR[c.loss](y - q), q
        q_metrics = [row_loss.detach(), predicted.detach(), y, (y - predicted.detach()).abs()]
        if conservative is not None:
            row_loss = row_loss + c.cql_alpha * conservative
            q_metrics.append(conservative.detach())
        q_weight = weight if c.maxq else weight * torch.maximum(batch.has_next_action, 1.0 - batch.not_terminal)
        sums = [
            weight,
            q_weight,
            *(q_weight * metric for metric in q_metrics),
            *(weight * loss.detach() for loss in other_losses),
        ]
        total = torch.dot(q_weight, row_loss)
        if other_losses:
            total = total + torch.dot(weight, torch.stack(other_losses).sum(0))
        return total, torch.stack(sums).sum(1)

    def _logged_q(self, batch: LoggedBatch) -> tuple[Tensor, Tensor | None]:
        """Q(s, a) of the logged action [N], and the CQL penalty [N] if there is one.

        CQL(s, a) = log sum_b exp Q(s, b) - Q(s, a), b possible (Kumar et al., 2020, arXiv:2006.04779, eq. 4).
        """
        if self.config.cql_alpha == 0:
            return self.scores.of_one(batch.state, batch.action).float(), None
        choices = batch.possible_actions
        scores = self.scores.of_choices(batch.state, choices).float()
        q = choices.pick(scores, batch.action_index)
        return q, choices.log_sum_exp(scores) - q

    def _next(self, batch: LoggedBatch, with_scores: bool) -> tuple[Choices, Tensor | None]:
        """The actions to choose among in the next state, and their Q of the online network [N, A] or [m]."""
        choices = batch.possible_next_actions
        if self.constrained is not None:
            assert isinstance(choices, ActionMask)
            choices = ActionMask(self.constrained.allowed(batch.next_state, choices.possible))
        return choices, self.scores.of_choices(batch.next_state, choices).float() if with_scores else None

    def _target(self, batch: LoggedBatch, choices: Choices, scores: Tensor | None) -> Tensor:
        """The target of Q(s, a): y = r + boost(a) + gamma^n Q'(s', a') [N].

        a' is argmax Q(s', .) over `choices` with `double`, else argmax Q'(s', .); for SARSA it is the logged action.
        """
        c, target = self.config, self.target.networks[0]
        if c.maxq:
            next_q = target.of_choices(batch.next_state, choices).float()
            next_q = choices.pick_best(next_q, next_q if scores is None or not c.double else scores)
        else:
            next_q = target.of_one(batch.next_state, batch.next_action).float()
        reward = batch.reward if self._boost is None else batch.reward + self._boost[batch.action]
        return losses.td_target(reward, discount_of(c, batch), next_q)

    def _other_losses(
        self, batch: LoggedBatch, single: LoggedBatch, choices: Choices, scores: Tensor | None
    ) -> list[Tensor]:
        """Losses [N] of the networks other than Q, in the order of `_other_metrics`."""
        found: list[Tensor] = []
        if self.constrained is not None:
            found.append(imitation(self.constrained.behaviour(batch.state), batch))
        if self.heads is not None:
            assert scores is not None
            found += outcome_losses(self.heads, self.target.networks[1], single, choices, scores, self.config)
        return found
