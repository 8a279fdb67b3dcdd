"""The base of SAC and TD3: replay buffers, one gradient step with one message, and state for checkpoints.

Shapes: K shards of this process, L of them on a device, N transitions of a shard's part of a minibatch, G gradient
steps of a call, P parameters of actor and temperature, Q of the critics.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Rollout
from lockstep.jax.adam import Adam, AdamState, clip_by_global_norm
from lockstep.jax.batch import slots
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import LOG_ALPHA, ContinuousPolicy
from lockstep.jax.device_rows import ReplayObservations, observed
from lockstep.jax.flat import FlatParameters, Params, subtree, with_prefix
from lockstep.jax.loops import StepCalls, stacked, steps_first
from lockstep.jax.non_finite import LossReader
from lockstep.jax.transitions import ActorCriticPart, TransitionBatch
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.gradient_schedule import GradientSchedule
from lockstep.session.kept_minibatches import KeptMinibatches
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import Replayed, ShardReplays
from lockstep.session.task_checks import check_task

Own = tuple[ActorCriticPart, Array | None]
"""Every shard's part of a minibatch, and the rows of observations on the device, if they are there."""
SomeConfig = TypeVar("SomeConfig", bound=SACConfig | TD3Config)


class State(NamedTuple):
    """Parameters of all networks, optimizer states and metric sums."""

    actor_params: Array
    """All parameters of the actor, and the logarithm of the temperature if it is learned [P]."""
    critic_params: Array
    """All parameters of the critics [Q]."""
    target_params: Array
    """All parameters of the target networks: of the critics [Q], or of actor and critics [P + Q]."""
    average_params: Array
    """Of the actor that is evaluated and saved, without a temperature; empty without `policy_average`."""
    actor_optimizer: AdamState
    critic_optimizer: AdamState
    learning_rates: Array
    """Of actor and temperature, and of the critics [2]."""
    sums: Array
    """Over the gradient steps since `begin_update`: rows and sums of the critics' loss, rows and sums of the actor's,
    gradient norms of critics and actor, skipped steps."""


