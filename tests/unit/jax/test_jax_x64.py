"""Learners where JAX has 64 bits, as an environment may need them: parameters and sums are float32 all the same.

Everything is traced and nothing is compiled: types are known then.
"""

from contextlib import contextmanager

import pytest

pytest.importorskip("jax")

import jax

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.config.env import EnvConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.jax.actor_critic_on_device import ReplayDeviceLoop
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.dqn import DQN
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv
from lockstep.jax.networks import Policy, actor_of
from lockstep.jax.ppo import PPO
from lockstep.jax.ppo_on_device import PPODeviceLoop
from lockstep.jax.q_networks import QPolicy
from lockstep.jax.sac import SAC
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.world import World

DISCRETE = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
BOX = EnvSpec(3, ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)), "same_step", True)
REPLAY = {"num_steps": 8, "batch_size": 8, "capacity": 256, "learning_starts": 0, "updates_per_step": 4 / 32}


@contextmanager
def traced():
    """A `Comm` in a JAX of 64 bits whose compiled functions are only traced, and return zeros."""
    with jax.enable_x64(True), Comm(World(), device="cpu") as comm:
        compile = comm.spmd

        def spmd(function, **kwargs):
            compiled = compile(function, **kwargs)

            def call(shared, own):
                outputs = jax.eval_shape(compiled, shared, own)
                assert not [leaf for leaf in jax.tree.leaves(outputs) if leaf.dtype == "float64"]
                return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), outputs)

            return call

        comm.spmd = spmd
        yield comm


def run_of(task, algo, algorithm, clip_action=None, **network):
    return Run(
        task=task, algo=algo, ml_framework="jax", num_envs=4, total_steps=320, algorithm=algorithm,
        env=EnvConfig(clip_action=clip_action), network=NetworkConfig(hidden=(8,), **network),
    )  # fmt: skip


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_learners_of_rollouts_from_the_host(algo):
    with traced() as comm:
        if algo == "ppo":
            run = run_of("t", algo, PPOConfig(num_steps=8, num_minibatches=1, num_epochs=1))
            policy = Policy(DISCRETE, run.network)
            PPO(run, policy, comm).warmup(actor_of(policy, jax.devices("cpu")[0]))
        elif algo == "dqn":
            run = run_of("t", algo, DQNConfig(**REPLAY))
            DQN(run, QPolicy(DISCRETE, run.network, run.algorithm), comm).warmup()
        else:
            run = run_of("t", algo, SACConfig(**REPLAY))
            SAC(run, ContinuousPolicy(BOX, run.network, run.algorithm), comm).warmup()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_environments_on_the_device(algo):
    with traced() as comm:
        if algo == "ppo":
            config = PPOConfig(num_steps=8, num_minibatches=1, num_epochs=1, normalize_observation=True)
            run = run_of("jax/CartPole-v1", algo, config, recurrent="gru", recurrent_size=4)
            env = PackedEnv(make_device_env(run.task, run.env))
            learner = PPO(run, Policy(env.spec, run.network), comm, in_loop=True)
            loop = PPODeviceLoop(run, env, learner)
        else:
            run = run_of("lockstep/Cartpole-v0", algo, SACConfig(**REPLAY), clip_action=1.0)
            env = PackedEnv(make_device_env(run.task, run.env))
            learner = SAC(run, ContinuousPolicy(env.spec, run.network, run.algorithm), comm, on_device=True)
            loop = ReplayDeviceLoop(run, env, learner)
        loop.run_until_due(Progress(run.total_steps))
