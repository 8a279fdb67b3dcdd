"""Gymnasium tasks behind the protocol: one meaning whatever runs them."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import own_envs
import pytest
from gymnasium import spaces
from own_envs import Counter

from lockstep.envs.gymnasium import SingleEnvs, VectorizedTask, _entry_point_refusal
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import ConfigError, RunError
from lockstep.run import EnvConfig
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task

SYNC = EnvConfig(vectorization="sync")


def own(**kwargs):
    return make_vector_env("own_envs:Counter", EnvConfig(kwargs=kwargs), 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_single_environments_follow_the_bare_environment(mode):
    seeds = [5, 77, 3]
    env = make_vector_env("CartPole-v1", EnvConfig(vectorization=mode, max_episode_steps=30), 3)
    bare = [gymnasium.make("CartPole-v1", max_episode_steps=30) for _ in seeds]
    expected = [one.reset(seed=seed)[0] for one, seed in zip(bare, seeds, strict=True)]
    np.testing.assert_array_equal(env.reset(seeds), expected)
    generator, ends, truncations = np.random.default_rng(0), 0, 0
    for step in range(120):
        # Environment 0 balances for a while (truncated at 30), the others act at random and fall (terminated).
        actions = generator.integers(0, 2, 3)
        actions[0] = step % 2
        observation, reward, terminated, truncated, final = env.step(actions)
        for i, one in enumerate(bare):
            after, gain, over, cut, _ = one.step(actions[i])
            assert (reward[i], terminated[i], truncated[i]) == (gain, over, cut)
            if over or cut:
                np.testing.assert_array_equal(final[i], after)
                ends, truncations = ends + 1, truncations + cut
                after = one.reset()[0]
                assert not np.array_equal(final[i], after)
            np.testing.assert_array_equal(observation[i], after)
        assert [a.dtype for a in (observation, reward, terminated, truncated)] == [np.float32, np.float32, bool, bool]
    assert ends > 5 and truncations > 0
    env.close()


def test_the_entry_point_resets_in_the_next_step_and_obeys_the_same_physics():
    env = make_vector_env("CartPole-v1", EnvConfig(), 4)
    assert isinstance(env, VectorizedTask) and env.spec.autoreset == "next_step" and not env.spec.separately_seedable
    single = gymnasium.make("CartPole-v1").unwrapped
    observation = env.reset([9, 0, 0, 0]).copy()
    assert not np.array_equal(observation[0], observation[1])
    generator, before_ended, resets = np.random.default_rng(0), np.zeros(4, bool), 0
    for _ in range(150):
        action = generator.integers(0, 2, 4)
        after, reward, terminated, truncated, final = env.step(action)
        assert final is None
        for i in range(4):
            if before_ended[i]:
                resets += 1
                assert reward[i] == 0 and not terminated[i] and not truncated[i] and np.abs(after[i]).max() <= 0.05
                continue
            single.reset()
            single.state = observation[i].astype(np.float64)
            true, gain, over, _, _ = single.step(int(action[i]))
            np.testing.assert_allclose(after[i], true, rtol=1e-4, atol=1e-5)
            assert reward[i] == gain and terminated[i] == over
        observation, before_ended = after.copy(), terminated | truncated
    assert resets > 5
    env.close()


def test_the_entry_point_takes_a_limit_and_the_first_seed():
    env = make_vector_env("CartPole-v1", EnvConfig(max_episode_steps=5), 4)
    assert isinstance(env, VectorizedTask) and env.spec.max_episode_steps == 5
    first = env.reset([1, 2, 3, 4]).copy()
    np.testing.assert_array_equal(first, env.reset([1, 9, 9, 9]))
    assert not np.array_equal(first, env.reset([2, 2, 3, 4]))
    cuts = [bool(env.step(np.array([t % 2] * 4))[3].all()) for t in range(6)]
    assert cuts == [False] * 4 + [True, False]


def test_auto_falls_back_where_the_entry_point_cannot_serve():
    wrapped = EnvConfig(wrappers=("own_envs:Doubled",))
    env = make_vector_env("CartPole-v1", wrapped, 2)
    assert isinstance(env, SingleEnvs)
    env.reset([0, 1])
    np.testing.assert_array_equal(env.step(np.zeros(2, np.int64))[1], [2, 2])
    for task, config, reason in (
        ("CartPole-v1", EnvConfig(wrappers=wrapped.wrappers, vectorization="entry_point"), "wrappers need"),
        ("Acrobot-v1", EnvConfig(vectorization="entry_point"), "no vectorized entry point"),
    ):
        with pytest.raises(ConfigError, match=reason):
            env_spec(task, config)


def test_final_observations_survive_an_environment_that_reuses_its_array():
    for mode in ("sync", "async"):
        env = make_vector_env("own_envs:Counter", EnvConfig(kwargs={"length": 2}, vectorization=mode), 2)
        np.testing.assert_array_equal(env.reset([10, 20]), [[10, 0], [20, 0]])
        env.step(np.zeros(2, np.int64))
        observation, _, terminated, _, final = env.step(np.zeros(2, np.int64))
        assert terminated.all()
        np.testing.assert_array_equal(final, [[10, 2], [20, 2]])
        np.testing.assert_array_equal(observation, [[-1, 0], [-1, 0]])
        env.close()


OBSERVATIONS = [
    (spaces.Box(0, 255, (2, 2), np.uint8), np.array([[1, 2], [3, 4]], np.uint8), [1, 2, 3, 4]),
    (spaces.Box(-1, 1, (), np.float64), 0.5, [0.5]),
    (spaces.Discrete(3, start=5), 6, [0, 1, 0]),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
    (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (1,)))), (1, np.array([7.0])), [0, 1, 7]),
    (
        spaces.Dict({"a": spaces.Box(0, 9, (1,)), "b": spaces.Dict({"c": spaces.Discrete(2)})}),
        {"a": np.array([2.0]), "b": {"c": 0}},
        [2, 1, 0],
    ),
]


@pytest.mark.parametrize(("space", "observation", "flat"), OBSERVATIONS)
def test_observations_are_flat(space, observation, flat):
    env = own(observation_space=space, observation=observation)
    result = env.reset([0])
    assert env.spec.observation_size == len(flat) and result.dtype == np.float32
    np.testing.assert_array_equal(result, [flat])


ACTIONS = [
    (spaces.Discrete(3, start=-1), "discrete", (3,), np.array([2]), 1),
    (spaces.MultiDiscrete([2, 3], start=[1, 5]), "multi_discrete", (2, 3), np.array([[1, 2]]), [2, 7]),
    (
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        "multi_discrete",
        (2, 3, 4, 5),
        np.array([[1, 2, 3, 4]]),
        [[1, 2], [3, 4]],
    ),
    (spaces.MultiBinary(2), "multi_discrete", (2, 2), np.array([[0, 1]]), [0, 1]),
    (spaces.Discrete(3, dtype=np.int8), "discrete", (3,), np.array([2]), 2),
    (spaces.Box(-2, 3, (2, 1), np.float64), "continuous", (2,), np.array([[-2, 0.5]], np.float32), [[-2], [0.5]]),
    (spaces.Box(-np.inf, np.inf, (1,), np.float32), "continuous", (1,), np.array([[7]], np.float32), [7]),
    (spaces.Box(-1, 1, (), np.float32), "continuous", (1,), np.array([[0.5]], np.float32), 0.5),
    # The float32 next to pi is larger than pi.
    (spaces.Box(-np.pi, np.pi, (1,), np.float64), "continuous", (1,), np.array([[np.pi]], np.float32), [np.pi]),
]


def test_failure_of_close_is_a_warning_and_the_others_are_closed(monkeypatch, capfd):
    closed = []

    def close(self):
        closed.append(self)
        raise OSError("the display is gone")

    monkeypatch.setattr(Counter, "close", close)
    make_vector_env("own_envs:Counter", SYNC, 2).close()
    assert len(closed) == 2
    assert (
        "lockstep: warning: environment 1 of its shard failed in close: OSError: the display is gone"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(("space", "kind", "sizes", "action", "raw"), ACTIONS)
def test_actions_reach_the_environment_in_its_own_space(space, kind, sizes, action, raw):
    env = own(action_space=space)
    assert (env.spec.action.kind, env.spec.action.sizes) == (kind, sizes)
    if kind == "continuous":
        assert len(env.spec.action.low) == sizes[0] and env.spec.action.low[0] == np.float32(space.low.reshape(-1)[0])
    env.reset([0])
    env.step(action)  # the environment asserts that its space contains what comes
    inner = env._env.envs[0].env
    assert isinstance(inner, Counter)
    np.testing.assert_array_equal(inner.actions[0], raw)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"observation_space": spaces.Text(3)}, "Text"),
        ({"observation_space": spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})}, "Sequence"),
        ({"observation_space": spaces.Tuple(())}, "observes nothing"),
        ({"observation_space": 3}, r"observation_space is 3; set self.observation_space = gymnasium.spaces.Box\("),
        ({"action_space": 2}, r"action_space is 2; set self.action_space = gymnasium.spaces.Discrete\(n\)"),
        ({"action_space": spaces.Box(0, 3, (2,), np.int64)}, "Box.*int64.* of whole numbers; use MultiDiscrete"),
        ({"action_space": spaces.Tuple((spaces.Discrete(2),))}, "Tuple"),
    ],
)
def test_other_spaces_are_refused_by_name(kwargs, name):
    with pytest.raises(ConfigError, match=name):
        own(**kwargs)


def test_a_gymnasium_vector_class_with_same_step_autoreset():
    env = make_vector_env("own_envs:GymVector", EnvConfig(), 2)
    assert env.spec.autoreset == "same_step" and env.spec.observation_size == 4
    env.reset([0, 0])
    observation, reward, _, _, _ = env.step(np.array([0, 2]))
    np.testing.assert_array_equal(reward, [-1, 1])
    np.testing.assert_array_equal(observation, np.ones((2, 4)))
    observation, _, terminated, _, final = env.step(np.array([0, 2]))
    assert terminated.all()
    np.testing.assert_array_equal(observation, np.zeros((2, 4)))
    np.testing.assert_array_equal(final, np.full((2, 4), 2))


@pytest.mark.parametrize("threshold", ["high", (1, 2)])
def test_a_threshold_that_is_no_number_is_refused(threshold, monkeypatch):
    for cls in (own_envs.Counter, own_envs.GymVector):
        monkeypatch.setattr(cls, "reward_threshold", threshold, raising=False)
        with pytest.raises(ConfigError, match=r"task=own_envs:\w+: reward_threshold=.* is no number"):
            env_spec(f"own_envs:{cls.__name__}", EnvConfig())
        monkeypatch.setattr(cls, "reward_threshold", 3)
        found = env_spec(f"own_envs:{cls.__name__}", EnvConfig()).reward_threshold
        assert found == 3 and isinstance(found, float)


def test_a_task_may_have_no_metadata(monkeypatch):
    monkeypatch.setattr(own_envs.Counter, "metadata", None)
    env = own()
    assert env.reset([5]).tolist() == [[5, 0]]
    assert env.frames_per_second == 30
    monkeypatch.setattr(own_envs.GymVector, "metadata", None)
    with pytest.raises(ConfigError, match="metadata autoreset_mode"):
        env_spec("own_envs:GymVector", EnvConfig())
    report = Report()
    check_env_of_task("own_envs:GymVector", EnvConfig(), report, Limits(seconds=0))
    assert any("autoreset_mode None" in fault for fault in report.faults)


def test_a_reward_beyond_float32_becomes_infinite_without_a_warning_of_numpy(monkeypatch):
    """The rollout then refuses it, with its environment and step; numpy's warning is an error here."""
    step = Counter.step
    monkeypatch.setattr(Counter, "step", lambda self, action: (step(self, action)[0], 1e300, False, False, {}))
    env = own()
    env.reset([5])
    assert env.step(np.zeros(1, np.int64))[1].tolist() == [np.inf]
    step_all = own_envs.GymVector.step

    def huge(self, actions):
        observation, _, *rest = step_all(self, actions)
        return observation, np.full(len(actions), 1e300), *rest

    monkeypatch.setattr(own_envs.GymVector, "step", huge)
    env = make_vector_env("own_envs:GymVector", EnvConfig(), 2)
    env.reset([5, 6])
    assert env.step(np.zeros(2, np.int64))[1].tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("text", ["1.5", b"1.5"])
