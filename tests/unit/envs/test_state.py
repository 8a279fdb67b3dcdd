"""Saved in the middle and restored into another environment: the same bits as if nothing had happened."""

import os
import signal

import gymnasium
import numpy as np
import pytest

from lockstep.distributed.messages import decode, encode
from lockstep.envs import wrapper_state
from lockstep.envs.make import make_vector_env
from lockstep.envs.state import can_save
from lockstep.envs.vector import BUILT_IN
from lockstep.errors import RunError
from lockstep.run import EnvConfig
from quick import others_slow

CLASSIC = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
MUJOCO = [
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
]
SAVABLE = [
    *[(task, EnvConfig(max_episode_steps=9)) for task in sorted(BUILT_IN)],
    *[("CartPole-v1", EnvConfig(max_episode_steps=limit, vectorization="entry_point")) for limit in (14, None)],
    *[
        (task, EnvConfig(max_episode_steps=14, vectorization=mode))
        for task in [*CLASSIC, "own_envs:Remembering"]
        for mode in ("sync", "async")
    ],
    ("CartPole-v1", EnvConfig(kwargs={"sutton_barto_reward": True}, vectorization="sync")),
    ("Pendulum-v1", EnvConfig(max_episode_steps=9, wrappers=("own_envs:Odometer", "own_envs:clipped"))),
    ("own_envs:Remembering", EnvConfig(kwargs={"length": 5}, wrappers=("own_envs:Odometer",))),
    *[
        (f"{task}-v{version}", EnvConfig(max_episode_steps=14))
        for task in MUJOCO
        for version in (4, 5)
        if (task, version) != ("Pusher", 4)
    ],
]
# Environments in processes of their own: one of them each time.
QUICK = [case for case in SAVABLE if case[1].vectorization != "async" or case[0] == "CartPole-v1"]
QUICK = [case for case in QUICK if case[0].split("-")[0] not in MUJOCO or case[0] == "Ant-v5"]
SIZE, STEPS, ONWARD = 5, 45, 40


def name(case):
    task, config = case
    options = [config.vectorization, *config.kwargs, *config.wrappers, config.max_episode_steps]
    return "-".join(map(str, [task, *options]))


def actions(spec, generator, steps):
    shape = (steps, SIZE, spec.width)
    if spec.kind == "continuous":
        return np.clip(generator.normal(size=shape), spec.low, spec.high).astype(np.float32)
    drawn = generator.integers(0, spec.sizes, shape)
    return drawn[:, :, 0] if spec.kind == "discrete" else drawn


def step(env, action):
    """What a step returns, as bytes: bits are compared, not numbers. `final` is meant only where an episode ended."""
    observation, reward, terminated, truncated, final = env.step(action)
    ended = terminated | truncated
    parts = [observation, reward, terminated, truncated, *([] if final is None else [final[ended]])]
    return [(part.dtype.str, part.shape, part.tobytes()) for part in parts], int(terminated.sum()), int(truncated.sum())


@pytest.mark.parametrize("case", others_slow(SAVABLE, *QUICK), ids=name)
def test_restored_goes_on_bit_for_bit(case):
    task, config = case
    env, other = (make_vector_env(task, config, SIZE) for _ in range(2))
    generator = np.random.default_rng(0)
    taken = actions(env.spec.action, generator, STEPS + ONWARD)
    assert can_save(env)
    env.reset(range(SIZE))
    expected, saved = [], []
    for action in taken:
        saved.append(encode(env.state()))  # at every step; taking it changes nothing, or what follows would differ
        expected.append(step(env, action))
    ends = np.array([[terminated, truncated] for _, terminated, truncated in expected])
    assert ends[:10].any() or ends[10:STEPS].any()
    assert ends[STEPS:].any(), "episodes end before and after the cut"
    other.reset(range(100, 100 + SIZE))
    # Cuts in any order, into an environment that was left anywhere, its episodes of any age.
    for cut in [0, 1, *generator.integers(2, STEPS, 8).tolist(), STEPS]:
        other.restore(decode(saved[cut]))
        for t in range(cut, cut + ONWARD):
            assert step(other, taken[t]) == expected[t], f"saved before step {cut}, differs at step {t}"
    for one in (env, other):
        one.close()


def test_states_do_not_change_when_the_environment_goes_on():
    for task, mode in (("Pendulum-v1", "sync"), ("CartPole-v1", "entry_point"), ("MountainCar-v0", "sync")):
        env = make_vector_env(task, EnvConfig(vectorization=mode), SIZE)
        env.reset(range(SIZE))
        saved = env.state()
        before = encode(saved)
        step(env, actions(env.spec.action, np.random.default_rng(0), 1)[0])
        assert encode(saved) == before != encode(env.state())
        env.restore(saved)
        step(env, actions(env.spec.action, np.random.default_rng(0), 1)[0])
        assert encode(saved) == before


