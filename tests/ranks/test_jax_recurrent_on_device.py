"""A recurrent policy on the device acts, and is valued, as if all rollouts were one sequence of steps."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from device_envs import GroupedDrift

from lockstep.algorithms.ppo import PPOConfig
from lockstep.jax.batch_builder import batch_of
from lockstep.jax.device_rollout import DeviceRollout
from lockstep.jax.device_shard import keys_of
from lockstep.jax.envs.packed import PackedEnv
from lockstep.jax.networks import Policy
from lockstep.jax.recurrent import Sequences
from lockstep.run import NetworkConfig

T, B, ROLLOUTS = 8, 3, 4


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_state_is_carried_over_rollouts_and_reset_where_an_episode_begins(recurrent):
    env = PackedEnv(GroupedDrift(max_episode_steps=12))
    network = NetworkConfig(recurrent=recurrent, recurrent_size=5, hidden=(8,), initialization="uniform")
    policy = Policy(env.spec, network, seed=3)
    assert policy.state_size == 2 * policy.actor_state_size, "the critic has recurrent layers of its own"
    rollout = DeviceRollout(env, policy, num_steps=T, shard_envs=B, gamma=0.99)
    shard = rollout.begin(*keys_of(0, 0, B))
    params = {name: jnp.asarray(value) for name, value in policy.params.items()}

    @jax.jit
    def collect(shard, update):
        shard, steps, _ = rollout.rollout(params, {}, shard, update)
        batch, critic_memory = batch_of(PPOConfig(num_steps=T), policy, params, steps, "float32")
        return rollout.remember(shard, steps, critic_memory), steps, batch

    parts = []
    for update in range(ROLLOUTS):
        shard, steps, batch = collect(shard, jnp.int32(update))
        parts.append((steps, batch.value.reshape(T, B)))
    observation, critic, ended, acted, value = (
        np.concatenate(column)
        for column in zip(
            *((s.observation[:-1], s.critic[:-1], s.ended, s.parameters, value) for s, value in parts), strict=True
        )
    )
    assert ended[T - 1 : -1 : T].any(), "an episode should end with a rollout that another follows"
    assert not ended[T - 1 : -1 : T].all(), "an episode should go on in the next rollout"
    begins = np.concatenate([np.ones((1, B)), ended[:-1]]).astype(np.float32)
    flat = [column.reshape(ROLLOUTS * T * B, -1) for column in (observation, critic)]
    whole = Sequences(jnp.zeros((B, policy.state_size)), jnp.asarray(begins))
    parameters, values, _ = policy.unroll(params, flat[0], whole, flat[1])
    np.testing.assert_allclose(
        acted.reshape(parameters.shape), parameters, atol=1e-5, err_msg="acted with other states"
    )
    np.testing.assert_allclose(value.reshape(-1), values, atol=1e-5, err_msg="valued with other states")