def test_a_reward_that_is_text_ends_the_run(text, monkeypatch):
    """As `lockstep check` refuses it: `float` and numpy would read the number."""
    step, step_all = Counter.step, own_envs.GymVector.step
    monkeypatch.setattr(Counter, "step", lambda self, action: (step(self, action)[0], text, False, False, {}))

    def of_text(self, actions):
        observation, _, *rest = step_all(self, actions)
        return observation, [text] * len(actions), *rest

    monkeypatch.setattr(own_envs.GymVector, "step", of_text)
    for task, name in (("Counter", "environment 0 of its shard"), ("GymVector", "own_envs:GymVector")):
        env = make_vector_env(f"own_envs:{task}", EnvConfig(), 2)
        env.reset([5, 6])
        with pytest.raises(RunError, match=rf"{name} gave the reward .*1\.5.* in step, which is text; return a number"):
            env.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_observation_of_another_shape_ends_the_run(mode, tmp_path):
    """numpy and Gymnasium's shared memory would repeat the one number in all columns."""
    order = tmp_path / "order"
    env = make_vector_env("own_envs:Faulty", EnvConfig(kwargs={"order": str(order)}, vectorization=mode), 2)
    env.reset([10, 11])
    order.write_text("narrow")
    with pytest.raises(
        RunError, match=r"environment 1 of its shard gave an observation of the shape \[1\] in step.* is \[2\]"
    ):
        env.step(np.zeros(2, np.int64))
    env.close()


