"""Q-learning on logged data, among candidates: actions that are features, of which every row has its own list.

One network scores a state and a candidate together (Gauci et al., 2018, arXiv:1811.00260, section 5.2).

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, S state, M metrics, m candidates of all rows
together.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.rows import Rows
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch import value_losses as losses
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import check_rows, discount_of
from lockstep.torch.offline.non_finite import locate_non_finite_logged
from lockstep.torch.offline.optimizer import EVERY_STEP, OfflineOptimizer, TargetNetworks
from lockstep.torch.offline.parametric_batch import ParametricBatch
from lockstep.torch.offline.session import LoggedSession
from lockstep.torch.scoring import ragged
from lockstep.torch.scoring.candidates import CandidateHeads, CandidateNetwork
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream_seed

_Q = ("loss/value", "value/q", "value/target", "value/td_error")
_ERROR = {"huber": losses.huber, "mse": losses.squared}


class ParametricDQN:
    """Q-learning from logged rows, with a target network, and models of what the policy would get beside it.

    What lives across updates: `policy`, `target` and `descent`.

    Args:
        run: the config.
        policy: its `network` scores candidates; its `heads`, if any, are learned beside.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ScoringPolicy, comm: Comm) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, OfflineDQNConfig) and isinstance(network, CandidateNetwork)
        assert heads is None or isinstance(heads, CandidateHeads)
        self.config, self.policy, self.comm, self.scores, self.heads = config, policy, comm, network, heads
        comm.broadcast_(policy)
        followed = [network, *([] if heads is None else [heads.value])]
        self.target = TargetNetworks(followed)
        self._of_q = (*_Q, *(("loss/conservative",) if config.cql_alpha > 0 else ()))
        self._of_others = ("loss/reward", "loss/policy_value") if heads is not None else ()
        # The sums of a gradient step: what rows weigh, what they weigh in the loss of Q, then the losses.
        num_sums = 2 + len(self._of_q) + len(self._of_others)
        others = [*followed[1:], *([] if heads is None else [heads.reward])]
        self.descent = OfflineOptimizer(run, network, others, comm, num_sums)
        self.target.follow(self.descent)
        self.metrics = Metrics([*self._of_q, *self._of_others, *EVERY_STEP], comm.device)
        self._stops = run.non_finite == "stop"
        low = run.precision == "bfloat16"
        self._precision = torch.autocast(comm.device.type, torch.bfloat16) if low else contextlib.nullcontext()
        # No two batches have equally many candidates.
        self._loss = torch.compile(self.loss, dynamic=True) if run.compile else self.loss

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
        batches = [ParametricBatch.of(part, device) for part in parts]
        ones = batches if single is None else [ParametricBatch.of(part, device) for part in single]
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

    def loss(self, batch: ParametricBatch, one: ParametricBatch) -> tuple[Tensor, Tensor]:
        """The weighted *sum* over rows [N] of how far off all networks are, and sums to tell, two weights first.

        L = w (l(y, Q(s, a)) + alpha CQL(s, a)) + w losses of other networks, which share no parameters with Q

        SARSA gives rows whose next action is not known the weight 0 in the loss of Q.

        Args:
            batch: rows, perhaps of several steps.
            one: the same rows with one step, for the models of the policy's value.
        """
        c, weight = self.config, batch.weight
        with self._precision:
            q, conservative = self._scores(batch)
            with torch.no_grad():
                judged = (c.maxq and c.double) or (one is batch and self.heads is not None)
                ahead = self._ahead(batch) if judged else None
                y = self._target(batch, ahead)
            others = self._outcomes(one, ahead if one is batch else None)
        row, predicted = (losses.binary(q, y), q.sigmoid()) if c.loss == "bce" else (_ERROR[c.loss](y - q), q)
        of_q = [row.detach(), predicted.detach(), y, (y - predicted.detach()).abs()]
        if conservative is not None:
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

    def _scores(self, batch: ParametricBatch) -> tuple[Tensor, Tensor | None]:
        """Q(s, a) of what was done [N]; and what CQL adds, if anything: log sum_j exp Q(s, a_j) - Q(s, a) [N]."""
        if not self.config.cql_alpha:
            return self.scores.of_one(batch.state, batch.action).float(), None
        lists = batch.possible_actions
        scores = self.scores.of_lists(batch.state, lists).float()
        q = ragged.pick(scores, ragged.taken(lists, batch.action_index))
        return q, ragged.log_sum_exp(scores, lists) - q

    def _ahead(self, batch: ParametricBatch) -> Tensor:
        """Q of the network that learns, of all candidates of the next rows [m]."""
        return self.scores.of_lists(batch.next_state, batch.possible_next_actions).float()

    def _target(self, batch: ParametricBatch, ahead: Tensor | None) -> Tensor:
        """What Q(s, a) should have been [N]: y = r + gamma^n Q'(s', a').

        a' = argmax_j Q(s', a_j) over the candidates of the next row with `double`, else argmax_j Q'(s', a_j); for SARSA
        it is the log's.
        """
        c, target = self.config, cast(CandidateNetwork, self.target.networks[0])
        if c.maxq:
            lists = batch.possible_next_actions
            theirs = target.of_lists(batch.next_state, lists).float()
            judge = ahead if c.double and ahead is not None else theirs
            following = ragged.pick(theirs, ragged.first_largest(judge, lists))
        else:
            following = target.of_one(batch.next_state, batch.next_action).float()
        return losses.td_target(batch.reward, discount_of(c, batch), following)

    def _outcomes(self, one: ParametricBatch, ahead: Tensor | None) -> list[Tensor]:
        """Losses of rows [N] of the heads, if there are any."""
        if self.heads is None:
            return []
        with torch.no_grad():
            ahead = self._ahead(one) if ahead is None else ahead
        target = cast(CandidateNetwork, self.target.networks[1])
        return candidate_outcomes(self.heads, target, one, ahead, self.config)

    def _tell(self, totals: Tensor) -> None:
        """Put the sums of a gradient step into the table."""
        first = 2 + len(self._of_q)
        self.metrics.add(self._of_q, totals[2:first], totals[1])
        if self._of_others:
            self.metrics.add(self._of_others, totals[first:-2], totals[0])
        self.descent.tell(self.metrics, totals)

    def warmup(self, rows: Rows, single: Rows | None) -> Callable[[], object]:
        """A gradient step on these rows, as a function: it sends nothing and changes nothing."""
        batch = ParametricBatch.of(rows, self.comm.device)
        one = batch if single is None else ParametricBatch.of(single, self.comm.device)
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


