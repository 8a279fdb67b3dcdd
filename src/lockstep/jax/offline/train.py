"""The training loop of the algorithms on logged data."""

import numpy as np

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.jax.comm import Comm
from lockstep.jax.networks import AnyPolicy
from lockstep.jax.offline.dqn import OfflineDQN
from lockstep.jax.offline.iql import IQL
from lockstep.jax.scoring.offline_policy import OfflinePolicy, policy_of
from lockstep.jax.scoring.scoring_policy import ScoringPolicy
from lockstep.jax.state import Learner
from lockstep.record.progress import Progress
from lockstep.session.offline.rows import check_rows
from lockstep.session.offline.session import OfflineSession
from lockstep.session.session import NUM_STATISTICS
from lockstep.world import stream_seed

Session = OfflineSession[Comm, AnyPolicy, Learner]


def _learner(session: Session, policy: OfflinePolicy) -> OfflineDQN | IQL:
    """The algorithm of the run."""
    if isinstance(policy, ScoringPolicy):
        return OfflineDQN(session.run, policy, session.comm, session.dataset.rows)
    return IQL(session.run, policy, session.comm)


def train(session: Session) -> None:
    """Read, learn and log, until every row was used `run.epochs` times."""
    run, comm, timers = session.run, session.comm, session.timers
    reader, dataset = session.open_data(), session.dataset
    if isinstance(run.algorithm, OfflineDQNConfig):
        check_rows(run, dataset, comm, session.journal)
    policy = policy_of(session.policy_spec, stream_seed(run.seed, "init"))
    learner = _learner(session, policy)
    session.begin(policy, learner)
    learner.optimizer.copy_to_target()  # `begin` may have loaded another run's policy
    some = dataset.rows(np.zeros(run.algorithm.rows(comm.world.num_shards), np.int64))
    learner.warmup(some, NUM_STATISTICS)
    progress = Progress(reader.total_rows)
    with session.training(progress, reader):
        while not session.over:
            parts, rows = reader.next()
            timers.enter(LEARN)
            totals = learner.update(parts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(rows, totals)
            if session.estimate_due(progress, rows):
                session.estimate()
            session.log_evaluate_checkpoint(rows, learner.metrics.read)
        session.checkpoint_last(learner.metrics.read)
