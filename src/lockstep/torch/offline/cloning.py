"""Behaviour cloning: a policy that imitates the log, learned by maximum likelihood (Pomerleau, 1989).

It is the baseline for every other policy from the same log. Actions have names, or are candidates.

Shapes: K shards of this rank, N rows of a shard's part of a minibatch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import CloningConfig
from lockstep.data.rows import Rows
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.learner import OfflineLearner
from lockstep.torch.offline.losses import imitation, outcome_losses
from lockstep.torch.offline.optimizer import STEP_METRICS, OfflineOptimizer, TargetNetworks
from lockstep.torch.scoring.networks import ConstrainedNetwork
from lockstep.torch.scoring.policy import ScoringPolicy


class Cloning(OfflineLearner[ScoringPolicy]):
    """Maximum likelihood of the logged actions, and models of the cloned policy's value for the estimates.

    State across updates: `policy`, `target` and `optimizer`.

    Args:
        run: the config.
        policy: its `network` computes logits; its `heads`, if any, are trained in the same step.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ScoringPolicy, comm: Comm) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, CloningConfig) and not isinstance(network, ConstrainedNetwork)
        super().__init__(run, policy, comm)
        self.config, self.network, self.heads = config, network, heads
        self._metrics = ("loss/behaviour",) if heads is None else ("loss/behaviour", "loss/reward", "loss/policy_value")
        self.target = None if heads is None else TargetNetworks([heads.value])
        others = [] if heads is None else [heads.value, heads.reward]
        # The sums of a gradient step: the rows' weight, then the losses.
        self.optimizer = OfflineOptimizer(run, self.loss, network, others, comm, num_sums=1 + len(self._metrics))
        if self.target is not None and heads is not None:
            self.target.follow(self.optimizer, first=heads.value)
        self.metrics = Metrics([*self._metrics, *STEP_METRICS], comm.device)

    def update(self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch, as `OfflineDQN.update`; *collective*."""
        batches = [self.part_of(rows, k, progress.env_steps) for k, rows in enumerate(parts)]
        sums, caller_sums, skipped = self.optimizer.learn(batches, caller_sums, progress)
        if self.target is not None and not skipped:
            self.target.move(self.config.target_rate)
        self.metrics.add(self._metrics, sums[1:-2], sums[0])
        self.optimizer.add_metrics(self.metrics, sums)
        return caller_sums

    def part_of(self, rows: Rows, k: int, step: int) -> tuple[LoggedBatch]:
        """The rows of local shard `k`."""
        return (LoggedBatch.of(rows, self.comm.device),)

    def loss(self, batch: LoggedBatch) -> tuple[Tensor, Tensor]:
        """The weighted *sum* of the losses of all networks over rows [N], and the sums of a gradient step.

        L = -w sum_a t(a) log softmax(logits)(a) + w losses of other networks, which share no parameters
        """
        c, weight = self.config, batch.weight
        with self._autocast:
            logits = self.network.of_choices(batch.state, batch.possible_actions).float()
            losses = [imitation(logits, batch, c.label_smoothing)]
            if self.heads is not None and self.target is not None:
                choices = batch.possible_next_actions
                with torch.no_grad():
                    scores = self.network.of_choices(batch.next_state, choices).float()
                losses += outcome_losses(self.heads, self.target.networks[0], batch, choices, scores, c)
        total = torch.dot(weight, torch.stack(losses).sum(0))
        sums = [weight, *(weight * loss.detach() for loss in losses)]
        return total, torch.stack(sums).sum(1)
