"""PPO with environments on the device, in numbers: its updates are those of the host's learner on the same rollouts.

What passes through the compiled loop is written down: steps, batches, statistics and row orders. Only batches are taken
over, so that normalizers, statistics and parameters of later updates are compared, too.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.experience.rollout import Rollout
from lockstep.jax import ppo_on_device as module
from lockstep.jax.batch import slots
from lockstep.jax.comm import Comm
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.normalizers import UpdateStatistics
from lockstep.world import World

SHARDS, ENVS, STEPS, UPDATES = 2, 4, 32, 3
ROWS = SHARDS * ENVS * STEPS
CONFIG = PPOConfig(
    num_steps=STEPS, num_minibatches=1, num_epochs=1, learning_rate=0.01, learning_rate_schedule="linear",
    normalize_observation=True, normalize_return=True, normalize_value=True, value_limit=1.5, value_clip_range=0.1,
    reward_scale=0.3,
)  # fmt: skip
RUN = Run(
    task="jax/CartPole-v1", ml_framework="jax", num_envs=SHARDS * ENVS, num_shards=SHARDS, algorithm=CONFIG,
    network=NetworkConfig(hidden=(8,)), total_steps=10 * ROWS, check_every=1, env=EnvConfig(max_episode_steps=20),
)  # fmt: skip
RECURRENT = replace(RUN, network=NetworkConfig(hidden=(8,), recurrent="gru", recurrent_size=8))


def written_down(ppo, monkeypatch):
    """What compiled code gives to these functions, by their names, in order."""
    calls = defaultdict(list)

    def note(where, name, chosen):
        original = getattr(where, name)

        def noted(*inputs):
            jax.debug.callback(lambda values: calls[name].append(values), chosen(*inputs), ordered=True)
            return original(*inputs)

        monkeypatch.setattr(where, name, noted)

    note(module, "batch_of", lambda config, policy, params, steps, *_: steps)
    note(ppo, "normalized", lambda batch, statistics: (batch, statistics))
    note(ppo, "learn", lambda state, batches, orders: orders)
    return calls


@pytest.fixture(scope="module", params=[RUN, RECURRENT], ids=["plain", "recurrent"])
def found(request):
    """The updates of the compiled loop: what was written down, and everything that is equal on all ranks after them."""
    updates, run = [], request.param
    with pytest.MonkeyPatch.context() as monkeypatch, Comm(World().with_shards(SHARDS), device="cpu") as comm:
        env = PackedEnv(make_device_env(run.task, run.env))
        ppo = PPO(run, Policy(env.spec, run.network, seed=1), comm, in_loop=True)
        calls, progress = written_down(ppo, monkeypatch), Progress(run.total_steps)
        loop = module.PPODeviceLoop(run, env, ppo)
        for _ in range(UPDATES):
            calls.clear()
            assert loop.run_until_due(progress) == 1
            jax.effects_barrier()
            metrics = ppo.read_metrics()
            called = {name: jax.tree.map(np.asarray, found) for name, found in calls.items()}
            updates.append(SimpleNamespace(**called, arrays=ppo.shared_arrays(), metrics=metrics))
            progress.env_steps += ROWS
            progress.updates += 1
        yield SimpleNamespace(run=run, spec=env.spec, comm=comm, updates=updates)


def rollout_of(steps, normalizers):
    """A shard's rollout as its environments gave it, from the steps that these normalizers changed."""
    observation, reward = steps.observation, steps.reward
    assert np.abs(observation).max() < 10 and np.abs(reward).max() < 10, "clipped"
    if normalizers.observations.count:
        mean, scale = normalizers.observations.mean_and_scale
        observation = observation / scale + mean
        reward = reward * normalizers.returns.center_and_deviation[1]
    flags = (steps.terminated > 0, steps.ended > 0)
    return Rollout(observation, steps.action, reward / CONFIG.reward_scale, *flags, steps.weight, [])


def statistics_of(update, learner, comm):
    """What the host computes in float64 of these rollouts and batches; updates the normalizers of `learner`."""
    normalizers = learner.normalizers
    sums = normalizers.sums(comm, [rollout_of(steps, normalizers) for steps in update.batch_of])
    batches = [batch for batch, _ in update.normalized]
    advantage = np.concatenate([batch.advantage for batch in batches]).astype(float)
    target = np.concatenate([batch.target for batch in batches]) - normalizers.target_origin
    columns = [np.ones(ROWS), advantage, target, np.square(advantage), np.square(target), np.zeros(ROWS)]
    statistics, fault = normalizers.update_statistics(np.concatenate([np.sum(columns, 1), np.sum(sums, 0)]))
    assert fault is None
    return statistics


def test_updates_are_those_of_the_learner_on_the_host(found):
    comm = found.comm
    learner = PPO(found.run, Policy(found.spec, found.run.network, seed=1), comm)

    def one_update(shared, own):
        (state, numbers), (stacked, orders) = shared, own
        batches = [learner.normalized(batch, UpdateStatistics(*numbers)) for batch in slots(stacked, SHARDS)]
        return (learner.learn(state, batches, orders), numbers), ()

    learn = comm.spmd(one_update)
    before = learner.shared_arrays()
    for number, update in enumerate(found.updates):
        assert sum((steps.is_final > 0).sum() for steps in update.batch_of) > 0
        statistics = statistics_of(update, learner, comm)
        for _, mine in update.normalized:
            for name in ("mean", "scale", "target_mean", "target_scale"):
                assert getattr(mine, name) == pytest.approx(getattr(statistics, name), rel=1e-4, abs=1e-5), name
        rate = np.float32(CONFIG.learning_rate * (1 - number * ROWS / RUN.total_steps))
        own = comm.shard([(update.normalized[k][0], update.learn[0][k]) for k in range(SHARDS)])
        state = learner.state._replace(learning_rate=comm.replicate(rate))
        (learner.state, _), _ = learn((state, np.array(statistics, np.float32)), own)
        metrics = learner.read_metrics() | {"value/explained_variance": statistics.explained}
        assert update.metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)
        expected = learner.shared_arrays()
        assert update.arrays.keys() == expected.keys() > {"learning_rate"}
        for name in expected.keys() - {"metrics"}:
            np.testing.assert_allclose(update.arrays[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    moved = [name for name in before if not np.array_equal(before[name], expected[name])]
    assert len(moved) == len(before) - 1, "the test proves little: something else than the metrics did not change"


def test_every_update_and_every_shard_has_a_row_order_of_its_own(found):
    orders = np.concatenate([update.learn[0].reshape(SHARDS, -1) for update in found.updates])
    assert (np.sort(orders) == np.arange(ENVS * STEPS)).all()
    assert len({order.tobytes() for order in orders}) == UPDATES * SHARDS
