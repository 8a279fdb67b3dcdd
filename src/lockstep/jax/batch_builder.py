"""The once-per-update part of PPO: rollouts to batches with values and advantages, and the normalizers.

Shapes: K shards of this process, L of them on a device, T steps of a rollout, B environments of a shard, O and C
numbers of the policy's and of the critic's observation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.joined_groups import joined_shape, split_groups
from lockstep.experience.normalize import RunningMoments
from lockstep.experience.rollout import Rollout
from lockstep.jax.batch import Batch, Steps, slots
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters, Params
from lockstep.jax.moments import normalized
from lockstep.jax.networks import Policy
from lockstep.jax.recurrent import Sequences, finite_state
from lockstep.jax.returns import gae
from lockstep.jax.symmetry import Symmetry
from lockstep.session.normalizers import Normalizers, UpdateStatistics


def batch_of(
    config: PPOConfig,
    policy: Policy,
    params: Params,
    steps: Steps,
    precision: str,
    targets: tuple[Array, Array] | None = None,
) -> tuple[Batch, Array | None]:
    """Values, log-probabilities and advantages of a shard's rollout, [T * B]; pure.

    `targets`: mean and standard deviation that the value network's targets are normalized by, if they are. Old values
    and log-probabilities have the `precision` of the loss, so that ratios start at 1. Advantages are always float32.

    Returns:
        The batch, and the state [B, S - A] after the rollout of a recurrent policy's critic, empty if it shares that
        of the actor; None for other policies.
    """
    num_steps, size = steps.reward.shape
    rows = num_steps * size
    observation = steps.observation.reshape(-1, *steps.observation.shape[2:])
    critic = _flat(steps.critic)
    final_value, states, begins, critic_state = steps.final_value, None, None, None
    if steps.state is None:
        parameters, values = policy.apply(params, observation, critic=critic)
    else:
        parameters, values, final_value, states = _unrolled(policy, params, steps)
        critic_state = finite_state(states[-2, :, policy.actor_state_size :])
        states, begins = states[:-2].reshape(rows, -1), cast(Array, steps.begins)[:-1].reshape(rows)
    if steps.parameters is not None:  # XLA then removes the unused actor output above
        parameters = steps.parameters.reshape(-1, steps.parameters.shape[-1])

    values = values.reshape(num_steps + 1, size)
    value = _in_real_units(config, targets, values[:-1])
    next_value = _in_real_units(config, targets, jnp.where(steps.is_final > 0, final_value, values[1:]))
    flags = (steps.terminated, steps.ended)
    advantage = gae(steps.reward, value, next_value, *flags, gamma=config.gamma, gae_lambda=config.gae_lambda)
    old_value = value
    if precision != "float32":
        parameters, old_value = policy.apply(
            params, observation[:rows], precision, critic=None if critic is None else critic[:rows]
        )
        old_value = _in_real_units(config, targets, old_value)
    action = steps.action.reshape(rows, *steps.action.shape[2:])
    log_prob, _ = policy.distribution.log_prob_and_entropy(params, parameters[:rows], action)
    batch = Batch(
        observation[:rows],
        action,
        log_prob,
        value=old_value.reshape(rows),
        advantage=advantage.reshape(rows),
        target=(advantage + value).reshape(rows),
        weight=steps.weight.reshape(rows),
        state=states,
        begins=begins,
        mirrored_observation=_flat(steps.mirrored_observation),
        mirrored_action=_flat(steps.mirrored_action),
        mirrored_critic=_flat(steps.mirrored_critic),
        critic=None if critic is None else critic[:rows],
    )
    return batch, critic_state


def _in_real_units(config: PPOConfig, targets: tuple[Array, Array] | None, value: Array) -> Array:
    """A value of the network, which predicts normalized targets, as a return."""
    if targets is None:
        return value
    limited = value if config.value_limit is None else jnp.clip(value, -config.value_limit, config.value_limit)
    return limited * targets[1] + targets[0]


@jax.jit
def _placed(final: Array, t: Array, envs: Array, rows: Array) -> Array:
    """Final observations [T, B, ...] with `rows` at steps t and environments `envs`."""
    return final.at[t, envs].set(rows, mode="drop")


def _normalized(moments: RunningMoments, rows: np.ndarray) -> Any:
    """Rows of a rollout in numpy or on a device, normalized there."""
    return normalized(moments, rows) if isinstance(rows, Array) else moments.normalize(rows)


def _flat(column: Array | None) -> Array | None:
    """[T, B, ...] as [T * B, ...]."""
    return None if column is None else column.reshape(-1, *column.shape[2:])


def _unrolled(policy: Policy, params: Params, steps: Steps) -> tuple[Array, Array, Array, Array]:
    """Run a recurrent policy over a rollout and the observation after it.

    Returns:
        Distribution parameters and values [(T + 1) * B], values of final observations [T, B], and the states *before*
        each step and after the last [T + 2, B, S].
    """
    assert steps.state is not None and steps.begins is not None and steps.final is not None
    observation, final = (x.reshape(-1, *x.shape[2:]) for x in (steps.observation, steps.final))
    parameters, values, after = policy.unroll(
        params, observation, Sequences(steps.state, steps.begins), _flat(steps.critic)
    )
    after = after.reshape(*steps.begins.shape, -1)
    before_final = after[:-1].reshape(len(final), -1)
    alone = Sequences(before_final, jnp.zeros((1, len(final)), jnp.float32))
    _, final_value, _ = policy.unroll(params, final, alone, _flat(steps.final_critic))
    states = jnp.concatenate([steps.state[None], after])
    return parameters, values, final_value.reshape(steps.reward.shape), states


class BatchBuilder:
    """Turns rollouts into batches and updates the normalizers, with float64 statistics over all shards.

    Args:
        config: of PPO.
        policy: that acted.
        comm: the ranks.
        shard_envs: B.
        precision: of the loss.
        symmetry: adds mirrored copies, if there is one.

    Attributes:
        normalizers: of observations and of returns.
        fault: the normalizer column whose moments overflowed in the last update, if the environments' values did not.
        critic_states: of a recurrent policy whose critic has recurrent layers of its own: its state [B, S - A] before
            the next rollout of each local shard. That of the actor is in the rollout.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: Policy,
        comm: Comm,
        shard_envs: int,
        precision: str,
        symmetry: Symmetry | None = None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._comm = comm
        self._shard_envs = shard_envs
        self._precision = precision
        self._symmetry = symmetry
        self.normalizers = Normalizers.of(config, policy.spec, len(comm.world.shards), shard_envs)
        self.fault: tuple[str, int] | None = None
        self._flat = flat = FlatParameters(policy.params)
        self._value = jax.jit(
            lambda vector, observation, critic: policy.apply(flat.split(vector), observation, critic=critic)[1]
        )
        critic_size = policy.state_size - policy.actor_state_size
        self.critic_states = [np.zeros((shard_envs, critic_size), np.float32) for _ in comm.world.shards]
        self._build_spmd = comm.spmd(self._batches_of_shards, donate=False)

    @np.errstate(over="ignore", invalid="ignore")  # non-finite sums are reported on all ranks, with their source
    def build(
        self, flat_params: Array, rollouts: list[Rollout], caller_sums: np.ndarray
    ) -> tuple[Batch, UpdateStatistics | None, np.ndarray]:
        """Build the batches of all local shards and update the normalizers; collective, one message.

        Args:
            flat_params: parameters [P] of the policy that acted.
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers to sum over all shards in the same message.

        Returns:
            The batches [L, T * B] of each device; the statistics of all shards, None if a value is not finite; the sums
            of `caller_sums`.
        """
        batches = self.batches(flat_params, rollouts)
        if self.critic_states[0].size:
            self.critic_states = self._comm.unshard(self._critic_states_after)
        columns = self._comm.unshard((batches.advantage, batches.target))
        sums = [self.sums(rollout, *own) for rollout, own in zip(rollouts, columns, strict=True)]
        parts = zip(sums, self.normalizers.sums(self._comm, rollouts), caller_sums, strict=True)
        rows = np.stack([np.concatenate(row) for row in parts])
        total, caller_sums = np.split(self._comm.sum_statistics(rows, "moments"), [-caller_sums.shape[1]])
        statistics, self.fault = self.normalizers.update_statistics(total)
        return batches, statistics, caller_sums

    def batches(self, flat_params: Array, rollouts: list[Rollout]) -> Batch:
        """The batches of the rollouts of local shards, [L, T * B] on each device."""
        value = partial(self._value, self._comm.local(flat_params))
        sharded = self._comm.shard([self.steps(k, rollout, value) for k, rollout in enumerate(rollouts)])
        moments = self.normalizers.values
        targets = () if moments is None else tuple(np.float32(x) for x in moments.center_and_deviation)
        batches, self._critic_states_after = self._build_spmd((flat_params, targets), sharded)[1]
        return batches

    def blank(self) -> Rollout:
        """A rollout of zeros with weight 0, to compile with."""
        spec, shape = self._policy.spec, (self._config.num_steps, self._shard_envs)
        observation = np.zeros((shape[0] + 1, shape[1], *joined_shape(spec)), spec.observation_dtype)
        action = np.asarray(Batch.blank(spec, shape[0] * shape[1]).action)
        zeros, never = np.zeros(shape, np.float32), np.zeros(shape, bool)
        final = [(0, np.arange(shape[1]), observation[0])]
        rollout = Rollout(observation, action.reshape(*shape, *action.shape[1:]), zeros, never, never, zeros, final)
        if self._policy.state_size > 0:
            rollout.state = np.zeros((shape[1], self._policy.actor_state_size), np.float32)
            rollout.begins = np.zeros((shape[0] + 1, shape[1]), bool)
        return rollout

    def _batches_of_shards(
        self, shared: tuple[Array, tuple[Array, Array] | tuple[()]], own: Steps
    ) -> tuple[tuple[()], tuple[Batch, Array | None]]:
        outputs: list[tuple[Batch, Array | None]] = []
        flat_params, targets = shared
        for steps in slots(own, len(own.reward)):
            isolated, steps = jax.lax.optimization_barrier((flat_params, steps))  # as in `PPO._shard_sums`
            params = self._flat.split(isolated)
            output = batch_of(self._config, self._policy, params, steps, self._precision, targets or None)
            outputs.append(jax.lax.optimization_barrier(output))
        return (), jax.tree.map(lambda *columns: jnp.stack(columns), *outputs)

    def steps(self, k: int, rollout: Rollout, value: Callable[[np.ndarray, np.ndarray | None], np.ndarray]) -> Steps:
        """A rollout as the policy saw it, with the normalizers frozen.

        Args:
            k: number of the local shard.
            rollout: of this shard.
            value: values of observations [B, O] and the critic's own [B, C], if any. It is always called with B rows:
                shapes must not depend on data.
        """
        final_value, is_final = np.zeros_like(rollout.reward), np.zeros_like(rollout.reward)
        if rollout.state is not None:
            return self._recurrent_steps(k, rollout, final_value)
        if rollout.final:  # the true last observation, where the next row is already the next episode's first
            times = np.concatenate([np.full(len(envs), t) for t, envs, _ in rollout.final])
            where = times, np.concatenate([envs for _, envs, _ in rollout.final])
            values = [value(*split_groups(chunk, self._policy.spec)) for chunk in self._final_chunks(rollout)]
            final_value[where] = np.concatenate(values)[: len(times)]
            is_final[where] = 1.0
        return self._steps(rollout, final_value, is_final)

    def _final_chunks(self, rollout: Rollout) -> Sequence[np.ndarray]:
        """Final observations, normalized, in chunks [B, ...] of which the last may be padded."""
        rows = [observation for *_, observation in rollout.final]
        if isinstance(rows[0], Array):  # already in chunks
            return [self._normalize(chunk) for chunk in rows]
        final = self._normalize(np.concatenate(rows))
        padding = np.zeros_like(final, shape=(-len(final) % self._shard_envs, *final.shape[1:]))
        return list(np.concatenate([final, padding]).reshape(-1, self._shard_envs, *final.shape[1:]))

    def _recurrent_steps(self, k: int, rollout: Rollout, final_value: np.ndarray) -> Steps:
        """`steps` of a recurrent policy, which values final observations where it has the states before them."""
        assert rollout.state is not None and rollout.begins is not None
        is_final = np.zeros_like(rollout.reward)
        for t, envs, _ in rollout.final:
            is_final[t, envs] = 1.0
        state = np.concatenate([rollout.state, self.critic_states[k]], -1)
        begins = rollout.begins.astype(np.float32)
        final, final_critic = split_groups(self._final_by_step(rollout), self._policy.spec)
        steps = self._steps(rollout, final_value, is_final)
        return steps._replace(state=state, begins=begins, final=cast(Any, final), final_critic=cast(Any, final_critic))

    def _final_by_step(self, rollout: Rollout) -> Any:
        """Final observations [T, B, ...], normalized, where an episode was truncated, and 0 elsewhere."""
        observation: Any = rollout.observation
        if isinstance(observation, Array):
            final = jnp.zeros_like(observation[:-1])
            for t, envs, last in rollout.final:
                place = np.full((2, len(last)), len(final))  # the rows of padding are out of bounds, and dropped
                place[:, : len(envs)] = t, envs
                final = _placed(final, *place, self._normalize(last))
            return final
        final = np.zeros_like(observation[:-1], np.uint8 if observation.dtype == np.uint8 else np.float32)
        for t, envs, last in rollout.final:
            final[t, envs] = self._normalize(last)
        return final

    def _steps(self, rollout: Rollout, final_value: np.ndarray, is_final: np.ndarray) -> Steps:
        observation, critic = split_groups(self._normalize(rollout.observation), self._policy.spec)
        columns = (
            observation,
            rollout.action if rollout.action.dtype == np.float32 else rollout.action.astype(np.int32),
            self.normalizers.scaled_reward(rollout.reward),
            rollout.terminated.astype(np.float32),
            rollout.ended.astype(np.float32),
            rollout.weight,
            final_value,
            is_final,
        )
        steps = Steps(*cast(Any, columns), critic=cast(Any, critic))
        if self._symmetry is None:
            return steps
        raw = [part for part in split_groups(rollout.observation[:-1], self._policy.spec) if part is not None]
        copies, action = self._symmetry.mirrored(raw, steps.action)
        on_device = isinstance(rollout.observation, Array)
        rows: list[Any] = [copy if on_device else np.asarray(copy) for copy in copies]
        groups: list[Any] = self._normalize_groups(rows)
        return steps._replace(
            mirrored_observation=groups[0],
            mirrored_action=action,
            mirrored_critic=groups[1] if len(groups) > 1 else None,
        )

    def _normalize(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a rollout, with the groups of policy and critic each normalized by its own moments."""
        if self.normalizers.observations is None:
            return rows
        xp: Any = jnp if isinstance(rows, Array) else np
        groups = [part for part in split_groups(rows, self._policy.spec) if part is not None]
        return xp.concatenate(self._normalize_groups(groups), -1)

    def _normalize_groups(self, groups: list[np.ndarray]) -> list[np.ndarray]:
        """Observations, and the critic's own, if any, each normalized by its own moments, if they are normalized."""
        moments = (self.normalizers.observations, self.normalizers.critic_observations)
        return [part if of is None else _normalized(of, part) for part, of in zip(groups, moments, strict=False)]

    def sums(self, rollout: Rollout, advantage: np.ndarray, target: np.ndarray) -> np.ndarray:
        """A shard's contribution to the moments of advantages and targets [T * B], and whether it has a fault."""
        weight = rollout.weight.ravel().astype(np.float64)
        wide = np.stack([advantage, target]).astype(np.float64)
        wide[1] -= self.normalizers.target_origin
        sums = [weight.sum(keepdims=True), wide @ weight, np.square(wide) @ weight, [float(rollout.fault is not None)]]
        return np.concatenate(sums)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of the normalizers' moments, by name."""
        named = self.normalizers.named().items()
        return {f"{name}.{key}": array.copy() for name, moments in named for key, array in moments.state().items()}

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`; moments without an entry are unchanged."""
        current = self.shared_arrays() | dict(arrays)
        for name, moments in self.normalizers.named().items():
            moments.restore({key: current[f"{name}.{key}"] for key in moments.state()})