def candidate_outcomes(
    heads: CandidateHeads,
    target: CandidateNetwork,
    one: ParametricBatch,
    scores: Tensor,
    config: OfflineDQNConfig | CloningConfig,
) -> list[Tensor]:
    """Losses of the models of what comes of a candidate, of rows [N]: as `logged.outcomes` has them.

    Args:
        heads: R and V.
        target: V'.
        one: rows of one step.
        scores: of the candidates of the next rows [m], by which the policy chooses.
        config: `policy`, `temperature` and discount.
    """
    outcome, lists = torch.cat([one.reward.unsqueeze(-1), one.metrics], -1), one.possible_next_actions
    with torch.no_grad():
        following = ragged.expected(target.of_lists(one.next_state, lists).float(), scores, lists, config)
        goal = outcome + discount_of(config, one).unsqueeze(-1) * following
    reward, value = (head.of_one(one.state, one.action).float() for head in (heads.reward, heads.value))
    return [losses.squared(error).mean(-1) for error in (reward - outcome, value - goal)]


def train(session: LoggedSession) -> None:
    """Read, learn, tell, until every row was learned from `run.epochs` times."""
    run, comm, timers = session.run, session.comm, session.timers
    config = run.algorithm
    assert isinstance(config, OfflineDQNConfig)
    reader, dataset = session.open_data(), session.dataset
    check_rows(run, dataset, comm, session.journal)
    policy = ScoringPolicy(session.about, stream_seed(run.seed, "init")).to(comm.device)
    dqn = ParametricDQN(run, policy, comm)
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
