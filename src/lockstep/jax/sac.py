"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1801.01290 and arXiv:1812.05905), also as REDQ and DroQ.

Shapes: N transitions of a shard's part of a minibatch. Actions inside the losses are scaled to [-1, 1].
"""

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.algorithms.sac import METRICS, NUM_ACTIONS, POLICY_METRICS, SACConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.jax import value_losses as losses
from lockstep.jax.actor_critic import ActorCritic
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import LOG_ALPHA, ContinuousPolicy
from lockstep.jax.distributions import SquashedGaussian
from lockstep.jax.flat import Params
from lockstep.jax.networks import actor_of
from lockstep.jax.session import Session
from lockstep.jax.transitions import ActorCriticPart
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.shard_replays import announce_replay
from lockstep.session.task_checks import check_task
from lockstep.world import stream_seed


class SAC(ActorCritic[SACConfig]):
    """Maximum-entropy actor-critic from a replay buffer, with target critics and a learned temperature.

    State across updates: `state`, each shard's replay buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm, *, on_device: bool = False) -> None:
        config = run.algorithm
        assert isinstance(config, SACConfig)
        super().__init__(
            run, policy, comm, METRICS, POLICY_METRICS, NUM_ACTIONS, target_actor=False, on_device=on_device
        )
        self.distribution = cast(SquashedGaussian, policy.distribution)
        self._target_entropy = -float(policy.spec.action.width)
        if config.target_entropy is not None:
            self._target_entropy = config.target_entropy

    def critic_loss(
        self, critics: Params, target: Params, actor: Params, part: ActorCriticPart, keys: Sequence[Array | None]
    ) -> tuple[Array, tuple[Array, Array]]:
        """The critics' loss as a weighted *sum* over rows [N]; metric sums, row count first; priorities [N].

        y   = R + discount (min_c Q'_c(s', a') - alpha log pi(a'|s')),  a' ~ pi(.|s')
        L_Q = w sum_c (y - Q_c(s, a))^2 / 2
        """
        policy, batch, precision = self.policy, part.batch, self._precision
        parameters = policy.parameters(actor, batch.next_observation, precision)
        action, log_prob = self.distribution.scaled_action_and_log_prob(parameters, batch.noise[:, 0])
        next_q = policy.q(target, batch.next_observation, action, keys[0], precision)
        if part.target_critics is not None:
            next_q = next_q[part.target_critics]
        y = losses.td_target(batch.reward, batch.discount, next_q.min(0) - self.temperature(actor) * log_prob)
        y = jax.lax.stop_gradient(y)
        q = policy.q(critics, batch.observation, policy.scaled(batch.action), keys[1], precision)
        error = y[None] - q
        row_loss = 0.5 * jnp.square(error).sum(0)
        priority = jnp.abs(error).mean(0)
        sums = jnp.stack([jnp.ones_like(row_loss), batch.weight * row_loss, q.mean(0), y, priority]).sum(1)
        return jnp.dot(batch.weight, row_loss), (sums, priority)

    def actor_loss(
        self, actor: Params, critics: Params, part: ActorCriticPart, key: Array | None
    ) -> tuple[Array, Array]:
        """The loss of actor and temperature as a *sum* over rows [N]; metric sums, row count first.

        L_pi    = alpha log pi(b|s) - min_c Q_c(s, b),  b ~ pi(.|s)
        L_alpha = -log alpha (log pi(b|s) + target entropy)

        With `target_critics`, the mean over all critics c replaces the minimum.
        """
        policy, batch, precision = self.policy, part.batch, self._precision
        parameters = policy.parameters(actor, batch.observation, precision)
        action, log_prob = self.distribution.scaled_action_and_log_prob(parameters, batch.noise[:, 1])
        q = policy.q(critics, batch.observation, action, key, precision)
        alpha = jax.lax.stop_gradient(self.temperature(actor))
        row_loss = alpha * log_prob - (q.min(0) if self.config.target_critics is None else q.mean(0))
        loss = row_loss.sum()
        if self.config.alpha is None:
            loss -= actor[LOG_ALPHA] * (jax.lax.stop_gradient(log_prob) + self._target_entropy).sum()
        ones = jnp.ones_like(row_loss)
        return loss, jnp.stack([ones, row_loss, -log_prob, alpha * ones]).sum(1)

    def temperature(self, actor: Params) -> Array:
        """The temperature: the exponential of a parameter if it is learned."""
        return jnp.exp(actor[LOG_ALPHA]) if self.config.alpha is None else jnp.asarray(self.config.alpha, jnp.float32)


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm = session.run, session.comm
    config = run.algorithm
    assert isinstance(config, SACConfig)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    sac = SAC(run, policy, comm)
    session.begin(sac.evaluated, sac)
    sac.copy_to_target()  # `session.begin` may have loaded another run's policy
    announce_replay(session.journal, run, policy.spec, comm.world, sac.replay_observations.storage)
    explorer = UniformStart(session.spec.action, policy.sampler)
    collector = session.make_collector(actor_of(policy, comm.devices[0]), explorer, report_non_finite=True)
    sac.warmup()
    progress, new_steps = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < sac.replays.random_until(progress.env_steps)
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = sac.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, sac.metrics.read)
        session.checkpoint_last(sac.metrics.read)