@pytest.mark.parametrize(
    ("part", "words"), [(0, r"own_envs:GymVector .* \[2, 2\] in step.* is \[2, 4\]"), (4, "final_obs")]
)
def test_an_observation_of_another_shape_of_a_vector_environment_ends_the_run(part, words, monkeypatch):
    step = own_envs.GymVector.step

    def narrow(self, actions):
        values = list(step(self, actions))
        if part == 0:
            values[0] = values[0][:, :1]
        elif "final_obs" in values[4]:
            values[4] = values[4] | {"final_obs": [last[:1] for last in values[4]["final_obs"]]}
        return tuple(values)

    monkeypatch.setattr(own_envs.GymVector, "step", narrow)
    env = make_vector_env("own_envs:GymVector", EnvConfig(), 2)
    env.reset([0, 0])
    with pytest.raises(RunError, match=words):
        for _ in range(2):
            env.step(np.array([0, 2]))


def test_an_environment_that_raises_is_named_by_index(tmp_path):
    for mode in ("sync", "async"):
        order = tmp_path / mode
        env = make_vector_env("own_envs:Faulty", EnvConfig(kwargs={"order": str(order)}, vectorization=mode), 3)
        env.reset([10, 11, 12])
        env.step(np.zeros(3, np.int64))
        order.write_text("raise")
        with pytest.raises(
            RunError, match=r"environment 1 of its shard failed in step: ValueError: the motor is hot \(.*own_envs.py"
        ):
            env.step(np.zeros(3, np.int64))
        env.close()


