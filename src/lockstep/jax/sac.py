"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1801.01290 and arXiv:1812.05905), also as REDQ and DroQ.

Shapes: K shards of this process, L of them on a device, S of all ranks, N transitions of a shard's part of a minibatch,
D dimensions of an action, C critics, P parameters of actor and temperature, Q of the critics. Actions inside the losses
are scaled to [-1, 1].
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.sac import METRICS, SACConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Collector, Rollout
from lockstep.jax import value_losses as losses
from lockstep.jax.adam import Adam, AdamState, clip_by_global_norm
from lockstep.jax.batch import slots
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import LOG_ALPHA, ContinuousPolicy
from lockstep.jax.distributions import SquashedGaussian
from lockstep.jax.flat import FlatParameters, Params, subtree, with_prefix
from lockstep.jax.networks import actor_of
from lockstep.jax.non_finite import LossReader
from lockstep.jax.session import Session
from lockstep.jax.transitions import ActorCriticPart, TransitionBatch
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.checks import check_task
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import TAKEN, ShardReplays, announce
from lockstep.world import stream_seed

_VALUE_SUMS = ("loss/value", "value/q", "value/target", "value/td_error")
_POLICY_SUMS = ("loss/policy", "policy/entropy", "policy/alpha")
_NUM_SUMS = 2 + len(_VALUE_SUMS) + len(_POLICY_SUMS)
"""Rows of the critics' loss with its sums, then rows of the policy's loss with its sums."""
_NO_SUMS = np.zeros(_NUM_SUMS + 3, np.float32)


