"""What an update of PPO needs once: values and advantages of rollouts, and normalizers.

Shapes: K shards of this process, L of them on a device, T steps of a rollout, B environments of a shard, O observation.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.ppo import PPOConfig
from lockstep.experience.rollout import Rollout
from lockstep.jax.batch import Batch, Steps, slots
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters, Params
from lockstep.jax.networks import Policy
from lockstep.jax.returns import gae
from lockstep.session.normalizers import Normalizers, UpdateStatistics


def batch_of(config: PPOConfig, policy: Policy, params: Params, steps: Steps, precision: str) -> Batch:
    """Values, log-probabilities and advantages of a shard's rollout, [T * B]; pure.

    What the loss compares with is computed in its `precision`, or their ratio would not begin with 1; advantages never.
    """
    num_steps, size = steps.reward.shape
    seen = steps.observation.reshape(-1, *steps.observation.shape[2:])
    parameters, values = policy.apply(params, seen)
    if steps.parameters is not None:  # those that are not used are not computed
        parameters = steps.parameters.reshape(-1, steps.parameters.shape[-1])
    values = values.reshape(num_steps + 1, size)
    value, next_value = values[:-1], jnp.where(steps.is_final > 0, steps.final_value, values[1:])
    ends, constants = (steps.terminated, steps.ended), {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
    advantage = gae(steps.reward, value, next_value, *ends, **constants)
    rows, old_value = num_steps * size, value
    if precision != "float32":
        parameters, old_value = policy.apply(params, seen[:rows], precision)
    action = steps.action.reshape(rows, *steps.action.shape[2:])
    log_prob, _ = policy.distribution.log_prob_and_entropy(params, parameters[:rows], action)
    columns = (old_value, advantage, advantage + value, steps.weight)
    return Batch(seen[:rows], action, log_prob, *(column.reshape(rows) for column in columns))


class Preparation:
    """Rollouts to batches, the normalizers, and what all shards together know of advantages and targets (float64).

    Attributes:
        normalizers: of observations and of returns.
        fault: which of them would not have been finite in the last update, where environments were not to blame.
    """

    def __init__(self, config: PPOConfig, policy: Policy, comm: Comm, shard_envs: int, precision: str) -> None:
        self._config, self._policy, self._comm = config, policy, comm
        self._shard_envs, self._precision = shard_envs, precision
        size = policy.spec.observation_size if config.normalize_observation else None
        gamma = config.gamma if config.normalize_return else None
        self.normalizers = Normalizers(size, gamma, len(comm.world.shards), shard_envs)
        self.fault: tuple[str, int] | None = None
        self._flat = flat = FlatParameters(policy.params)
        self._value = jax.jit(lambda values, observation: policy.apply(flat.split(values), observation)[1])
        self._spread_batches = comm.spmd(self._batches_of_shards, donate=False)

    @np.errstate(over="ignore", invalid="ignore")  # all ranks together are told of such numbers, with a name
    def prepare(
        self, values: Array, rollouts: list[Rollout], extra_sums: np.ndarray
    ) -> tuple[Batch, UpdateStatistics | None, np.ndarray]:
        """Make batches of the rollouts of local shards, and update the normalizers; one message.

        Args:
            values: the parameters of the policy that acted.
            rollouts: one for each local shard.
            extra_sums: [K, M] numbers to be summed over all shards with the same message.

        Returns:
            The batches [L, T * B] of each device; the statistics of all shards, None if a value is not finite; the sums
            of `extra_sums`.
        """
        comm, batches = self._comm, self.batches(values, rollouts)
        learned = comm.collect((batches.advantage, batches.target))
        sums = [self.sums(rollout, *own) for rollout, own in zip(rollouts, learned, strict=True)]
        parts = zip(sums, self.normalizers.sums(comm, rollouts), extra_sums, strict=True)
        rows = np.stack([np.concatenate(row) for row in parts])
        total, totals = np.split(comm.sum_statistics(rows, "moments"), [-extra_sums.shape[1]])
        statistics, self.fault = self.normalizers.update_statistics(total)
        return batches, statistics, totals

    def batches(self, values: Array, rollouts: list[Rollout]) -> Batch:
        """What the policy makes of the rollouts of local shards, [L, T * B] on each device."""
        value = partial(self._value, self._comm.local(values))
        dealt = self._comm.shard([self.steps(rollout, value) for rollout in rollouts])
        return self._spread_batches(values, dealt)[1]

    def blank(self) -> Rollout:
        """A rollout of zeros that weighs nothing: what to call with what is to be compiled."""
        spec, shape = self._policy.spec, (self._config.num_steps, self._shard_envs)
        seen = np.zeros((shape[0] + 1, shape[1], *spec.observation_shape), spec.observation_dtype)
        action = np.asarray(Batch.blank(spec, shape[0] * shape[1]).action)
        zeros, never = np.zeros(shape, np.float32), np.zeros(shape, bool)
        final = [(0, np.arange(shape[1]), seen[0])]
        return Rollout(seen, action.reshape(*shape, *action.shape[1:]), zeros, never, never, zeros, final)

    def _batches_of_shards(self, values: Array, own: Steps) -> tuple[tuple[()], Batch]:
        found: list[Batch] = []
        for steps in slots(own, len(own.reward)):
            alone, steps = jax.lax.optimization_barrier((values, steps))  # as in `PPO._row`
            batch = batch_of(self._config, self._policy, self._flat.split(alone), steps, self._precision)
            found.append(jax.lax.optimization_barrier(batch))
        return (), jax.tree.map(lambda *columns: jnp.stack(columns), *found)

    def steps(self, rollout: Rollout, value: Callable[[np.ndarray], np.ndarray]) -> Steps:
        """A rollout as the policy saw it, with the normalizers as they were.

        Args:
            rollout: of a shard.
            value: of observations [B, O], which are always that many: shapes never depend on data.
        """
        final_value, is_final = np.zeros_like(rollout.reward), np.zeros_like(rollout.reward)
        if rollout.final:  # where the row after is the next episode's first, the true one is valued
            seen = self._seen(np.concatenate([observation for *_, observation in rollout.final]))
            padded = np.concatenate([seen, np.zeros_like(seen, shape=(-len(seen) % self._shard_envs, *seen.shape[1:]))])
            parts = padded.reshape(-1, self._shard_envs, *seen.shape[1:])
            times = np.concatenate([np.full(len(envs), t) for t, envs, _ in rollout.final])
            where = times, np.concatenate([envs for _, envs, _ in rollout.final])
            final_value[where], is_final[where] = np.concatenate([value(part) for part in parts])[: len(seen)], 1.0
        returns = self.normalizers.returns
        reward = rollout.reward if returns is None else returns.scale(rollout.reward)
        action = rollout.action if rollout.action.dtype == np.float32 else rollout.action.astype(np.int32)
        ends = (rollout.terminated.astype(np.float32), rollout.ended.astype(np.float32))
        columns = (self._seen(rollout.observation), action, reward, *ends, rollout.weight, final_value, is_final)
        return Steps(*cast(Any, columns))

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        observations = self.normalizers.observations
        return observation if observations is None else observations.normalize(observation)

    def sums(self, rollout: Rollout, advantage: np.ndarray, target: np.ndarray) -> np.ndarray:
        """What a shard adds to the moments of advantages and targets [T * B]."""
        weight, wide = rollout.weight.ravel().astype(np.float64), np.stack([advantage, target]).astype(np.float64)
        sums = [weight.sum(keepdims=True), wide @ weight, np.square(wide) @ weight, [float(rollout.fault is not None)]]
        return np.concatenate(sums)

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of the normalizers."""
        named = self.normalizers.named().items()
        return {f"{name}.{key}": array.copy() for name, moments in named for key, array in moments.state().items()}

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `shared_arrays` told; those that are not in it stay."""
        held = self.shared_arrays() | dict(arrays)
        for name, moments in self.normalizers.named().items():
            moments.restore({key: held[f"{name}.{key}"] for key in moments.state()})
