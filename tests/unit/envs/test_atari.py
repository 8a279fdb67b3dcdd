"""Atari: the games in C++ against Gymnasium's own wrappers, frame by frame; lives, limits, seeds, saving."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ale_py")

import ale_py

from lockstep.distributed.messages import decode, encode
from lockstep.envs import atari_vector
from lockstep.envs.atari_options import AtariOptions
from lockstep.envs.atari_vector import AtariEnvs
from lockstep.envs.atari_wrappers import single_game
from lockstep.envs.gymnasium import SingleEnvs
from lockstep.envs.make import make_vector_env
from lockstep.envs.state import can_save
from lockstep.errors import RunError
from lockstep.run import EnvConfig
from quick import others_slow

STEADY = {"noop_max": 0, "repeat_action_probability": 0.0}


def played(env, seeds, actions):
    """Everything that some steps return, after the first observation; copied."""
    first = env.reset(seeds).copy()
    return first, [[np.array(part) for part in env.step(action)[:4]] for action in actions]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("rom", "options", "limit", "steps", "ends"),
    [
        # Lives (terminated), lost games (terminated) and the limit of a game (truncated), each at least so often.
        ("breakout", AtariOptions(**STEADY), 60, 150, (3, 2)),
        pytest.param(
            "breakout",
            AtariOptions(**STEADY, use_fire_reset=False, episodic_life=False),
            40,
            90,
            (0, 2),
            marks=pytest.mark.slow,
        ),
        ("pong", AtariOptions(**STEADY, reward_clipping=False, frameskip=3, stack_num=2), 40, 90, (0, 2)),
        pytest.param(
            "ms_pacman",
            AtariOptions(**STEADY, grayscale=False, img_height=50, img_width=42, stack_num=3),
            40,
            100,
            (0, 2),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "freeway",
            AtariOptions(**STEADY, full_action_space=True, stack_num=1, frameskip=1),
            40,
            90,
            (0, 2),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_same_frames_as_gymnasiums_wrappers(rom, options, limit, steps, ends):
    env = AtariEnvs(rom, options, limit, 2)
    games = [single_game(rom, rom, options, limit)() for _ in range(2)]
    generator = np.random.default_rng(1)
    expected = [game.reset(seed=i)[0] for i, game in enumerate(games)]
    assert same(env.reset([0, 1]), expected)
    resets, told = [False, False], np.zeros(2, int)
    for step in range(steps):
        action = generator.integers(0, env.spec.action.sizes[0], 2)
        observation, reward, terminated, truncated, final = env.step(action)
        assert final is None and observation.shape == (2, *env.spec.image) and observation.dtype == np.uint8
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        for i, game in enumerate(games):
            if resets[i]:
                after, gain, over, cut = game.reset()[0], 0, False, False
            else:
                after, gain, over, cut, _ = game.step(int(action[i]))
            assert (reward[i], terminated[i], truncated[i]) == (gain, over, cut), (step, i)
            np.testing.assert_array_equal(observation[i], after, str((step, i)))
            resets[i] = over or cut
            told += over, cut
    assert (told >= ends).all(), told
    env.close()


def test_an_episode_begins_with_zeros_also_where_only_a_life_was_lost():
    env = make_vector_env("BreakoutNoFrameskip-v4", EnvConfig(kwargs={"noop_max": 0}), 2)
    assert env.spec.frames == 4 and env.spec.autoreset == "next_step"
    first = env.reset([1, 2])
    began, age = [], np.zeros(2, int)
    assert not first[:, :3].any() and first[:, 3].any()
    for _ in range(120):
        observation, _, terminated, truncated, _ = env.step(np.array([3, 2]))
        age += 1
        for i in range(2):
            frames = observation[i].reshape(4, -1).any(1).tolist()
            assert frames == [k >= 3 - age[i] for k in range(4)]
        began += list(np.flatnonzero(age == 0))
        age[terminated | truncated] = -1
    assert len(began) >= 4  # lives


class Script:
    """In place of the console: what a script says, one step after another, for two environments."""

    def __init__(self, _game, num_envs, *, stack_num, **_options):
        self.num_envs, self.resets = num_envs, []
        self.ale, self.stack_num = self, stack_num
        self.steps = iter(())

    def get_action_set(self):
        return [ale_py.Action.NOOP, ale_py.Action.FIRE]

    def _seen(self, frames, lives):
        seen = np.full((self.num_envs, self.stack_num, 84, 84), 7, np.uint8)
        return seen, {"episode_frame_number": np.array(frames), "lives": np.array(lives)}

    def reset(self, seed, options=None):
        self.resets.append(np.flatnonzero(options["reset_mask"]).tolist() if options else "all")
        return self._seen([1, 1], [3, 3])

    def step(self, action):
        self.action = action
        terminated, frames, lives = next(self.steps)
        observation, info = self._seen(frames, lives)
        return observation, np.ones(2, np.int32), np.array(terminated), np.zeros(2, bool), info


def test_a_game_that_ends_though_lives_are_left(monkeypatch):
    monkeypatch.setattr(atari_vector, "AtariVectorEnv", Script)
    env = AtariEnvs("any", AtariOptions(), 1000, 2)
    env.reset([0, 0])
    env._env.steps = iter(
        [
            ([True, True], [9, 9], [2, 2]),  # both lose a life, as it seems
            ([False, True], [3, 13], [3, 1]),  # the console began a new game in 0; the press in 1 cost another life
            ([False, False], [7, 5], [3, 3]),
            ([True, False], [9, 9], [0, 3]),  # the last life
            ([False, False], [1, 13], [3, 3]),
        ]
    )
    zeros = np.zeros(2, np.int64)
    assert env.step(zeros)[2].all() and env._env.action.tolist() == [0, 0]
    _, reward, terminated, truncated, _ = env.step(zeros)
    assert env._env.action.tolist() == [1, 1]  # FIRE begins a life
    assert not reward.any() and not terminated.any() and not truncated.any() and env._env.resets == ["all", [1]]
    env.step(zeros)
    assert env.step(zeros)[2].tolist() == [True, False]
    env.step(zeros)
    assert env._env.resets == ["all", [1], [0]]
    assert env._game_steps.tolist() == [0, 3]


def test_evaluation_plays_whole_games_for_their_own_points():
    rewards, ends, clipped = [], [], []
    for training in (True, False):
        env = make_vector_env("SpaceInvadersNoFrameskip-v4", EnvConfig(kwargs=STEADY), 2, training=training)
        generator = np.random.default_rng(0)
        _, steps = played(env, [0, 1], generator.integers(0, env.spec.action.sizes[0], (250, 2)))
        rewards.append(np.array([step[1] for step in steps]))
        ends.append(sum(int(step[2].sum()) for step in steps))
        clipped.append(set(np.unique(rewards[-1])) <= {-1.0, 0.0, 1.0})
    assert clipped == [True, False] and rewards[1].max() >= 5
    assert ends[0] >= 1 > ends[1]


def test_a_policy_trained_by_lives_need_not_begin_them_in_evaluation():
    lengths = []
    for kwargs in (STEADY, {**STEADY, "episodic_life": False}):
        env = make_vector_env("BreakoutNoFrameskip-v4", EnvConfig(kwargs=kwargs), 1, training=False)
        slow = single_game("b", "breakout", AtariOptions(**kwargs), 27_000, training=False)()
        env.reset([0]), slow.reset(seed=0)
        steps, terminated = 0, [False]
        while steps < 200 and not terminated[0]:
            steps += 1
            observation, reward, terminated, _, _ = env.step(np.array([0]))
            expected = slow.step(0)
            assert np.array_equal(observation[0], expected[0]) and (reward[0], terminated[0]) == expected[1:3]
        lengths.append(steps)
    assert lengths[0] < 200 == lengths[1]  # one that was not so trained presses FIRE itself, or waits


def test_seeds_belong_to_environments_and_not_to_rows():
    config = EnvConfig(kwargs={"repeat_action_probability": 0.5})
    actions = np.random.default_rng(0).integers(0, 6, (40, 3))
    env = make_vector_env("ALE/Pong-v5", config, 3)
    first, steps = played(env, [11, 12, 13], actions)
    alone_first, alone = played(make_vector_env("ALE/Pong-v5", config, 1), [13], actions[:, 2:])
    assert np.array_equal(first[2], alone_first[0])
    assert all(same([part[2] for part in a], [part[0] for part in b]) for a, b in zip(steps, alone, strict=True))
    again_first, again = played(env, [11, 12, 13], actions)
    assert np.array_equal(first, again_first) and all(map(same, steps, again))
    _, others = played(env, [14, 15, 16], actions)
    assert not all(map(same, steps, others))


def test_restored_goes_on_bit_for_bit(monkeypatch):
    monkeypatch.setattr(atari_vector, "_SEED_EVERY", 30)
    config = EnvConfig(max_episode_steps=20)
    env, other = (make_vector_env("ALE/Breakout-v5", config, 2) for _ in range(2))
    actions = np.random.default_rng(0).integers(0, env.spec.action.sizes[0], (90, 2))
    env.reset([1, 2])
    saved, kept = {}, []
    for step, action in enumerate(actions):
        if step in (0, 30, 43):
            saved[step] = encode(env.state())
        kept.append([np.array(part) for part in env.step(action)[:4]])
    assert env._seeds.min() >= 1 and sum(step[3].sum() for step in kept) >= 6  # seeded anew, and truncated
    assert can_save(other)
    for step, state in saved.items():
        other.reset([9, 9])
        other.restore(decode(state))
        for action, expected in zip(actions[step:], kept[step:], strict=True):
            assert same(other.step(action)[:4], expected), step


@pytest.mark.slow
def test_a_state_of_other_games_is_refused():
    config = EnvConfig(kwargs={"repeat_action_probability": 0.0})
    env, wider = (make_vector_env("ALE/Breakout-v5", config, size) for size in (2, 3))
    env.reset([1, 2])
    for _ in range(4):
        env.step(np.array([1, 1]))
    state = env.state()
    wider.reset([1, 2, 3])
    with pytest.raises(RunError, match="of 2 environments per shard, here are 3"):
        wider.restore(state)
    with pytest.raises(RunError, match="came out differently"):
        make_vector_env("ALE/Breakout-v5", replace(config, kwargs={"frameskip": 3}), 2).restore(state)


@pytest.mark.parametrize("mode", others_slow(["sync", "async"], "sync"))
def test_one_by_one_they_look_the_same(mode):
    config = EnvConfig(kwargs=STEADY, vectorization=mode, max_episode_steps=12)
    env, fast = make_vector_env("ALE/Pong-v5", config, 2), make_vector_env("ALE/Pong-v5", EnvConfig(kwargs=STEADY), 2)
    assert isinstance(env, SingleEnvs) and isinstance(fast, AtariEnvs)
    assert env.spec == replace(fast.spec, autoreset="same_step", max_episode_steps=12)
    assert not can_save(env)
    assert same(env.reset([1, 2]), fast.reset([1, 2]))
    for _ in range(12):
        observation, reward, _, truncated, final = env.step(np.array([2, 3]))
        expected = fast.step(np.array([2, 3]))
        assert observation.dtype == final.dtype == np.uint8 and same(final, expected[0]) and same(reward, expected[1])
    assert truncated.all() and not observation[:, :3].any() and observation[:, 3].any()
    env.close()


def test_wrappers_get_the_game_as_a_network_would():
    config = EnvConfig(kwargs=STEADY, wrappers=("own_envs:Doubled",))
    env = make_vector_env("ALE/Breakout-v5", config, 1)
    assert env.spec.image == (4, 84, 84) and env.spec.frames == 1  # nobody knows what a wrapper did to them
    env.reset([0])
    rewards = {float(env.step(np.array([2 + step % 2]))[1][0]) for step in range(60)}
    assert rewards <= {0.0, 2.0}


@pytest.mark.slow
def test_the_picture_follows_the_game():
    config, sticky = (
        EnvConfig(kwargs=STEADY),
        EnvConfig(kwargs={"repeat_action_probability": 0.5}, max_episode_steps=20),
    )
    env = make_vector_env("ALE/Breakout-v5", config, 2, render=True, training=False)
    slow = make_vector_env("ALE/Breakout-v5", replace(config, vectorization="sync"), 2, render=True, training=False)
    env.reset([1, 2]), slow.reset([1, 2])
    seen = set()
    for step in range(40):
        action = np.array([2 + step // 10 % 2, 3 - step // 10 % 2])
        env.step(action), slow.step(action)
        pictures = env.render()
        assert [picture.shape for picture in pictures] == [(210, 160, 3)] * 2 and same(pictures, slow.render())
        seen.add(pictures[0].tobytes())
    assert len(seen) > 20
    slow.close()
    # With chance in it, over the ends of games: it would say so itself if it did not follow.
    env = make_vector_env("ALE/Breakout-v5", sticky, 1, render=True, training=False)
    first = env.reset([1]) is not None and env.render()[0].copy()
    for _ in range(45):
        env.step(np.array([1]))
    assert env._seeds.tolist() == [2] and first.shape == (210, 160, 3)
    assert env._screens[0]._console.getEpisodeFrameNumber() == env._frames[0]


def test_a_picture_that_lags_is_refused():
    env = make_vector_env("ALE/Pong-v5", EnvConfig(kwargs=STEADY), 1, render=True)
    env.reset([1])
    env._screens[0]._console.act(0)
    with pytest.raises(RunError, match="the picture shows frame 6 of the game, which is at 5"):
        env.step(np.array([1]))