class State(NamedTuple):
    """Parameters of all networks, optimizer states and metric sums."""

    policy: Array
    """All parameters of the actor, and the logarithm of the temperature if it is learned [P]."""
    critics: Array
    """All parameters of the critics [Q]."""
    target: Array
    """All parameters of the target critics [Q]."""
    policy_optimizer: AdamState
    critic_optimizer: AdamState
    learning_rates: Array
    """Of policy and temperature, and of the critics [2]."""
    sums: Array
    """Over the gradient steps since the last rollout: those of `_NUM_SUMS`, gradient norms of critics and actor,
    skipped steps."""

    def named(self, policy: FlatParameters, critics: FlatParameters) -> dict[str, np.ndarray]:
        """The state as host arrays by checkpoint name; torch uses the same names."""
        named = with_prefix("policy", policy.split(self.policy))
        named |= with_prefix("policy.critics", critics.split(self.critics))
        named |= with_prefix("target", critics.split(self.target))
        named |= with_prefix("policy_optimizer", self.policy_optimizer._asdict())
        named |= with_prefix("critic_optimizer", self.critic_optimizer._asdict())
        return {name: np.asarray(array) for name, array in named.items()} | {
            "learning_rates": np.asarray(self.learning_rates)
        }

    def loaded(self, policy: FlatParameters, critics: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The state with the entries of `arrays`, named as in `named`, replaced; on the host."""
        old = self.named(policy, critics)
        merged = {name: np.asarray(arrays.get(name, array), array.dtype) for name, array in old.items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        return self._replace(
            policy=policy.join(subtree(named, "policy")),
            critics=critics.join(subtree(named, "policy.critics")),
            target=critics.join(subtree(named, "target")),
            policy_optimizer=AdamState(**subtree(named, "policy_optimizer")),
            critic_optimizer=AdamState(**subtree(named, "critic_optimizer")),
            learning_rates=named["learning_rates"],
        )


class SAC:
    """Maximum-entropy actor-critic from a replay buffer, with target critics and a learned temperature.

    Persistent across updates: `state`, each shard's replay buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, SACConfig)
        check_task(run, policy.spec)
        self.config = config
        self.policy = policy
        self.comm = comm
        self.distribution = cast(SquashedGaussian, policy.distribution)
        self._shards = ShardReplays(run, policy.spec, comm)
        self.rows = self._shards.rows
        self.replays = self._shards.replays
        self.counters = self._shards.counters
        self.shard_state = self._shards.shard_state
        self.restore_shard = self._shards.restore_shard
        policy.params = comm.read(comm.broadcast(policy.params))
        critics = subtree(policy.params, "critics")
        actor = {name: value for name, value in policy.params.items() if not name.startswith("critics.")}
        self.flat = FlatParameters(actor)
        self.flat_critics = FlatParameters(critics)
        self._actor_size = self.flat.num_parameters - (LOG_ALPHA in actor)
        self.optimizer = Adam(config.adam_eps)
        self.metrics = MetricMeans(METRICS)
        self._target_entropy = -float(policy.spec.action.width)
        if config.target_entropy is not None:
            self._target_entropy = config.target_entropy
        rates = [config.learning_rate, config.critic_learning_rate or config.learning_rate]
        self._initial_rates = np.array(rates, np.float32)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._precision = run.precision
        self._step = comm.spmd(self.step)
        self._critic_step = comm.spmd(self.critic_step)
        self._copy = comm.spmd(self._copied)
        self._split = jax.jit(lambda actor, critics: self._named(actor, critics))
        values, critic_values = self.flat.join(actor), self.flat_critics.join(critics)
        start = State(
            policy=values,
            critics=critic_values,
            target=critic_values,
            policy_optimizer=self.optimizer.init(values),
            critic_optimizer=self.optimizer.init(critic_values),
            learning_rates=jnp.asarray(self._initial_rates),
            sums=jnp.asarray(_NO_SUMS),
        )
        self.state: State = comm.replicate(start)

    # -- maths ---------------------------------------------------------------------------------------------------------

    def critic_loss(
        self, critics: Params, target: Params, actor: Params, part: ActorCriticPart, keys: list[Array | None]
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
        y = losses.td_target(batch.reward, batch.discount, next_q.min(0) - self.alpha(actor) * log_prob)
        y = jax.lax.stop_gradient(y)
        q = policy.q(critics, batch.observation, policy.scaled(batch.action), keys[1], precision)
        error = y[None] - q
        row = 0.5 * jnp.square(error).sum(0)
        priority = jnp.abs(error).mean(0)
        sums = jnp.stack([jnp.ones_like(row), batch.weight * row, q.mean(0), y, priority]).sum(1)
        return jnp.dot(batch.weight, row), (sums, priority)

    def policy_loss(
        self, actor: Params, critics: Params, part: ActorCriticPart, key: Array | None
    ) -> tuple[Array, Array]:
        """The loss of actor and temperature as a *sum* over rows [N]; metric sums, row count first.

        L_pi    = alpha log pi(b|s) - min_c Q_c(s, b),  b ~ pi(.|s)
        L_alpha = -log alpha (log pi(b|s) + target entropy)
        """
        policy, batch, precision = self.policy, part.batch, self._precision
        parameters = policy.parameters(actor, batch.observation, precision)
        action, log_prob = self.distribution.scaled_action_and_log_prob(parameters, batch.noise[:, 1])
        q = policy.q(critics, batch.observation, action, key, precision)
        alpha = jax.lax.stop_gradient(self.alpha(actor))
        row = alpha * log_prob - (q.min(0) if self.config.target_critics is None else q.mean(0))
        loss = row.sum()
        if self.config.alpha is None:
            loss -= actor[LOG_ALPHA] * (jax.lax.stop_gradient(log_prob) + self._target_entropy).sum()
        ones = jnp.ones_like(row)
        return loss, jnp.stack([ones, row, -log_prob, alpha * ones]).sum(1)

    def alpha(self, actor: Params) -> Array:
        """The temperature: the exponential of a parameter if it is learned."""
        return jnp.exp(actor[LOG_ALPHA]) if self.config.alpha is None else jnp.asarray(self.config.alpha, jnp.float32)

    # -- order ---------------------------------------------------------------------------------------------------------

    def update(self, rollouts: list[Rollout], extra_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add a rollout of every local shard to its replay buffer, and take the due gradient steps; *collective*.

        Args:
            rollouts: one for each local shard.
            extra_sums: [K, M] numbers to sum over all shards in the same message.
            progress: of the run before this rollout; default: at its start.

        Returns:
            The sums of `extra_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c, progress = self.config, progress or Progress(1)
        (faults, not_ready, size), totals = self._shards.extend(rollouts, extra_sums)
        if faults and self._stop_on_non_finite:
            raise self._locate_non_finite(rollouts, [], progress)
        rates = self._initial_rates * (1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0)
        new_steps = rollouts[0].reward.size * self.comm.world.num_shards
        due = self._shards.due(progress.env_steps, new_steps, c.updates_per_step, ready=not not_ready)
        if due:
            fresh = self.comm.replicate({"learning_rates": rates.astype(np.float32), "sums": _NO_SUMS})
            self.state = self.state._replace(**fresh)
        minibatches = list[list[ActorCriticPart]]()
        for _ in range(due):
            self.comm.timers.enter(LEARN)  # a heartbeat: many steps may be due
            drawn = self._shards.sample()
            weights = self._shards.weights(drawn, size, progress.fraction)
            parts = self._parts(drawn, weights)
            self._learn(parts, drawn)
            if self._stop_on_non_finite:
                minibatches.append(parts)
        # One host sync per rollout; acting would wait for the device anyway.
        sums = self.comm.read(self.state.sums)
        if sums[-1] and self._stop_on_non_finite:
            raise self._locate_non_finite(rollouts, minibatches, progress)
        self.metrics.add(METRICS[-2:], [size, faults / self.comm.world.num_shards], 1.0)
        if due:
            self._add_metrics(sums, due, float(rates[0]))
            self.policy.params = self._split(*self.comm.local((self.state.policy, self.state.critics)))
        return totals

    def _parts(self, drawn: Sequence[Transitions], weights: Sequence[np.ndarray]) -> list[ActorCriticPart]:
        """Each local shard's part of a minibatch, with all random numbers that its gradient step needs."""
        c = self.config
        noise = self._shards.noise(2, self.policy.spec.action.width)
        seeds = [np.uint32(seed) for seed in self._shards.seeds()] if c.dropout else [None] * len(drawn)
        chosen = None
        if c.target_critics is not None:
            chosen = self._shards.target_critics(c.num_critics, c.target_critics).astype(np.int32)
        batches = [TransitionBatch.of(*one) for one in zip(drawn, weights, noise, strict=True)]
        return [ActorCriticPart(batch, seed, chosen) for batch, seed in zip(batches, seeds, strict=True)]

    def _learn(self, parts: Sequence[ActorCriticPart], drawn: Sequence[Transitions]) -> None:
        """Take one gradient step on a minibatch, of which every local shard sampled its part."""
        moves_policy = (int(self.counters[TAKEN]) + 1) % self.config.policy_delay == 0
        step = self._step if moves_policy else self._critic_step
        self.state, priorities = step(self.state, self.comm.shard(parts))
        self.counters[TAKEN] += 1
        if self.config.prioritized:
            for replay, rows, priority in zip(self.replays, drawn, self.comm.unshard(priorities), strict=True):
                replay.update_priorities(rows.index, priority)

    def step(self, state: State, own: ActorCriticPart) -> tuple[State, Array]:
        """Take one gradient step of all networks on every shard's part of a minibatch.

        All gradients are taken at the parameters before the step and sent in one message. If any number is not finite,
        only the target critics move.

        Also returns the priorities [L, N] of this device's rows; NaN, which replay buffers ignore, for a skipped step.
        """
        return self._stepped(state, own, moves_policy=True)

    def critic_step(self, state: State, own: ActorCriticPart) -> tuple[State, Array]:
        """Take one gradient step of the critics alone, between those of the policy (`policy_delay`); see `step`."""
        return self._stepped(state, own, moves_policy=False)

    def _stepped(self, state: State, own: ActorCriticPart, *, moves_policy: bool) -> tuple[State, Array]:
        c, comm, adam = self.config, self.comm, self.optimizer
        rows, priorities = list[Array](), list[Array]()
        for number, part in zip(comm.shard_numbers(), slots(own, comm.num_slots), strict=True):
            row, priority = self._shard_sums(state, number, part, moves_policy=moves_policy)
            rows.append(row)
            priorities.append(priority)
        total = comm.sum_shards(jnp.stack(rows), "average_gradients")
        end = self.flat_critics.num_parameters + (self.flat.num_parameters if moves_policy else 0)
        ends = [self.flat_critics.num_parameters, end, end + _NUM_SUMS]
        of_critics, of_policy, sums, max_weights = jnp.split(total, ends)
        # Products, as XLA divides a vector by a number in one layout and multiplies by the inverse in another.
        scale, inverse = 1.0 / max_weights.max(), 1.0 / sums[0]
        sums = sums.at[1].multiply(scale)
        of_critics, norm = clip_by_global_norm(of_critics * (scale * inverse), c.max_grad_norm)
        of_policy = of_policy * inverse
        of_actor, policy_norm = clip_by_global_norm(of_policy[: self._actor_size], c.max_grad_norm)
        of_policy = jnp.concatenate([of_actor, of_policy[self._actor_size :]])
        totals = jnp.concatenate([sums, jnp.stack([norm, policy_norm, jnp.zeros_like(norm)])])
        # Without barriers programs of different layouts may fuse these products with the sums of Adam or not, and round
        # differently.
        of_critics, of_policy, totals = jax.lax.optimization_barrier((of_critics, of_policy, totals))
        skipped = ~jnp.isfinite(totals).all()
        if self._stop_on_non_finite:  # later steps are skipped too, so that the failing parameters are preserved
            skipped |= state.sums[-1] > 0
        policy_rate, critic_rate = state.learning_rates
        critics, optimizer = adam.step(state.critic_optimizer, state.critics, of_critics, critic_rate, skipped)
        state = state._replace(
            critics=critics,
            target=state.target + c.target_rate * (critics - state.target),
            critic_optimizer=optimizer,
            sums=state.sums + jnp.where(skipped, jnp.zeros_like(totals).at[-1].set(1.0), totals),
        )
        if moves_policy:
            policy, optimizer = adam.step(state.policy_optimizer, state.policy, of_policy, policy_rate, skipped)
            state = state._replace(policy=policy, policy_optimizer=optimizer)
        return state, jnp.where(skipped, jnp.nan, jnp.stack(priorities))

    def _shard_sums(
        self, state: State, number: Array, part: ActorCriticPart, *, moves_policy: bool
    ) -> tuple[Array, Array]:
        """One shard's contribution to a step, and its priorities [N].

        The contribution is its gradient sums [Q] and, if the policy moves, [P], its metric sums `_NUM_SUMS`, and S
        slots of which its own holds its largest weight.
        """
        # The barriers isolate the shard's computation: other shards on this device must not change its bits.
        values = (state.critics, state.target, state.policy)
        (*values, part) = jax.lax.optimization_barrier((*values, part))
        critics, target = (self.flat_critics.split(vector) for vector in values[:2])
        actor = self.flat.split(values[2])
        keys: list[Array | None] = [None] * 3
        if part.seed is not None:
            keys = list(jax.random.split(jax.random.key(part.seed), 3))
        gradient, (sums, priority) = jax.grad(self.critic_loss, has_aux=True)(critics, target, actor, part, keys[:2])
        gradients, policy_sums = [self.flat_critics.join(gradient)], jnp.zeros(1 + len(_POLICY_SUMS), jnp.float32)
        if moves_policy:
            of_policy, policy_sums = jax.grad(self.policy_loss, has_aux=True)(actor, critics, part, keys[2])
            gradients.append(self.flat.join(of_policy))
        max_weights = jax.nn.one_hot(number, self.comm.world.num_shards) * part.batch.weight.max()
        row = jnp.concatenate([*gradients, sums, policy_sums, max_weights])
        return jax.lax.optimization_barrier((row, priority))

    def _add_metrics(self, sums: np.ndarray, due: int, learning_rate: float) -> None:
        """Add the sums of `due` gradient steps."""
        count, skipped = 1 + len(_VALUE_SUMS), sums[-1:]
        of_critics, of_policy, norms = np.split(sums[:-1], [count, _NUM_SUMS])
        self.metrics.add(_VALUE_SUMS, of_critics[1:], of_critics[0])
        self.metrics.add(_POLICY_SUMS, of_policy[1:], of_policy[0])
        self.metrics.add(("optim/grad_norm",), norms[:1], due - skipped[0])
        rows = self.rows * self.comm.world.num_shards
        self.metrics.add(("optim/policy_grad_norm",), norms[1:], of_policy[0] / rows)
        self.metrics.add(("optim/skipped",), skipped, due)
        self.metrics.add(("optim/learning_rate",), [learning_rate], 1.0)

    def warmup(self) -> None:
        """Compile everything that an update calls, without changing the state; collective."""
        blank = TransitionBatch.blank(self.policy.spec, self.rows, num_actions=2)
        seed = np.uint32(0) if self.config.dropout else None
        chosen = None if self.config.target_critics is None else np.arange(self.config.target_critics, dtype=np.int32)
        own = self.comm.shard([ActorCriticPart(blank, seed, chosen) for _ in self.replays])
        state: State = self.comm.replicate(self.comm.read(self.state))
        steps = [self._step] if self.config.policy_delay == 1 else [self._step, self._critic_step]
        for step in steps:
            state, priorities = step(state, own)
            self.comm.unshard(priorities)
        state, _ = self._copy(state, ())
        self._split(*self.comm.local((state.policy, state.critics)))

    def copy_to_target(self) -> None:
        """Copy the critics into the target critics."""
        self.state, _ = self._copy(self.state, ())

    def _copied(self, state: State, own: tuple[()]) -> tuple[State, tuple[()]]:
        return state._replace(target=state.critics), own

    def _named(self, policy: Array, critics: Array) -> Params:
        """All parameters of the policy by name, from the vectors [P] and [Q]."""
        return self.flat.split(policy) | with_prefix("critics", self.flat_critics.split(critics))

    def _locate_non_finite(
        self, rollouts: list[Rollout], minibatches: list[list[ActorCriticPart]], progress: Progress
    ) -> NonFiniteError:
        state, number = self.comm.local(self.state), jnp.zeros((), jnp.int32)
        end = self.flat_critics.num_parameters + self.flat.num_parameters

        def gradient_and_sums(part: ActorCriticPart) -> list[Array]:
            return jnp.split(self._shard_sums(state, number, part, moves_policy=True)[0], [end])

        reader = LossReader(gradient_and_sums, self.rows)
        return locate_non_finite_replayed(self.comm, rollouts, minibatches, progress, reader)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints."""
        totals = {"counters": self.counters.copy(), "metrics": self.metrics.table.copy()}
        return self.comm.read(self.state).named(self.flat, self.flat_critics) | totals

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it."""
        loaded = self.comm.read(self.state).loaded(self.flat, self.flat_critics, arrays)
        self.state = self.comm.replicate(loaded)
        self.policy.params = self._split(*self.comm.local((self.state.policy, self.state.critics)))
        self.counters[:] = arrays.get("counters", self.counters)
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm = session.run, session.comm
    config = run.algorithm
    assert isinstance(config, SACConfig)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    sac = SAC(run, policy, comm)
    session.begin(policy, None, sac)
    sac.copy_to_target()  # `session.begin` may have loaded another run's policy
    announce(session.journal, run, policy.spec, comm.world)
    actor, explorer = actor_of(policy, comm.devices[0]), UniformStart(session.spec.action, policy.sampler)
    collector = Collector(
        comm.world, session.make_envs(run.num_envs), actor, explorer,
        num_steps=config.num_steps, seed=run.seed, timers=session.timers, report_non_finite=True,
    )  # fmt: skip
    sac.warmup()
    progress, batch_size = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < config.learning_starts
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = sac.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(batch_size, totals)
            if progress.due(run.log_every, batch_size):
                session.log(sac.metrics.read())
            if progress.due(run.evaluate_every, batch_size):
                session.evaluate()
            session.checkpoint_if_due(batch_size)
        session.checkpoint_last(sac.metrics.read)