# What changes while episodes go by and decides nothing: the last torque, for the picture; the generator, saved apart.
DRAWN, APART = {"last_u"}, {"_np_random", "_np_random_seed"}


@pytest.mark.parametrize("task", CLASSIC)
def test_all_that_changes_is_saved(task):
    # A newer Gymnasium may keep more than we know of.
    env = gymnasium.make(task, max_episode_steps=20, disable_env_checker=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    before, changed = {}, set()
    for _ in range(60):
        chain = wrapper_state._layers(env)
        for layer in chain:
            for attribute, value in vars(layer).items():
                if isinstance(value, gymnasium.Env | gymnasium.Space):
                    continue
                if before.setdefault((type(layer), attribute), repr(value)) != repr(value):
                    changed.add((type(layer), attribute))
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    assert (gymnasium.wrappers.TimeLimit, "_elapsed_steps") in changed and (type(chain[-1]), "state") in changed
    for layer, attribute in changed:
        assert attribute in {*wrapper_state.ATTRIBUTES[layer], *DRAWN, *APART}


def test_all_that_changes_in_the_entry_point_is_saved():
    env = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    before, changed = {}, set()
    for _ in range(60):
        for attribute, value in vars(env).items():
            if before.setdefault(attribute, repr(value)) != repr(value):
                changed.add(attribute)
        env.step(np.ones(4, np.int64))
    assert {"state", "prev_done"} < changed
    assert changed <= {*wrapper_state.ATTRIBUTES[type(env)], *APART}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("task", "wrapper"),
    [
        ("own_envs:Counter", None),
        ("own_envs:Heavier", None),
        ("own_envs:Shy", None),
        ("own_envs:Remembering", "own_envs:Doubled"),
        ("CartPole-v1", "own_envs:Doubled"),
        ("CartPole-v1", "own_envs:negated"),
        ("Taxi-v4", None),
    ],
)
def test_what_cannot_be_saved_says_so(task, wrapper, mode):
    wrappers = () if wrapper is None else (wrapper,)
    env = make_vector_env(task, EnvConfig(vectorization=mode, wrappers=wrappers), 2)
    assert not can_save(env)
    env.reset([0, 1])
    assert not can_save(env)
    with pytest.raises(
        RunError, match=r"environment \d of its shard failed in state: .* cannot be saved: it has no methods"
    ):
        env.state()
    env.close()
    assert not can_save(env)


def test_vector_environments_speak_for_themselves():
    for name, answer in (("Vector", False), ("RememberingVector", True), ("Unwilling", False), ("GymVector", False)):
        assert can_save(make_vector_env(f"own_envs:{name}", EnvConfig(), 2)) is answer
    with pytest.raises(RunError, match=r"own_envs:GymVector failed in state: .* GymVector cannot be saved"):
        make_vector_env("own_envs:GymVector", EnvConfig(), 2).state()


def test_a_state_that_does_not_fit_is_one_clear_line():
    saved = {}
    for task, wrappers in (("CartPole-v1", ()), ("Pendulum-v1", ()), ("Pendulum-v1", ("own_envs:Odometer",))):
        env = make_vector_env(task, EnvConfig(vectorization="sync", wrappers=wrappers), 2)
        env.reset([0, 1])
        saved[task, *wrappers] = env.state()
    with pytest.raises(
        RunError, match=r"environment 0 of its shard failed in restore: .* from TimeLimit of OrderEnforcing of Cart"
    ):
        env.restore(saved["CartPole-v1",])
    with pytest.raises(RunError, match=r"saved from TimeLimit of .* this is Odometer of TimeLimit"):
        env.restore(saved["Pendulum-v1",])
    env = make_vector_env("Pendulum-v1", EnvConfig(vectorization="sync"), 3)
    with pytest.raises(RunError, match="of 2 environments per shard, here are 3"):
        env.restore(saved["Pendulum-v1",])


def test_a_dead_worker_is_named_when_saving():
    env = make_vector_env("CartPole-v1", EnvConfig(vectorization="async"), 3)
    env.reset([0, 1, 2])
    os.kill(env._env.processes[1].pid, signal.SIGKILL)
    with pytest.raises(RunError, match="environment 1 of 3 was killed by SIGKILL"):
        for _ in range(2):
            env.state()
    assert can_save(env)
    env.close()
