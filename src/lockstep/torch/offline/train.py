"""The training loop of the algorithms on logged data."""

import numpy as np

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.record.progress import Progress
from lockstep.torch.offline.checks import check_rows
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.session import LoggedSession
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream_seed


def train(session: LoggedSession) -> None:
    """Read, learn and log, until every row was used `run.epochs` times."""
    run, comm, timers, config = session.run, session.comm, session.timers, session.run.algorithm
    reader, dataset = session.open_data(), session.dataset
    if isinstance(config, OfflineDQNConfig):
        check_rows(run, dataset, comm, session.journal)
    policy = ScoringPolicy(session.policy_spec, stream_seed(run.seed, "init")).to(comm.device)
    if isinstance(config, OfflineDQNConfig):
        learner = OfflineDQN(run, policy, comm, dataset.rows)
    else:
        learner = Cloning(run, policy, comm)
    session.begin(policy, None, learner)
    if learner.target is not None:
        learner.target.move(1.0)  # `begin` may have loaded another run's policy
    if run.compile:
        learner.warmup(dataset.rows(np.zeros(config.rows(comm.world.num_shards), np.int64)))()
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
            if progress.due(run.log_every, rows):
                session.log(learner.metrics.read())
            if progress.due(run.evaluate_every, rows):
                session.evaluate()
            session.checkpoint_if_due(rows)
        session.checkpoint_last(learner.metrics.read)