class ActorCritic(ABC, Generic[SomeConfig]):
    """A policy and its critics, which learn from replay buffers; a subclass has the losses.

    State across updates: `state`, each shard's replay buffer and random stream, and `counters`, as in DQN.

    Args:
        run: the config.
        policy: the parameters of rank 0 are broadcast.
        comm: the ranks.
        metrics: names.
        actor_metrics: names of the sums of the actor's loss.
        num_actions: actions to draw for a transition, which needs noise for them.
        target_actor: whether there is a target actor. The target networks then move with the actor, else with the
            critics.
        on_device: whether the environments and their transitions are on the device, out of this object's sight: it then
            has no replay buffers, and `update` cannot be called.

    Attributes:
        evaluated: the policy that is evaluated and saved: with `policy_average` its actor is an average, else `policy`.
        schedule: of the gradient steps.
        state: what updates change on the devices; equal on all of them.
        flat_actor: layout of the parameters of actor and temperature.
        flat_critics: layout of the parameters of the critics.
        flat_target: layout of the parameters of the target networks.
    """

    FOLLOWS = ALL_SETTINGS

    def __init__(  # noqa: PLR0913  # of subclasses alone, which name what is theirs
        self,
        run: Run,
        policy: ContinuousPolicy,
        comm: Comm,
        metrics: Sequence[str],
        actor_metrics: Sequence[str],
        num_actions: int,
        *,
        target_actor: bool,
        on_device: bool = False,
    ) -> None:
        check_task(run, policy.spec)
        self.config = config = cast(SomeConfig, run.algorithm)
        self.policy = policy
        self.comm = comm
        if on_device:
            self.schedule = GradientSchedule(run, comm.world)
        else:
            self.replay_observations = ReplayObservations(run, policy.spec, comm)
            self.replays = ShardReplays(run, policy.spec, comm, self.replay_observations.storage)
            self.schedule = self.replays
        self.rows = self.schedule.rows
        self.counters = self.schedule.counters
        self.metrics = MetricMeans(metrics)
        policy.params = comm.read(comm.broadcast(policy.params))
        self.evaluated = copy.copy(policy) if config.policy_average else policy
        self._actor_metrics = actor_metrics
        self._num_sums = 2 + len(VALUE_METRICS) + len(actor_metrics)
        self._no_sums = np.zeros(self._num_sums + 3, np.float32)
        self.num_actions = num_actions
        self._target_actor = target_actor
        self._stop_on_non_finite = run.non_finite == "stop"
        self._precision = run.precision
        actor = {name: value for name, value in policy.params.items() if not name.startswith("critics.")}
        critics = subtree(policy.params, "critics")
        self.flat_actor = FlatParameters(actor)
        self.flat_critics = FlatParameters(critics)
        self.flat_target = FlatParameters(policy.params if target_actor else critics)
        self._actor_size = self.flat_actor.num_parameters - (LOG_ALPHA in actor)
        self._average_size = self._actor_size if config.policy_average else 0
        self._adam = Adam(config.adam_eps)
        rates = [config.learning_rate, config.critic_learning_rate or config.learning_rate]
        self.initial_rates = np.array(rates, np.float32)
        if not on_device:
            blank = [self._blank()] * comm.num_slots
            self._calls = StepCalls(run, policy.spec, comm.devices[0].platform, blank, config.policy_delay)
        self._step_spmd = comm.spmd(self.step)
        self._steps_spmd = comm.spmd(self.steps)
        self._critic_step_spmd = comm.spmd(self.critic_step)
        self._copy = comm.spmd(self._copied, donate=False)
        self._named = jax.jit(self._by_name)
        self._named_evaluated = jax.jit(self._evaluated_by_name)
        self.state: State = comm.replicate(
            self._first_state(self.flat_actor.join(actor), self.flat_critics.join(critics))
        )

    def _first_state(self, actor_params: Array, critic_params: Array) -> State:
        """Before the first gradient step."""
        return State(
            actor_params=actor_params,
            critic_params=critic_params,
            target_params=self._online_parameters(actor_params, critic_params),
            average_params=actor_params[: self._average_size],
            actor_optimizer=self._adam.init(actor_params),
            critic_optimizer=self._adam.init(critic_params),
            learning_rates=jnp.asarray(self.initial_rates),
            sums=jnp.asarray(self._no_sums),
        )

    @abstractmethod
    def critic_loss(
        self, critics: Params, target: Params, actor: Params, part: ActorCriticPart, keys: Sequence[Array | None]
    ) -> tuple[Array, tuple[Array, Array]]:
        """The critics' loss as a weighted *sum* over rows [N]; row count, then `VALUE_METRICS`; priorities [N]."""

    @abstractmethod
    def actor_loss(
        self, actor: Params, critics: Params, part: ActorCriticPart, key: Array | None
    ) -> tuple[Array, Array]:
        """The loss of actor and temperature as a *sum* over rows [N]; row count, then metric sums."""

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k`; of transitions on the device their collector has it."""
        return self.replays.shard_state(k) if isinstance(self.schedule, ShardReplays) else {}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k` from its `shard_state`."""
        if isinstance(self.schedule, ShardReplays):
            self.replays.restore_shard(k, state)

    def update(self, rollouts: list[Rollout], caller_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add every shard's rollout to its buffer, and take the due gradient steps, as `DQN.update`; *collective*."""
        progress = progress or Progress(1)
        replayed, caller_sums = self.replays.extend(rollouts, caller_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, [], progress)
        if replayed.num_gradient_steps:
            self.begin_update(progress.fraction)
        minibatches = self._learn(replayed)
        # One host sync per rollout; acting would wait for the device anyway.
        sums = self.comm.read(self.state.sums)
        if sums[-1] and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, minibatches, progress)
        self._add_metrics(replayed, sums)
        if replayed.num_gradient_steps:
            self.pass_on_params()
        return caller_sums

    def begin_update(self, fraction: float) -> None:
        """Reset the sums, and set the learning rates for a run of which this fraction is completed."""
        rates = self.initial_rates
        if self.config.learning_rate_schedule == "linear":
            rates = (rates * (1.0 - fraction)).astype(np.float32)
        fresh = self.comm.replicate({"learning_rates": rates, "sums": self._no_sums})
        self.state = self.state._replace(**fresh)

    def _draw(self, replayed: Replayed) -> Iterator[tuple[list[ActorCriticPart], list[Transitions]]]:
        """The minibatch of each gradient step that is due: each local shard's part, and the transitions in it.

        A step is counted when its minibatch is drawn: several are drawn before the call that takes their steps.
        """
        for drawn, weights in self.replays.minibatches(replayed):
            parts = self._parts(drawn, weights)
            self.replays.gradient_steps += 1
            yield parts, drawn

    def _parts(self, drawn: Sequence[Transitions], weights: Sequence[np.ndarray]) -> list[ActorCriticPart]:
        """Each local shard's part of the minibatch of the next gradient step, with its random numbers."""
        c = self.config
        noise = self.replays.noise(self.num_actions, self.policy.spec.action.width)
        seeds = [np.uint32(seed) for seed in self.replays.seeds()] if c.dropout else [None] * len(drawn)
        chosen = None
        if c.target_critics is not None:
            chosen = self.replays.target_critics(c.num_critics, c.target_critics).astype(np.int32)
        batches = [TransitionBatch.of(*one) for one in zip(drawn, weights, noise, strict=True)]
        return [ActorCriticPart(batch, seed, chosen) for batch, seed in zip(batches, seeds, strict=True)]

    def _learn(self, replayed: Replayed) -> list[Sequence[ActorCriticPart]]:
        """Take the gradient steps that are due, several in a compiled call; *collective*.

        Returns:
            The minibatches, if numbers that are not finite stop the run.
        """
        kept = KeptMinibatches[ActorCriticPart](self._non_finite, enabled=self._stop_on_non_finite)
        draws = self._draw(replayed)
        for length in self._calls.lengths(replayed.num_gradient_steps, self.replays.gradient_steps):
            steps = list(islice(draws, length))
            if length > 1:
                own = self.comm.shard(stacked([parts for parts, _ in steps]))
                self.state, _ = self._steps_spmd(self.state, (own, self.replay_observations.rows()))
            else:
                self._learn_one(*steps[0])
            kept.add(*(parts for parts, _ in steps))
        return kept.minibatches

    def _non_finite(self) -> bool:
        """Whether a number that is not finite has stopped the gradient steps of this update; waits for the device."""
        return bool(self.comm.read(self.state.sums)[-1])

    def _learn_one(self, parts: Sequence[ActorCriticPart], drawn: Sequence[Transitions]) -> None:
        """Take a gradient step on a minibatch, of which each local shard has its part."""
        number = self.replays.gradient_steps  # of this step, counted from 1: it is the last that was drawn
        updates_actor = number % self.config.policy_delay == 0
        step = self._step_spmd if updates_actor else self._critic_step_spmd
        self.state, priorities = step(self.state, (self.comm.shard(parts), self.replay_observations.rows()))
        if self.config.prioritized:
            self.replays.update_priorities(drawn, self.comm.unshard(priorities))

    def steps(self, state: State, own: Own) -> tuple[State, tuple[()]]:
        """Take one gradient step after another on every shard's parts of minibatches [L, G, ...]; see `step`.

        The last of every `policy_delay` steps updates the actor.
        """
        delay, (stacks, observations) = self.config.policy_delay, own

        def group(state: State, parts: ActorCriticPart) -> tuple[State, None]:
            for i in range(delay):
                part = jax.tree.map(lambda leaf, i=i: leaf[i], parts)
                state, _ = self._gradient_step(state, (part, observations), updates_actor=i == delay - 1)
                state = jax.lax.optimization_barrier(state)  # steps are not fused, to have the bits of single calls
            return state, None

        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, delay, *leaf.shape[1:]), steps_first(stacks))
        return jax.lax.scan(group, state, parts)[0], ()

    def step(self, state: State, own: Own) -> tuple[State, Array]:
        """Take one gradient step of all networks on every shard's part of a minibatch.

        All gradients are taken at the parameters before the step and sent in one message. If any number is not finite,
        only the target networks move.

        Also returns the priorities [L, N] of this device's rows; NaN, which replay buffers ignore, for a skipped step.
        """
        return self._gradient_step(state, own, updates_actor=True)

    def critic_step(self, state: State, own: Own) -> tuple[State, Array]:
        """Take one gradient step of the critics alone, between those of the actor (`policy_delay`); see `step`."""
        return self._gradient_step(state, own, updates_actor=False)

    def _gradient_step(self, state: State, own: Own, *, updates_actor: bool) -> tuple[State, Array]:
        """`step`, or `critic_step` unless it `updates_actor`."""
        c, comm, adam = self.config, self.comm, self._adam
        rows, priorities, (parts, observations) = list[Array](), list[Array](), own
        for number, part in zip(comm.shard_numbers(), slots(parts, comm.num_slots), strict=True):
            part = observed(part, observations, self.policy.spec)
            row, priority = self._shard_sums(state, number, part, updates_actor=updates_actor)
            rows.append(row)
            priorities.append(priority)
        total = comm.sum_shards(jnp.stack(rows), "average_gradients")
        end = self.flat_critics.num_parameters + (self.flat_actor.num_parameters if updates_actor else 0)
        ends = [self.flat_critics.num_parameters, end, end + self._num_sums]
        of_critics, of_actor, sums, max_weights = jnp.split(total, ends)
        # Products, as XLA divides a vector by a number in one layout and multiplies by the inverse in another.
        scale, inverse = 1.0 / max_weights.max(), 1.0 / sums[0]
        sums = sums.at[1].multiply(scale)
        of_critics, norm = clip_by_global_norm(of_critics * (scale * inverse), c.max_grad_norm)
        of_actor = of_actor * inverse
        clipped, actor_norm = clip_by_global_norm(of_actor[: self._actor_size], c.max_grad_norm)
        of_actor = jnp.concatenate([clipped, of_actor[self._actor_size :]])  # the temperature's is not clipped
        totals = jnp.concatenate([sums, jnp.stack([norm, actor_norm, jnp.zeros_like(norm)])])
        # Without barriers programs of different layouts may fuse these products with the sums of Adam or not, and round
        # differently.
        of_critics, of_actor, totals = jax.lax.optimization_barrier((of_critics, of_actor, totals))
        skipped = ~jnp.isfinite(totals).all()
        if self._stop_on_non_finite:  # later steps are skipped too, so that the failing parameters are preserved
            skipped |= state.sums[-1] > 0
        actor_rate, critic_rate = state.learning_rates
        critic_params, optimizer = adam.step(
            state.critic_optimizer, state.critic_params, of_critics, critic_rate, skipped
        )
        sums = state.sums + jnp.where(skipped, jnp.zeros_like(totals).at[-1].set(1.0), totals)
        state = state._replace(critic_params=critic_params, critic_optimizer=optimizer, sums=sums)
        if updates_actor:
            actor_params, optimizer = adam.step(
                state.actor_optimizer, state.actor_params, of_actor, actor_rate, skipped
            )
            average = self._averaged(state.average_params, actor_params, optimizer.steps)
            state = state._replace(actor_params=actor_params, actor_optimizer=optimizer, average_params=average)
        if updates_actor or not self._target_actor:
            online = self._online_parameters(state.actor_params, state.critic_params)
            target_params = state.target_params + c.target_rate * (online - state.target_params)
            state = state._replace(target_params=target_params)
        return state, jnp.where(skipped, jnp.nan, jnp.stack(priorities))

    def _averaged(self, average_params: Array, actor_params: Array, steps: Array) -> Array:
        """The average, moved by 1 / (1 + w (t - 1)) towards the actor after its step t, w being `policy_average`."""
        weight = 1.0 / (1.0 + self.config.policy_average * jnp.maximum(steps - 1, 0).astype(jnp.float32))
        return average_params + weight * (actor_params[: self._average_size] - average_params)

    def _shard_sums(
        self, state: State, number: Array, part: ActorCriticPart, *, updates_actor: bool
    ) -> tuple[Array, Array]:
        """One shard's contribution to a step, and its priorities [N].

        The contribution is its gradient sums [Q] and, if the actor takes a step, [P], its metric sums, and S slots of
        which its own holds its largest weight.
        """
        # The barriers isolate the shard's computation: other shards on this device must not change its bits.
        vectors = (state.critic_params, state.target_params, state.actor_params)
        (*vectors, part) = jax.lax.optimization_barrier((*vectors, part))
        layouts = (self.flat_critics, self.flat_target, self.flat_actor)
        critics, target, actor = (flat.split(vector) for flat, vector in zip(layouts, vectors, strict=True))
        keys: list[Array | None] = [None] * 3
        if part.seed is not None:
            keys = list(jax.random.split(jax.random.key(part.seed), 3))
        gradient, (sums, priority) = jax.grad(self.critic_loss, has_aux=True)(critics, target, actor, part, keys[:2])
        gradients = [self.flat_critics.join(gradient)]
        actor_sums = jnp.zeros(1 + len(self._actor_metrics), jnp.float32)
        if updates_actor:
            of_actor, actor_sums = jax.grad(self.actor_loss, has_aux=True)(actor, critics, part, keys[2])
            gradients.append(self.flat_actor.join(of_actor))
        max_weights = jax.nn.one_hot(number, self.comm.world.num_shards, dtype=jnp.float32) * part.batch.weight.max()
        row = jnp.concatenate([*gradients, sums, actor_sums, max_weights])
        return jax.lax.optimization_barrier((row, priority))

    def _online_parameters(self, actor_params: Array, critic_params: Array) -> Array:
        """What the target networks follow, in their layout, from the vectors [P] and [Q]."""
        return (
            self.flat_target.join(self._by_name(actor_params, critic_params)) if self._target_actor else critic_params
        )

    def copy_to_target(self) -> None:
        """Copy the networks that are evaluated into those that learn, and these into their target networks."""
        self.state, _ = self._copy(self.state, ())
        self.pass_on_params()

    def _copied(self, state: State, own: tuple[()]) -> tuple[State, tuple[()]]:
        actor_params = self._evaluated_actor(state)
        target_params = jnp.copy(self._online_parameters(actor_params, state.critic_params))
        return state._replace(actor_params=jnp.copy(actor_params), target_params=target_params), own

    def warmup(self) -> None:
        """Compile everything that an update calls, without changing the state; *collective*."""
        blank = [self._blank()] * len(self.replays.buffers)
        state: State = self.comm.replicate(self.comm.read(self.state))
        for length in sorted(self._calls.occurring()):
            if length > 1:
                state, _ = self._steps_spmd(
                    state, (self.comm.shard(stacked([blank] * length)), self.replay_observations.rows())
                )
                continue
            called = [self._step_spmd] if self.config.policy_delay == 1 else [self._step_spmd, self._critic_step_spmd]
            for step in called:
                state, priorities = step(state, (self.comm.shard(blank), self.replay_observations.rows()))
                self.comm.unshard(priorities)
        state, _ = self._copy(state, ())
        self._named(*self.comm.local((state.actor_params, state.critic_params)))
        self._named_evaluated(self.comm.local(state))

    def _blank(self) -> ActorCriticPart:
        """A shard's part of a minibatch of zeros."""
        return self.replay_observations.blank(ActorCriticPart.blank(self.policy, self.rows, self.num_actions))

    def pass_on_params(self) -> None:
        """Give the policy, and the one that is evaluated, their parameters on this process' first device."""
        self.policy.params = self._named(*self.comm.local((self.state.actor_params, self.state.critic_params)))
        if self.evaluated is not self.policy:
            self.evaluated.params = self._named_evaluated(self.comm.local(self.state))

    def _evaluated_actor(self, state: State) -> Array:
        """The parameters [P] of actor and temperature of the policy that is evaluated."""
        return jnp.concatenate([state.average_params, state.actor_params[self._average_size :]])

    def _evaluated_by_name(self, state: State) -> Params:
        return self._by_name(self._evaluated_actor(state), state.critic_params)

    def _by_name(self, actor_params: Array, critic_params: Array) -> Params:
        """All parameters of the policy by name, from the vectors [P] and [Q]."""
        return self.flat_actor.split(actor_params) | with_prefix("critics", self.flat_critics.split(critic_params))

    def _non_finite_error(
        self, rollouts: list[Rollout], minibatches: Sequence[Sequence[ActorCriticPart]], progress: Progress
    ) -> NonFiniteError:
        state, number = self.comm.local(self.state), jnp.zeros((), jnp.int32)
        end = self.flat_critics.num_parameters + self.flat_actor.num_parameters

        def gradient_and_sums(part: ActorCriticPart) -> list[Array]:
            return jnp.split(self._shard_sums(state, number, part, updates_actor=True)[0], [end])

        reader = LossReader(gradient_and_sums, self.rows)
        batches = [self.replay_observations.on_host(parts) for parts in minibatches]
        return locate_non_finite_replayed(self.comm, rollouts, batches, progress, reader)

    def _add_metrics(self, replayed: Replayed, sums: np.ndarray) -> None:
        """Add the metrics of an update, from `State.sums` after its steps."""
        self.metrics.add(("replay/size", "replay/skipped"), [replayed.size, replayed.skipped], 1.0)
        if replayed.num_gradient_steps:
            self.add_step_metrics(replayed.num_gradient_steps, sums)
            self.metrics.add(("optim/learning_rate",), self.comm.read(self.state.learning_rates)[:1], 1.0)

    def add_step_metrics(self, count: int, sums: np.ndarray) -> None:
        """Add the metrics of `count` gradient steps, from `State.sums` after them."""
        if not count:
            return
        ends = [1 + len(VALUE_METRICS), self._num_sums, self._num_sums + 2]
        of_critics, of_actor, norm_sums, num_skipped = np.split(sums, ends)
        num_actor_steps = of_actor[0] / self.config.batch_size  # its rows are counted only in steps that moved it
        self.metrics.add(VALUE_METRICS, of_critics[1:], of_critics[0])
        self.metrics.add(self._actor_metrics, of_actor[1:], of_actor[0])
        self.metrics.add(("optim/grad_norm",), norm_sums[:1], count - num_skipped[0])
        self.metrics.add(("optim/policy_grad_norm",), norm_sums[1:], num_actor_steps)
        self.metrics.add(("optim/skipped",), num_skipped, count)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints; torch uses the same names."""
        totals = {"counters": self.counters.copy(), "metrics": self.metrics.table.copy()}
        return self._named_state() | totals

    def _named_state(self) -> dict[str, np.ndarray]:
        state = cast(State, self.comm.read(self.state))
        named = with_prefix("policy", self._evaluated_by_name(state))
        if self.config.policy_average:
            learned = self.flat_actor.split(state.actor_params)
            named |= with_prefix("learned", {name: learned[name] for name in learned if name != LOG_ALPHA})
        named |= with_prefix("target", self.flat_target.split(state.target_params))
        named |= with_prefix("policy_optimizer", state.actor_optimizer._asdict())
        named |= with_prefix("critic_optimizer", state.critic_optimizer._asdict())
        named |= {"learning_rates": state.learning_rates}
        return {name: np.asarray(array) for name, array in named.items()}

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it."""
        merged = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self._named_state().items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        policy = subtree(named, "policy")
        loaded = self.comm.read(self.state)._replace(
            actor_params=self.flat_actor.join(policy | subtree(named, "learned")),
            average_params=self.flat_actor.join(policy)[: self._average_size],
            critic_params=self.flat_critics.join(subtree(named, "policy.critics")),
            target_params=self.flat_target.join(subtree(named, "target")),
            actor_optimizer=AdamState(**subtree(named, "policy_optimizer")),
            critic_optimizer=AdamState(**subtree(named, "critic_optimizer")),
            learning_rates=named["learning_rates"],
        )
        self.state = self.comm.replicate(loaded)
        self.pass_on_params()
        self.counters[:] = arrays.get("counters", self.counters)
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)