def test_nothing_is_drawn_unless_asked():
    env = make_vector_env("CartPole-v1", SYNC, 1)
    assert env._env.envs[0].render_mode is None
    assert make_vector_env("CartPole-v1", SYNC, 1, render=True)._env.envs[0].render_mode == "rgb_array"
    with pytest.raises(ConfigError, match="render_mode"):
        env_spec("CartPole-v1", EnvConfig(kwargs={"render_mode": "human"}))


@pytest.mark.parametrize(("task", "mode"), [("Camera", "sync"), ("Camera", "async"), ("GymCamera", "auto")])
def test_images_stay_bytes_with_their_channels_first(task, mode):
    env = make_vector_env(f"own_envs:{task}", EnvConfig(vectorization=mode), 2)
    assert (env.spec.image, env.spec.observation_size, env.spec.frames) == ((3, 5, 4), 60, 1)
    expected = np.moveaxis(np.arange(60).reshape(5, 4, 3), -1, 0)

    def check(images, count):
        expected[0, 0, 0] = 100 + count
        assert images.dtype == np.uint8
        np.testing.assert_array_equal(images, [expected, expected])

    check(env.reset([1, 2]), 0)
    last = 3 if task == "Camera" else 2
    for count in range(1, last + 1):
        observation, _, terminated, _, final = env.step(np.array([1, 1]))
        check(final, count)
        check(observation, count if count < last else 0)
    assert terminated.all()
    env.close()


