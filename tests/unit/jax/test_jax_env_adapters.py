"""Environments of gymnax, Brax and MuJoCo Playground, where they are installed."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import ConfigError
from lockstep.jax.envs.gymnasium_cartpole import CartPole, CartPoleState
from lockstep.jax.envs.make import make_device_env
from lockstep.run import EnvConfig

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.usefixtures("_promotion"),
]


@pytest.fixture
def _promotion():
    """These libraries stretch arrays, and may."""
    with jax.numpy_rank_promotion("allow"):
        yield


def play(env, steps):
    """Random actions: what was given, and how often episodes ended and were cut."""
    spec, rng = env.spec, np.random.default_rng(0)
    seen = [env.reset(list(range(env.num_envs)))]
    rewards, ended, cut = [], 0, 0
    for _ in range(steps):
        if spec.action.kind == "discrete":
            action = rng.integers(0, spec.action.sizes[0], env.num_envs)
        else:
            action = rng.uniform(spec.action.low, spec.action.high, (env.num_envs, spec.action.width)).astype("f4")
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(observation)
        rewards.append(reward)
        ended, cut = ended + int(terminated.sum()), cut + int((truncated & ~terminated).sum())
    return np.stack(seen), np.stack(rewards), ended, cut


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "Breakout-MinAtar", "MountainCar-v0"])
def test_gymnax_plays(name):
    pytest.importorskip("gymnax")
    env = make_vector_env(f"gymnax/{name}", EnvConfig(max_episode_steps=30), 3)
    seen, rewards, ended, cut = play(env, 70)
    assert seen.shape == (71, 3, env.spec.observation_size)
    assert np.isfinite(seen).all()
    assert np.isfinite(rewards).all()
    assert ended + cut >= 3
    assert len({seen[1, i].tobytes() for i in range(3)}) > 1 or name.startswith(("Catch", "Breakout"))
    if name in ("Pendulum-v1", "MountainCar-v0"):
        assert (ended, cut) == (0, 6), "cut after 30 steps, and no more"


def test_gymnax_cartpole_is_ours_but_for_its_reward():
    pytest.importorskip("gymnax")
    theirs, ours = make_device_env("gymnax/CartPole-v1", EnvConfig()), CartPole()
    step, mine = jax.jit(theirs.step), jax.jit(ours.step)
    state = theirs.reset(jax.random.key(1))
    own = CartPoleState(*theirs.observe(state), jnp.zeros((), jnp.int32))
    for t in range(30):
        state, seen, reward, terminated, truncated = step(state, jnp.int32(t % 3 > 0), jax.random.key(t))
        own, my_seen, my_reward, my_end, my_cut = mine(own, jnp.int32(t % 3 > 0), jax.random.key(t))
        np.testing.assert_allclose(seen, my_seen, rtol=1e-5, atol=1e-6)
        assert (bool(terminated), bool(truncated), float(reward)) == (bool(my_end), bool(my_cut), float(my_reward))
        np.testing.assert_array_equal(theirs.observe(state), seen)
        if terminated:
            return
    pytest.fail("no episode ended")


def test_gymnax_takes_its_parameters_by_name():
    pytest.importorskip("gymnax")
    changed = EnvConfig(kwargs={"force_mag": 1.0}, max_episode_steps=7)
    assert env_spec("gymnax/CartPole-v1", changed).max_episode_steps == 7
    spin = []
    for config in (EnvConfig(), changed):
        env = make_vector_env("gymnax/CartPole-v1", config, 1)
        before = env.reset([0])
        spin.append(abs(env.step(np.zeros(1, np.int64))[0][0, 1] - before[0, 1]))
    assert spin[1] < 0.2 * spin[0]
    with pytest.raises(ConfigError, match="did you mean force_mag"):
        env_spec("gymnax/CartPole-v1", EnvConfig(kwargs={"force_magg": 1.0}))
    with pytest.raises(ConfigError, match="did you mean CartPole-v1"):
        env_spec("gymnax/CartPol-v1", EnvConfig())


def test_brax_plays():
    pytest.importorskip("brax.envs")
    config = EnvConfig(kwargs={"backend": "positional"}, max_episode_steps=8)
    env = make_vector_env("brax/inverted_pendulum", config, 2)
    assert env.spec.action.low == (-1.0,)
    seen, rewards, ended, cut = play(env, 20)
    assert seen.shape == (21, 2, 4)
    assert (np.isfinite(seen).all(), np.isfinite(rewards).all()) == (True, True)
    assert (seen[0, 0] != seen[0, 1]).any()
    assert ended + cut >= 4
    with pytest.raises(ConfigError, match="did you mean inverted_pendulum"):
        env_spec("brax/inverted_pendulums", EnvConfig())


def test_the_playground_plays():
    pytest.importorskip("mujoco_playground")
    env = make_vector_env("playground/CartpoleBalance", EnvConfig(max_episode_steps=4), 2)
    seen, rewards, ended, cut = play(env, 9)
    assert seen.shape == (10, 2, 5)
    assert (np.isfinite(seen).all(), np.isfinite(rewards).all()) == (True, True)
    assert (ended, cut) == (0, 4)
    assert env_spec("playground/CartpoleBalance", EnvConfig()).max_episode_steps == 1000


def test_a_robot_of_the_playground_gives_the_critic_its_privileged_state():
    """It begins with the numbers of the policy's state."""
    pytest.importorskip("mujoco_playground")
    env = make_vector_env("playground/Go1JoystickFlatTerrain", EnvConfig(max_episode_steps=2), 1)
    seen = env.reset([3])
    for _ in range(2):
        np.testing.assert_array_equal(env.critic_observation()[0][:, :48], seen)
        seen, _, _, truncated, final = env.step(np.full((1, 12), 0.1, np.float32))
    assert truncated.all()
    critic, last = env.critic_observation()
    assert (critic.shape, last.shape) == ((1, 123), (1, 123))
    np.testing.assert_array_equal(last[:, :48], final)
    assert (critic != last).any()


def test_missing_libraries_are_named(monkeypatch):
    import sys

    for family, package in (("gymnax", "gymnax"), ("brax", "brax"), ("playground", "mujoco_playground")):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"lockstep.jax.envs.{family}", raising=False)
        with pytest.raises(
            ConfigError, match=rf"needs the Python package {package}: pip install 'lockstep-rl\[{family}\]'"
        ):
            make_device_env(f"{family}/Anything", EnvConfig())
