"""The training loop of the algorithms on logged data."""

import numpy as np

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.offline_continuous import IQLConfig, TD3BCConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.record.progress import Progress
from lockstep.session.offline.rows import check_rows
from lockstep.session.offline.session import OfflineSession
from lockstep.torch.capture import announce_capture
from lockstep.torch.comm import Comm
from lockstep.torch.networks import AnyPolicy
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.cql import ContinuousCQL
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.td3_bc import TD3BC
from lockstep.torch.scoring.offline_policy import OfflinePolicy, policy_of
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.torch.state import Learner
from lockstep.world import stream_seed

Session = OfflineSession[Comm, AnyPolicy, Learner]


def _learner(session: Session, policy: OfflinePolicy) -> OfflineDQN | Cloning | IQL | TD3BC | ContinuousCQL:
    """The algorithm of the run."""
    run, comm = session.run, session.comm
    if isinstance(policy, ScoringPolicy):
        if isinstance(run.algorithm, OfflineDQNConfig):
            return OfflineDQN(run, policy, comm, session.dataset.rows)
        return Cloning(run, policy, comm)
    if isinstance(run.algorithm, IQLConfig):
        return IQL(run, policy, comm)
    return (TD3BC if isinstance(run.algorithm, TD3BCConfig) else ContinuousCQL)(run, policy, comm)


def train(session: Session) -> None:
    """Read, learn and log, until every row was used `run.epochs` times."""
    run, comm, timers, config = session.run, session.comm, session.timers, session.run.algorithm
    reader, dataset = session.open_data(), session.dataset
    if isinstance(config, OfflineDQNConfig):
        check_rows(run, dataset, comm, session.journal)
    policy = policy_of(session.policy_spec, stream_seed(run.seed, "init")).to(comm.device)
    learner = _learner(session, policy)
    session.begin(policy, learner)
    if learner.target is not None:
        learner.target.move(1.0)  # `begin` may have loaded another run's policy
    if isinstance(learner, TD3BC):
        learner.reset_copies()
    candidates = isinstance(policy, ScoringPolicy) and policy.action is not None
    announce_capture(session.journal, run, comm, learner.optimizer.flat, candidates=candidates)
    if run.compile:
        learner.warmup_step(dataset.rows(np.zeros(config.rows(comm.world.num_shards), np.int64)))()
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
