"""SAC and TD3 with environments on the device, in numbers: the actions that explore, and what a gradient step computes.

What the compiled loop gives to the learner is written down: which step of which minibatch, in which order.
"""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.env import EnvConfig
from lockstep.jax.actor_critic_on_device import ReplayDeviceLoop
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv
from lockstep.jax.sac import SAC
from lockstep.jax.td3 import TD3
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.world import World
from quick import others_slow

ALGORITHMS = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config)}
SHARDS, ENVS, STEPS, DUE, CRITICS, BOUND = 2, 2, 128, 8, 4, 3.0
ROWS = SHARDS * ENVS * STEPS
NETWORKS = ("policy.", "target.", "policy_optimizer.", "critic_optimizer.")


def run_of(algo):
    config = ALGORITHMS[algo][1](
        num_steps=STEPS, batch_size=16, capacity=8 * ROWS, learning_starts=ROWS + 1, updates_per_step=DUE / ROWS,
        policy_delay=2, num_critics=CRITICS, target_critics=2, learning_rate=0.01, target_rate=0.1,
    )  # fmt: skip
    return Run(
        task="lockstep/Cartpole-v0", algo=algo, ml_framework="jax", num_envs=SHARDS * ENVS, num_shards=SHARDS, seed=5,
        algorithm=config, total_steps=100 * ROWS, network=NetworkConfig(hidden=(8,)), check_every=1,
        env=EnvConfig(clip_action=BOUND),
    )  # fmt: skip


def learner_of(run, env, comm):
    policy = ContinuousPolicy(env.spec, run.network, run.algorithm, seed=1)
    return ALGORITHMS[run.algo][0](run, policy, comm, on_device=True)


def written_down(learner):
    """The steps that compiled code takes, in order: name, and parts of all shards."""
    calls = []

    def note(name):
        original = getattr(learner, name)

        def noted(state, own):
            jax.debug.callback(lambda part: calls.append((name, part)), own[0], ordered=True)
            return original(state, own)

        setattr(learner, name, noted)

    note("step")
    note("critic_step")
    return calls


@pytest.fixture(scope="module", params=others_slow(ALGORITHMS, "sac"))
def found(request):
    """Four updates: two of random actions, of which the second learns, and two of the policy."""
    run, updates = run_of(request.param), []
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        env = PackedEnv(make_device_env(run.task, run.env))
        learner = learner_of(run, env, comm)
        calls = written_down(learner)
        loop, progress = ReplayDeviceLoop(run, env, learner), Progress(run.total_steps)
        for _ in range(4):
            acting, before, known = learner.policy.params, learner.shared_arrays(), len(calls)
            assert loop.run_until_due(progress) == 1
            jax.effects_barrier()
            own = [(name, jax.tree.map(np.asarray, part)) for name, part in calls[known:]]
            updates.append(SimpleNamespace(acting=acting, before=before, after=learner.shared_arrays(), calls=own))
            progress.env_steps += ROWS
            progress.updates += 1
        rings = [loop.shard_state(k)["replay"] for k in range(SHARDS)]
        yield SimpleNamespace(run=run, env=env, comm=comm, policy=learner.policy, updates=updates, rings=rings)


def test_actions_are_uniform_first_and_then_have_the_noise_of_the_policy(found):
    policy, drawn = found.policy, []
    for number, update in enumerate(found.updates):
        rows = slice(number * STEPS, (number + 1) * STEPS)
        scaled = np.stack([ring["action"][rows].ravel() for ring in found.rings]) / BOUND
        if number < 2:
            assert (np.abs(scaled) <= 1).all()
            np.testing.assert_allclose(scaled.mean(1), 0.0, atol=0.15)
            np.testing.assert_allclose(np.quantile(scaled, [0.1, 0.25, 0.75, 0.9]), [-0.8, -0.5, 0.5, 0.8], atol=0.12)
            drawn += list(scaled)
            continue
        seen = np.concatenate([ring["observation"][rows].reshape(-1, 4) for ring in found.rings])
        parameters = np.asarray(policy.parameters(update.acting, seen), np.float64).reshape(*scaled.shape, -1)
        if found.run.algo == "sac":
            inside = np.arctanh(scaled.astype(np.float64).clip(-1 + 1e-7, 1 - 1e-7))
            noise = (inside - parameters[..., 0]) / np.exp(parameters[..., 1])
        else:
            noise = (scaled - np.tanh(parameters[..., 0])) / found.run.algorithm.exploration_noise
        np.testing.assert_allclose(noise.mean(1), 0.0, atol=0.2)
        np.testing.assert_allclose(noise.std(1), 1.0, atol=0.15)
        drawn += list(noise)
    shared = np.abs(np.corrcoef(drawn) - np.eye(len(drawn)))
    assert shared.max() < 0.25, "two shards or two updates share noise"


def test_gradient_steps_are_those_of_the_learner_on_the_minibatches_that_were_drawn(found):
    comm, fresh = found.comm, learner_of(found.run, found.env, found.comm)
    steps = {name: comm.spmd(getattr(fresh, name)) for name in ("step", "critic_step")}
    assert [len(update.calls) for update in found.updates] == [0, DUE, DUE, DUE]
    for update in found.updates[1:]:
        assert [name for name, _ in update.calls] == ["critic_step", "step"] * (DUE // 2)
        fresh.load_shared(update.before)
        state = fresh.state
        for name, parts in update.calls:
            own = comm.shard([jax.tree.map(lambda leaf, k=k: leaf[k], parts) for k in range(SHARDS)])
            state, _ = steps[name](state, (own, None))
        fresh.state = state
        expected = fresh.shared_arrays()
        for name in (name for name in expected if name.startswith(NETWORKS)):
            np.testing.assert_allclose(update.after[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    first, last = found.updates[0].before, found.updates[-1].after
    still = [name for name in first if name.startswith(NETWORKS) and np.array_equal(first[name], last[name])]
    assert not still, f"the test proves nothing: {still} did not change"


def test_every_gradient_step_draws_its_own_transitions_noise_and_critics(found):
    parts = [part for update in found.updates for _, part in update.calls]
    noise = np.stack([part.batch.noise for part in parts])
    assert noise.mean() == pytest.approx(0.0, abs=0.15)
    assert noise.std() == pytest.approx(1.0, abs=0.1)
    observation = np.stack([part.batch.observation for part in parts])
    for drawn in (noise, observation):
        different = {rows.tobytes() for rows in drawn.reshape(-1, *drawn.shape[2:])}
        assert len(different) == SHARDS * len(parts), "two steps or two shards draw the same"
    for k, ring in enumerate(found.rings):
        stored = {row.tobytes() for row in ring["observation"].reshape(-1, 4)}
        assert {row.tobytes() for row in observation[:, k].reshape(-1, 4)} <= stored, "of another shard"
    chosen = np.stack([part.target_critics for part in parts])
    assert (chosen[:, 0] == chosen[:, 1]).all(), "shards chose different critics"
    assert (chosen[:, 0, 0] < chosen[:, 0, 1]).all(), "a critic twice, or out of order"
    share = np.bincount(chosen[:, 0].ravel(), minlength=CRITICS) / len(chosen)
    np.testing.assert_allclose(share, 2 / CRITICS, atol=0.3)
