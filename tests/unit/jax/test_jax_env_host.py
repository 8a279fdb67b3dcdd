"""Environments in JAX as environments of the host."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from lockstep.envs.make import env_spec, is_jax_task, make_vector_env
from lockstep.envs.state import can_save
from lockstep.errors import ConfigError
from lockstep.jax.comm import Comm
from lockstep.jax.envs.host import HostEnv
from lockstep.jax.envs.make import make_device_env
from lockstep.run import EnvConfig, Run
from lockstep.session.evaluation import Evaluation
from lockstep.world import World

DRIFT = f"{Path(__file__).parents[2] / 'ranks' / 'device_envs.py'}:Drift"


def drift(num_envs, **kwargs):
    return make_vector_env(DRIFT, EnvConfig(kwargs=kwargs), num_envs)


def play(env, steps, num_envs=4):
    """What `steps` steps of alternating actions give."""
    return [tuple(np.array(x) for x in env.step((np.arange(num_envs) + t) % 2)) for t in range(steps)]


def same(one, other):
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_arrays_are_as_the_protocol_says():
    env = drift(4)
    first = env.reset([1, 2, 3, 4])
    assert (first.shape, first.dtype) == ((4, 2), np.float32)
    observation, reward, terminated, truncated, final = env.step(np.array([0, 1, 0, 1]))
    assert (observation.shape, observation.dtype, final.shape, final.dtype) == ((4, 2), np.float32) * 2
    assert (reward.shape, reward.dtype) == ((4,), np.float32)
    assert terminated.dtype == truncated.dtype == bool


def test_an_episode_begins_in_the_step_that_ends_one():
    env, ends, cuts = drift(4), 0, 0
    before = env.reset([1, 2, 3, 4])
    for observation, _, terminated, truncated, final in play(env, 300):
        ended = terminated | truncated
        np.testing.assert_array_equal(observation[~ended], final[~ended])
        assert (observation[ended, 1] == 0).all(), "an episode begins at step 0"
        np.testing.assert_allclose(final[:, 1], before[:, 1] + 1 / 20, atol=1e-6)
        assert (np.abs(final[terminated, 0]) > 1).all()
        assert (np.abs(observation[:, 0]) <= 1).all()
        ends, cuts, before = ends + terminated.sum(), cuts + truncated.sum(), observation
    assert ends >= 2
    assert cuts > 3


def test_each_environment_has_its_own_seed():
    env, fewer = drift(4), drift(2)
    env.reset([5, 6, 7, 8])
    fewer.reset([7, 8])
    whole, part = play(env, 50), play(fewer, 50, 2)
    same([[x[2:] for x in step] for step in whole], part)
    other = drift(2)
    other.reset([7, 9])
    for (a, *_), (b, *_) in zip(part, play(other, 50, 2), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert (a[1, 0] != b[1, 0]).all()


def test_a_step_and_a_reset_share_no_randomness():
    env = drift(64, max_episode_steps=1, push=0.0)
    first = env.reset(list(range(64)))
    observation, *_, final = env.step(np.zeros(64, np.int64))
    shake, start = final[:, 0] - first[:, 0], observation[:, 0]
    assert abs(np.corrcoef(shake, start)[0, 1]) < 0.4
    assert len(np.unique(start)) == 64


def test_saved_and_restored_it_goes_on_with_the_same_bits():
    env = drift(4)
    assert can_save(env)
    env.reset([1, 2, 3, 4])
    play(env, 30)
    state = env.state()
    state = {"keys": state["keys"].copy(), "steps": state["steps"].copy(), "state": [x.copy() for x in state["state"]]}
    after = play(env, 30)
    again = drift(4)
    again.reset([9, 9, 9, 9])
    again.restore(state)
    same(play(again, 30), after)


def test_shards_share_what_is_compiled_and_nothing_else():
    shards, other = [drift(4, push=0.3) for _ in range(3)], drift(4, push=0.2)
    for seed, env in enumerate([*shards, other]):
        env.reset([seed] * 4)
        env.step(np.zeros(4))
    assert shards[0]._step_compiled._cache_size() == 1
    assert other._step_compiled is not shards[0]._step_compiled
    before = shards[1].state()["state"]
    shards[0].step(np.ones(4))
    for x, y in zip(before, shards[1].state()["state"], strict=True):
        np.testing.assert_array_equal(x, y)


def test_continuous_actions_reach_it():
    env = drift(2, continuous=True, push=1.0)
    env.reset([1, 2])
    still = env.state()
    observation, *_ = env.step(np.array([[0.5], [-0.5]], np.float32))
    env.restore(still)
    other, *_ = env.step(np.zeros((2, 1), np.float32))
    np.testing.assert_allclose(observation[:, 0] - other[:, 0], [0.5, -0.5], atol=1e-6)


@pytest.mark.parametrize(
    ("task", "config", "words"),
    [
        ("jax/Cartpole-v1", EnvConfig(), "did you mean CartPole-v1"),
        ("jax/CartPole-v1", EnvConfig(wrappers=("a:B",)), "runs on the device"),
        ("jax/CartPole-v1", EnvConfig(vectorization="async"), "env.vectorization=async"),
        ("jax/CartPole-v1", EnvConfig(kwargs={"gravity": 3}), "gravity"),
        (DRIFT, EnvConfig(kwargs={"pushh": 3}), "did you mean push"),
        (DRIFT.replace("Drift", "DriftState"), EnvConfig(), "."),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(task, config, words):
    with pytest.raises(ConfigError, match=words):
        env_spec(task, config)
    with pytest.raises(ConfigError, match=words):
        make_vector_env(task, config, 2)


def test_nothing_is_drawn():
    with pytest.raises(ConfigError, match="cannot be rendered"):
        make_vector_env("jax/CartPole-v1", EnvConfig(), 1, render=True)


def test_tasks_on_the_device_are_told_from_others():
    assert is_jax_task("jax/CartPole-v1")
    assert is_jax_task("gymnax/Anything")
    assert is_jax_task(DRIFT)
    assert not is_jax_task("CartPole-v1")
    assert not is_jax_task("ALE/Pong-v5")
    assert not is_jax_task(DRIFT.replace("Drift", "DriftState"))


def test_without_jax_the_task_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [name for name in sys.modules if name.startswith("lockstep.jax.envs")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"lockstep-rl\[jax\]"):
        env_spec("jax/CartPole-v1", EnvConfig())


def test_looking_at_an_environment_does_not_start_jax():
    words = (
        "import sys; from jax._src import xla_bridge; from lockstep.run import EnvConfig;"
        "from lockstep.envs.make import env_spec;"
        f"env_spec('jax/CartPole-v1', EnvConfig()); env_spec({DRIFT!r}, EnvConfig());"
        "sys.exit(len(xla_bridge._backends))"
    )
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0


def test_evaluations_are_compiled_when_their_environments_are_made(monkeypatch):
    """The first reset and step of a robot may take minutes, longer than a stalled run is waited for."""
    compiled = []
    for name in ("reset", "step"):
        call = getattr(HostEnv, name)
        monkeypatch.setattr(HostEnv, name, lambda env, given, call=call: compiled.append(call) or call(env, given))
    run = Run(task=DRIFT, ml_framework="jax", evaluate_episodes=4)
    with Comm(World(), device="cpu") as comm:
        evaluation = Evaluation(run, comm, env_spec(DRIFT, EnvConfig()), None)
        evaluation.make_envs()
        evaluation.close()
    assert [call.__name__ for call in compiled] == ["reset", "step"]


@pytest.mark.parametrize("task", ["jax/CartPole-v1", "lockstep/Cartpole-v0"])
def test_taken_names_are_refused_on_the_device(task):
    for name in ("num_envs", "render_mode"):
        with pytest.raises(ConfigError, match=f"env.kwargs {name}=3 is set by Lockstep"):
            make_device_env(task, EnvConfig(kwargs={name: 3}))
    with pytest.raises(ConfigError, match=r"max_episode_steps=5: env.max_episode_steps=9 is given, too"):
        make_device_env(task, EnvConfig(kwargs={"max_episode_steps": 5}, max_episode_steps=9))
