"""Q-learning on logged data, among named actions (Mnih et al., 2015; Levine et al., 2020, arXiv:2005.01643).

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, S state, A actions, M metrics.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.rows import Rows
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch import value_losses as losses
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch, check_rows, discount_of, imitation, outcomes
from lockstep.torch.offline.non_finite import locate_non_finite_logged
from lockstep.torch.offline.optimizer import EVERY_STEP, OfflineOptimizer, TargetNetworks
from lockstep.torch.offline.session import LoggedSession
from lockstep.torch.scoring.networks import ConstrainedNetwork, ScoreHeads, masked, probability
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream_seed

_Q = ("loss/value", "value/q", "value/target", "value/td_error")
_ERROR = {"huber": losses.huber, "mse": losses.squared}


class OfflineDQN:
    """Q-learning from logged rows, with a target network, and models of what the policy would get beside it.

    What lives across updates: `policy`, `target` and `optimizer`.

    Args:
        run: the config.
        policy: its `network` scores actions [N, S] to [N, A]; its `heads`, if any, are learned beside.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ScoringPolicy, comm: Comm) -> None:
        config, network = run.algorithm, policy.network
        assert isinstance(config, OfflineDQNConfig)
        self.config, self.policy, self.comm = config, policy, comm
        comm.broadcast_(policy)
        constrained = isinstance(network, ConstrainedNetwork)
        self.scores: nn.Module = network.scores if constrained else network
        self.constrained = network if constrained else None
        assert policy.heads is None or isinstance(policy.heads, ScoreHeads)
        self.heads = policy.heads
        followed = [self.scores, *([] if self.heads is None else [self.heads.value])]
        others = [] if self.heads is None else [self.heads.reward]
        others += [] if self.constrained is None else [self.constrained.behaviour]
        self.target = TargetNetworks(followed)
        self._of_q = (*_Q, *(("loss/conservative",) if config.cql_alpha > 0 else ()))
        self._of_others = ("loss/behaviour",) if constrained else ()
        self._of_others += ("loss/reward", "loss/policy_value") if self.heads is not None else ()
        # The sums of a gradient step: what rows weigh, what they weigh in the loss of Q, then the losses.
        num_sums = 2 + len(self._of_q) + len(self._of_others)
        self.descent = OfflineOptimizer(run, self.scores, [*followed[1:], *others], comm, num_sums)
        self.target.follow(self.descent)
        boost = [config.reward_boost.get(name, 0.0) for name in policy.info.actions]
        self._boost = torch.tensor(boost, device=comm.device) if config.reward_boost else None
        self.metrics = Metrics([*self._of_q, *self._of_others, *EVERY_STEP], comm.device)
        self._stops = run.non_finite == "stop"
        low = run.precision == "bfloat16"
        self._precision = torch.autocast(comm.device.type, torch.bfloat16) if low else contextlib.nullcontext()
        self._loss = torch.compile(self.loss, dynamic=False) if run.compile else self.loss

    def update(
        self, parts: Sequence[Rows], extra_sums: np.ndarray, progress: Progress, single: Sequence[Rows] | None = None
    ) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch; *collective*, one message.

        Args:
            parts: one for each local shard.
            extra_sums: [K, I] numbers that the caller wants summed over all shards with the same message.
            progress: how far the run is, these rows not counted.
            single: the same rows with the next decision after one step, if those of `parts` have several.

        Returns:
            The sums of `extra_sums` [I].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        device, descent = self.comm.device, self.descent
        batches = [LoggedBatch.of(part, device) for part in parts]
        ones = batches if single is None else [LoggedBatch.of(part, device) for part in single]
        descent.schedule(progress)
        for k, (batch, one) in enumerate(zip(batches, ones, strict=True)):
            descent.flat.zero_gradient_()
            loss, sums = self._loss(batch, one)
            loss.backward()
            descent.keep(k, sums, extra_sums)
        totals, statistics, skipped = descent.step(learned=None if self.config.maxq else 1)
        if skipped and self._stops:
            raise locate_non_finite_logged(
                self.comm, list(zip(batches, ones, strict=True)), progress, self.loss, descent.flat
            )
        if not skipped:
            self.target.move(self.config.target_rate)
        self._tell(totals)
        return statistics[: extra_sums.shape[1]]

    def loss(self, batch: LoggedBatch, one: LoggedBatch) -> tuple[Tensor, Tensor]:
        """The weighted *sum* over rows [N] of how far off all networks are, and sums to tell, two weights first.

        L = w (l(y, Q(s, a)) + alpha CQL(s, a)) + w losses of other networks, which share no parameters with Q

        SARSA gives rows whose next action is not known the weight 0 in the loss of Q.

        Args:
            batch: rows, perhaps of several steps.
            one: the same rows with one step, for the models of the policy's value.
        """
        c, weight = self.config, batch.weight
        with self._precision:
            scores = self.scores(batch.state).float()
            with torch.no_grad():
                ahead = self._ahead(batch)
                y = self._target(batch, *ahead)
                policy = probability(*(ahead if one is batch else self._ahead(one)), c)
            others = self._other_losses(batch, one, policy)
        q = losses.chosen(scores, batch.action)
        row, predicted = (losses.binary(q, y), q.sigmoid()) if c.loss == "bce" else (_ERROR[c.loss](y - q), q)
        of_q = [row.detach(), predicted.detach(), y, (y - predicted.detach()).abs()]
        if c.cql_alpha > 0:
            conservative = losses.conservative(masked(scores, batch.possible_actions), q)
            row = row + c.cql_alpha * conservative
            of_q.append(conservative.detach())
        learned = weight if c.maxq else weight * torch.maximum(batch.has_next_action, 1.0 - batch.not_terminal)
        totals = [
            weight,
            learned,
            *(learned * of_row for of_row in of_q),
            *(weight * of_row.detach() for of_row in others),
        ]
        total = torch.dot(learned, row)
        if others:
            total = total + torch.dot(weight, torch.stack(others).sum(0))
        return total, torch.stack(totals).sum(1)

    def _ahead(self, batch: LoggedBatch) -> tuple[Tensor, Tensor]:
        """At the next state: Q of the network that learns, and which actions to choose among; both [N, A]."""
        possible = batch.possible_next_actions
        if self.constrained is not None:
            possible = self.constrained.allowed(batch.next_state, possible)
        return self.scores(batch.next_state).float(), possible

    def _target(self, batch: LoggedBatch, scores: Tensor, possible: Tensor) -> Tensor:
        """What Q(s, a) should have been [N]: y = r + boost(a) + gamma^n Q'(s', a').

        a' = argmax Q(s', .) among the possible actions with `double`, else argmax Q'(s', .); for SARSA it is the log's.
        """
        c = self.config
        following = self.target.networks[0](batch.next_state).float()
        action = batch.next_action
        if c.maxq:
            action = masked(scores if c.double else following, possible).argmax(-1)
        reward = batch.reward if self._boost is None else batch.reward + self._boost[batch.action]
        return losses.td_target(reward, discount_of(c, batch), losses.chosen(following, action))

    def _other_losses(self, batch: LoggedBatch, one: LoggedBatch, policy: Tensor) -> list[Tensor]:
        """Losses of rows [N] of the networks beside that of Q, in the order of `_of_others`."""
        found: list[Tensor] = []
        if self.constrained is not None:
            found.append(imitation(self.constrained.behaviour(batch.state), batch))
        if self.heads is not None:
            found += outcomes(self.heads, self.target.networks[-1], one, policy, discount_of(self.config, one))
        return found

    def _tell(self, totals: Tensor) -> None:
        """Put the sums of a gradient step into the table."""
        first = 2 + len(self._of_q)
        self.metrics.add(self._of_q, totals[2:first], totals[1])
        if self._of_others:
            self.metrics.add(self._of_others, totals[first:-2], totals[0])
        self.descent.tell(self.metrics, totals)

    def warmup(self, rows: Rows, single: Rows | None) -> Callable[[], object]:
        """A gradient step on these rows, as a function: it sends nothing and changes nothing."""
        batch = LoggedBatch.of(rows, self.comm.device)
        one = batch if single is None else LoggedBatch.of(single, self.comm.device)
        return self.descent.warmup(lambda: self._loss(batch, one))

    def shared_tensors(self) -> dict[str, Tensor]:
        """Everything that must be equal on all ranks, in place: written into, it continues another run."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        return named | self.target.state() | self.descent.state() | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone: nothing."""
        return {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k`."""


def train(session: LoggedSession) -> None:
    """Read, learn, tell, until every row was learned from `run.epochs` times."""
    run, comm, timers = session.run, session.comm, session.timers
    config = run.algorithm
    assert isinstance(config, OfflineDQNConfig)
    reader, dataset = session.open_data(), session.dataset
    check_rows(run, dataset, comm, session.journal)
    policy = ScoringPolicy(session.about, stream_seed(run.seed, "init")).to(comm.device)
    dqn = OfflineDQN(run, policy, comm)
    session.begin(policy, None, dqn)
    dqn.target.move(1.0)  # it may have begun from another run's policy
    several = config.estimate and config.n_step > 1
    if run.compile:
        blank = dataset.rows(np.zeros(config.rows(comm.world.num_shards), np.int64))
        dqn.warmup(blank, dataset.rows(blank.index) if several else None)()
    progress = Progress(reader.total_rows)
    with session.training(progress, reader):
        while not session.over:
            parts, rows = reader.next()
            timers.enter(LEARN)
            single = [dataset.rows(part.index) for part in parts] if several else None
            totals = dqn.update(parts, session.local_statistics(), progress, single)
            timers.enter(OTHER)
            session.advance(rows, totals)
            if session.estimate_due(progress, rows):
                session.estimate()
            if progress.due(run.log_every, rows):
                session.log(dqn.metrics.read())
            if progress.due(run.evaluate_every, rows):
                session.evaluate()
            session.keep(rows)
        session.checkpoint_last(dqn.metrics.read)