def test_images_are_those_of_bytes_in_three_dimensions():
    for shape, dtype, image in (
        ((5, 4, 3), np.uint8, (3, 5, 4)),
        ((3, 5, 4), np.uint8, (3, 5, 4)),
        ((5, 4), np.uint8, None),
        ((5, 4, 3), np.float32, None),
    ):
        space = spaces.Box(0, 1, shape, dtype)
        spec = own_spec(observation_space=space, observation=np.zeros(shape, dtype))
        assert (spec.image, spec.observation_size) == (image, int(np.prod(shape)))


def test_an_environment_without_spaces_is_told_so():
    with pytest.raises(ConfigError, match=r"its observation_space is not set; set self\.observation_space = "):
        env_spec("own_envs:NoSpaces", EnvConfig())


def own_spec(**kwargs):
    return env_spec("own_envs:Counter", EnvConfig(kwargs=kwargs))


def test_models_of_gymnasium_give_no_warnings(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    make_vector_env("HalfCheetah-v5", EnvConfig(), 2).close()
    assert capfd.readouterr() == ("", ""), "MuJoCo 4 calls an attribute of this model deprecated"
    assert list(tmp_path.iterdir()) == [], "MUJOCO_LOG.TXT"


def test_a_users_handler_of_mujocos_warnings_stays():
    mujoco = pytest.importorskip("mujoco")
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        make_vector_env("HalfCheetah-v5", EnvConfig(), 1).close()
        assert heard == []
        mujoco.MjModel.from_xml_string('<mujoco><compiler settotalmass="1"/><worldbody/></mujoco>')
        assert len(heard) == 1
    finally:
        mujoco.set_mju_user_warning(None)


def test_an_entry_point_that_undoes_steps_is_not_used():
    """Of Gymnasium 1.4's tasks `phys2d`: when one environment resets, the step of every other one is undone."""
    broken = type("Task", (type("FunctionalJaxVectorEnv", (), {}),), {})
    task = SimpleNamespace(id="x-v0", vector_entry_point=broken, additional_wrappers=(), max_episode_steps=200)
    assert "undoes the steps" in (_entry_point_refusal(task, EnvConfig(), {}) or "")
    task.vector_entry_point = type("Task", (), {})
    assert _entry_point_refusal(task, EnvConfig(), {}) is None
