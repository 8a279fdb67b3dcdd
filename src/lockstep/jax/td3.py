"""Twin delayed deep deterministic policy gradient (TD3; Fujimoto et al., 2018, arXiv:1802.09477), also as DDPG.

Shapes: N transitions of a shard's part of a minibatch. Actions inside the losses are scaled to [-1, 1].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.algorithms.td3 import METRICS, NUM_ACTIONS, POLICY_METRICS, TD3Config
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.jax import value_losses as losses
from lockstep.jax.actor_critic import ActorCritic
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.flat import Params, subtree
from lockstep.jax.networks import actor_of
from lockstep.jax.session import Session
from lockstep.jax.transitions import ActorCriticPart
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.shard_replays import announce_replay
from lockstep.session.task_checks import check_task
from lockstep.world import stream_seed


class TD3(ActorCritic[TD3Config]):
    """Deterministic actor-critic from a replay buffer, with a target actor, target critics and a delayed policy.

    State across updates: `state`, each shard's replay buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm, *, on_device: bool = False) -> None:
        assert isinstance(run.algorithm, TD3Config)
        super().__init__(
            run, policy, comm, METRICS, POLICY_METRICS, NUM_ACTIONS, target_actor=True, on_device=on_device
        )

    def critic_loss(
        self, critics: Params, target: Params, actor: Params, part: ActorCriticPart, keys: Sequence[Array | None]
    ) -> tuple[Array, tuple[Array, Array]]:
        """The critics' loss as a weighted *sum* over rows [N]; metric sums, row count first; priorities [N].

        a'  = clip(pi'(s') + clip(target_noise e, -noise_clip, noise_clip), -1, 1),  e standard normal
        y   = R + discount min_c Q'_c(s', a')
        L_Q = w sum_c (y - Q_c(s, a))^2 / 2
        """
        del actor  # the target's actor acts
        c, policy, batch, precision = self.config, self.policy, part.batch, self._precision
        noise = jnp.clip(c.target_noise * batch.noise[:, 0], -c.noise_clip, c.noise_clip)
        action = jnp.tanh(policy.parameters(target, batch.next_observation, precision))
        action = jnp.clip(action + noise, -1.0, 1.0)
        next_q = policy.q(subtree(target, "critics"), batch.next_observation, action, keys[0], precision)
        if part.target_critics is not None:
            next_q = next_q[part.target_critics]
        y = jax.lax.stop_gradient(losses.td_target(batch.reward, batch.discount, next_q.min(0)))
        q = policy.q(critics, batch.observation, policy.scaled(batch.action), keys[1], precision)
        error = y[None] - q
        row_loss = 0.5 * jnp.square(error).sum(0)
        priority = jnp.abs(error).mean(0)
        sums = jnp.stack([jnp.ones_like(row_loss), batch.weight * row_loss, q.mean(0), y, priority]).sum(1)
        return jnp.dot(batch.weight, row_loss), (sums, priority)

    def actor_loss(
        self, actor: Params, critics: Params, part: ActorCriticPart, key: Array | None
    ) -> tuple[Array, Array]:
        """The loss of the actor as a *sum* over rows [N]; metric sums, row count first.

        L_pi = -Q_1(s, pi(s)), or minus the mean of all critics with `target_critics`
        """
        policy, batch, precision = self.policy, part.batch, self._precision
        action = jnp.tanh(policy.parameters(actor, batch.observation, precision))
        count = 1 if self.config.target_critics is None else self.config.num_critics
        critics = {name: leaf[:count] for name, leaf in critics.items()}
        row_loss = -policy.q(critics, batch.observation, action, key, precision).mean(0)
        return row_loss.sum(), jnp.stack([jnp.ones_like(row_loss), row_loss]).sum(1)


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm = session.run, session.comm
    config = run.algorithm
    assert isinstance(config, TD3Config)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    td3 = TD3(run, policy, comm)
    session.begin(td3.evaluated, td3)
    td3.copy_to_target()  # `session.begin` may have loaded another run's policy
    announce_replay(session.journal, run, policy.spec, comm.world, td3.replay_observations.storage)
    explorer = UniformStart(session.spec.action, policy.sampler)
    collector = session.make_collector(actor_of(policy, comm.devices[0]), explorer, report_non_finite=True)
    td3.warmup()
    progress, new_steps = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < td3.replays.random_until(progress.env_steps)
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = td3.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, td3.metrics.read)
        session.checkpoint_last(td3.metrics.read)
