"""The compiled loop of PPO on the device: how long a call is, and what is within its loops."""

import numpy as np
import pytest

pytest.importorskip("jax")

from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError
from lockstep.jax.comm import Comm
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.jax.ppo_on_device import PPODeviceLoop
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.placement import learns_on_device
from lockstep.system import nvidia
from lockstep.world import World

UPDATE = 4 * 8


def run_of(**kwargs):
    kwargs.setdefault("algorithm", PPOConfig(num_steps=8, num_minibatches=1, num_epochs=1))
    periods = {"log_every": 1000 * UPDATE, "evaluate_every": None, "checkpoint_every": None}
    settings = {"task": "jax/CartPole-v1", "num_envs": 4, "total_steps": 1000 * UPDATE, "check_every": 7}
    return Run(ml_framework="jax", **periods, **settings | kwargs)


@pytest.fixture
def comm():
    with Comm(World(), device="cpu") as alone:
        yield alone


def advance(loop, progress):
    count = loop.run_until_due(progress)
    progress.updates += count
    progress.env_steps += count * UPDATE
    return count


@pytest.mark.parametrize(("timeout_s", "counts"), [(1000.0, [1, 6, 7]), (1e-3, [1, 1, 1])])
def test_a_call_takes_a_part_of_the_timeout(comm, timeout_s, counts):
    """The watch sees no progress of a rank during a call."""
    run = run_of(timeout_s=timeout_s)
    env = PackedEnv(make_device_env(run.task, run.env))
    ppo = PPO(run, Policy(env.spec, run.network, seed=0), comm, in_loop=True)
    loop = PPODeviceLoop(run, env, ppo)
    progress = Progress(run.total_steps)
    assert [advance(loop, progress) for _ in counts] == counts


def test_the_length_of_calls_changes_no_learning_rate(comm):
    """After a resumption with another `num_steps` the steps so far are no whole number of rollouts."""
    rates = []
    for calls in ([2], [1, 1]):
        run = run_of(total_steps=9150, algorithm=PPOConfig(num_steps=9, num_minibatches=1, num_epochs=1))
        env = PackedEnv(make_device_env(run.task, run.env))
        ppo = PPO(run, Policy(env.spec, run.network, seed=0), comm, in_loop=True)
        loop, progress = PPODeviceLoop(run, env, ppo), Progress(run.total_steps, updates=100)
        progress.env_steps = 4575
        for count in calls:
            loop._call(progress, count)
            progress.updates += count
            progress.env_steps += count * 4 * 9
        rates.append(float(comm.read(ppo.state.learning_rate)))
    assert rates[0] == rates[1] == pytest.approx(run.algorithm.learning_rate * (1 - 4611 / 9150))


def test_advantages_far_from_zero_keep_their_scale(comm):
    """The mean of the advantages is some 20,000 of their deviations: more than a float32 square has digits for."""
    rewards = PPOConfig(
        num_steps=8, num_minibatches=1, num_epochs=1, gamma=0.0, gae_lambda=0.0, reward_scale=1000.0, value_coef=0.0
    )
    run = run_of(algorithm=rewards)
    env = PackedEnv(make_device_env(run.task, run.env))
    ppo = PPO(run, Policy(env.spec, run.network, seed=0), comm, in_loop=True)
    assert PPODeviceLoop(run, env, ppo).run_until_due(Progress(run.total_steps)) == 1
    found = ppo.read_metrics()
    assert found["optim/skipped"] == 0 and 0.01 < found["optim/grad_norm"] < 2.0


def test_environments_that_have_changed_since_the_checkpoint_are_refused(comm):
    run = run_of()
    env = PackedEnv(make_device_env(run.task, run.env))
    loop = PPODeviceLoop(run, env, PPO(run, Policy(env.spec, run.network, seed=0), comm, in_loop=True))
    saved = loop.shard_state(0)
    changes = (
        {"state": [*saved["state"], np.zeros(4)]},
        {"state": [np.zeros((4, 9)), *saved["state"][1:]]},
        {"observation": saved["observation"][:, :-1]},
    )
    for change in changes:
        with pytest.raises(ConfigError, match=r"task=jax/CartPole-v1: .*other shapes than in the checkpoint; .*--init"):
            loop.restore_shard(0, saved | change, 0)
    assert loop.restore_shard(0, saved, 0)


def test_what_a_process_reads_of_one_shard_is_that_shard(comm):
    parts = [{"a": np.full(3, k), "b": np.array(10 * k)} for k in range(3)]
    with Comm(World().with_shards(3), device="cpu") as three:
        own = three.shard(parts)
        for k, part in enumerate(parts):
            found = three.unshard_one(own, k)
            assert found["a"].tolist() == part["a"].tolist() and found["b"] == part["b"]


@pytest.mark.parametrize(
    ("device", "gpu", "placement", "expected"),
    [
        ("cpu", True, "auto", False),
        ("auto", False, "auto", False),
        ("auto", True, "auto", True),
        ("cpu", False, "device", True),
        ("auto", True, "host", False),
    ],
)
def test_pictures_are_learned_from_on_the_host_without_a_gpu(monkeypatch, device, gpu, placement, expected):
    monkeypatch.setattr(nvidia, "nvidia_gpu_present", lambda: True)
    monkeypatch.setattr(nvidia, "find_spec", lambda name: gpu or None)  # JAX's plugin for GPUs
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    run = run_of(task="lockstep/PixelPong-v0", device=device, env=EnvConfig(placement=placement))
    assert learns_on_device(run) is expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert learns_on_device(run) is (placement == "device")
    cartpole = run_of(task="lockstep/Cartpole-v0", device="cpu", env=EnvConfig())
    assert learns_on_device(cartpole)
