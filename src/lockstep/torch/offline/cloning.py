"""Behaviour cloning: a policy that does what the log does, learned by maximum likelihood (Pomerleau, 1989).

It is what any other policy from the same log has to beat. Actions have names, or are candidates.

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, A actions, m candidates of all rows together.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import CloningConfig
from lockstep.data.rows import Rows
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch, discount_of, imitation, outcomes
from lockstep.torch.offline.non_finite import locate_non_finite_logged
from lockstep.torch.offline.optimizer import EVERY_STEP, OfflineOptimizer, TargetNetworks
from lockstep.torch.offline.parametric_batch import ParametricBatch
from lockstep.torch.offline.parametric_dqn import candidate_outcomes
from lockstep.torch.offline.session import LoggedSession
from lockstep.torch.scoring import ragged
from lockstep.torch.scoring.candidates import CandidateHeads, CandidateNetwork
from lockstep.torch.scoring.networks import ScoreHeads, probability
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream_seed

_OTHERS = ("loss/reward", "loss/policy_value")


class Cloning:
    """Maximum likelihood of the logged actions, and models of what the cloned policy would get beside it.

    What lives across updates: `policy`, `target` and the optimizer.

    Args:
        run: the config.
        policy: its `network` gives logits; its `heads`, if any, are learned beside.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ScoringPolicy, comm: Comm) -> None:
        config, heads = run.algorithm, policy.heads
        assert isinstance(config, CloningConfig)
        self.config, self.policy, self.comm, self.network, self.heads = config, policy, comm, policy.network, heads
        comm.broadcast_(policy)
        self._names = ("loss/behaviour", *(_OTHERS if heads is not None else ()))
        self.target = None if heads is None else TargetNetworks([heads.value])
        self.descent = OfflineOptimizer(
            run, policy.network, [] if heads is None else [heads.value, heads.reward], comm, 1 + len(self._names)
        )
        if self.target is not None and heads is not None:
            self.target.follow(self.descent, first=heads.value)
        self.metrics = Metrics([*self._names, *EVERY_STEP], comm.device)
        self._stops = run.non_finite == "stop"
        low = run.precision == "bfloat16"
        self._precision = torch.autocast(comm.device.type, torch.bfloat16) if low else contextlib.nullcontext()
        self._loss = torch.compile(self.loss, dynamic=policy.action is not None) if run.compile else self.loss

    def update(self, parts: Sequence[Rows], extra_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch; *collective*, one message.

        Args:
            parts: one for each local shard.
            extra_sums: [K, I] numbers that the caller wants summed over all shards with the same message.
            progress: how far the run is, these rows not counted.

        Returns:
            The sums of `extra_sums` [I].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        batches = [self._batch(part) for part in parts]
        self.descent.schedule(progress)
        for k, batch in enumerate(batches):
            self.descent.flat.zero_gradient_()
            loss, sums = self._loss(batch)
            loss.backward()
            self.descent.keep(k, sums, extra_sums)
        totals, statistics, skipped = self.descent.step()
        if skipped and self._stops:
            given = [(batch,) for batch in batches]
            raise locate_non_finite_logged(self.comm, given, progress, self.loss, self.descent.flat)
        if self.target is not None and not skipped:
            self.target.move(self.config.target_rate)
        self.metrics.add(self._names, totals[1:-2], totals[0])
        self.descent.tell(self.metrics, totals)
        return statistics[: extra_sums.shape[1]]

    def loss(self, batch: LoggedBatch | ParametricBatch) -> tuple[Tensor, Tensor]:
        """The weighted *sum* over rows [N] of how unlikely the logged actions are, and sums to tell, the weight first.

        L = -w sum_a t(a) log softmax(logits)(a) + w losses of the models beside, which share no parameters
        """
        with self._precision:
            rows = self._rows(batch) if isinstance(batch, LoggedBatch) else self._rows_of_candidates(batch)
        total = torch.dot(batch.weight, torch.stack(rows).sum(0))
        totals = [batch.weight, *(batch.weight * row.detach() for row in rows)]
        return total, torch.stack(totals).sum(1)

    def _batch(self, part: Rows) -> LoggedBatch | ParametricBatch:
        kind = LoggedBatch if self.policy.action is None else ParametricBatch
        return kind.of(part, self.comm.device)

    def _rows(self, batch: LoggedBatch) -> list[Tensor]:
        """Losses of rows [N], in the order of `_names`."""
        found = [imitation(self.network(batch.state), batch, self.config.label_smoothing)]
        if self.heads is not None and self.target is not None:
            with torch.no_grad():
                policy = probability(self.network(batch.next_state), batch.possible_next_actions, self.config)
            heads, discount = cast(ScoreHeads, self.heads), discount_of(self.config, batch)
            found += outcomes(heads, self.target.networks[0], batch, policy, discount)
        return found

    def _rows_of_candidates(self, batch: ParametricBatch) -> list[Tensor]:
        """The same where every row has its own list of candidates."""
        network, lists, smoothing = (
            cast(CandidateNetwork, self.network),
            batch.possible_actions,
            self.config.label_smoothing,
        )
        log_p = ragged.log_softmax(network.of_lists(batch.state, lists).float(), lists)
        row = -ragged.pick(log_p, ragged.taken(lists, batch.action_index))
        if smoothing > 0:
            row = (1.0 - smoothing) * row - smoothing * ragged.total(log_p, lists) / lists.lengths
        found = [row]
        if self.heads is not None and self.target is not None:
            following = batch.possible_next_actions
            with torch.no_grad():
                scores = network.of_lists(batch.next_state, following).float()
            heads, target = cast(CandidateHeads, self.heads), cast(CandidateNetwork, self.target.networks[0])
            found += candidate_outcomes(heads, target, batch, scores, self.config)
        return found

    def warmup(self, rows: Rows) -> Callable[[], object]:
        """A gradient step on these rows, as a function: it sends nothing and changes nothing."""
        batch = self._batch(rows)
        return self.descent.warmup(lambda: self._loss(batch))

    def shared_tensors(self) -> dict[str, Tensor]:
        """Everything that must be equal on all ranks, in place: written into, it continues another run."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        target = {} if self.target is None else self.target.state()
        return named | target | self.descent.state() | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone: nothing."""
        return {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k`."""


def train(session: LoggedSession) -> None:
    """Read, learn, tell, until every row was learned from `run.epochs` times."""
    run, comm, timers = session.run, session.comm, session.timers
    config = run.algorithm
    assert isinstance(config, CloningConfig)
    reader, dataset = session.open_data(), session.dataset
    policy = ScoringPolicy(session.about, stream_seed(run.seed, "init")).to(comm.device)
    cloning = Cloning(run, policy, comm)
    session.begin(policy, None, cloning)
    if cloning.target is not None:
        cloning.target.move(1.0)  # it may have begun from another run's policy
    if run.compile:
        cloning.warmup(dataset.rows(np.zeros(config.rows(comm.world.num_shards), np.int64)))()
    progress = Progress(reader.total_rows)
    with session.training(progress, reader):
        while not session.over:
            parts, rows = reader.next()
            timers.enter(LEARN)
            totals = cloning.update(parts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(rows, totals)
            if session.estimate_due(progress, rows):
                session.estimate()
            if progress.due(run.log_every, rows):
                session.log(cloning.metrics.read())
            if progress.due(run.evaluate_every, rows):
                session.evaluate()
            session.keep(rows)
        session.checkpoint_last(cloning.metrics.read)
