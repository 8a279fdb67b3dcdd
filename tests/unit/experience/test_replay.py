"""The replay against an environment that remembers everything it showed, and its draws against what they should be."""

from types import SimpleNamespace

import numpy as np
import pytest
from films import Film, assert_shown, film_spec

from lockstep.distributed.timers import Timers
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.experience.replay import Replay
from lockstep.experience.rollout import Collector, Rollout
from lockstep.world import World, stream
from quick import others_slow

MODES = ["next_step", "same_step"]
GAMMA = 0.9


def filled(spec, steps, *, num_envs=3, capacity=60, n_step=3, prioritized=False, film=None, **options):
    """A film and the replay of its first `steps` steps."""
    film = film or Film(spec, num_envs)
    replay = Replay(spec, num_envs, capacity, n_step=n_step, gamma=GAMMA, prioritized=prioritized, **options)
    replay.begin(film.reset([]))
    for step in range(steps):
        add(film, replay, step)
    return film, replay


def add(film, replay, step):
    if film.spec.action.kind == "continuous":
        action = film.random.normal(size=(film.num_envs, film.spec.action.width)).astype(np.float32)
    else:
        action = film.random.integers(3, size=film.num_envs)
    replay.add(action, *(lambda o, r, te, tr, f: (r, te, tr, o, f))(*film.step(action)))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("prioritized", others_slow([False, True], True))
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("image", others_slow([True, False], True))
def test_gives_back_what_the_environment_showed(autoreset, image, prioritized, n_step):
    film, replay = filled(film_spec(autoreset, image=image), 0, n_step=n_step, prioritized=prioritized)
    draws = stream(0, "sample")
    for step in range(1_000):  # the rings go round some 40 times
        add(film, replay, step)
        if step > n_step + 10:
            assert_shown(film, replay.sample(3, draws), n_step, GAMMA)


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("autoreset", MODES)
def test_episodes_as_short_as_they_can_be(autoreset, frames):
    film = Film(film_spec(autoreset, frames=frames), p_end=1.9)  # nearly every step ends
    film, replay = filled(film.spec, 300, capacity=12, n_step=3, prioritized=True, film=film)
    draws = stream(0, "sample")
    for step in range(200):
        add(film, replay, step)
        assert_shown(film, replay.sample(4, draws), 3, GAMMA)


def test_continuous_actions_come_back_as_drawn():
    spec = film_spec("same_step", image=False, action=ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)))
    film, replay = filled(spec, 200)
    drawn = replay.sample(50, stream(0, "sample"))
    assert drawn.action.dtype == np.float32
    assert drawn.action.shape == (50, 2)
    assert_shown(film, drawn, 3, GAMMA)


@pytest.mark.parametrize("n_step", [1, 5])
@pytest.mark.parametrize("frames", [1, 4])
def test_holds_capacity_transitions(n_step, frames):
    film = Film(film_spec("next_step", frames=frames), p_end=0.0)
    _, replay = filled(film.spec, 19 + n_step, capacity=60, n_step=n_step, film=film)
    assert replay.size == 60
    for step in range(100):
        add(film, replay, step)
        assert 60 < replay.size <= 60 + 3 * frames  # a stack that begins with zeros needs no older rows
    drawn = replay.sample(5_000, stream(0, "sample"))
    assert len(np.unique(drawn.index)) == replay.size == 63  # an environment has room for one more
    newest = film.shown  # three are shown per step
    ages = [(newest - film_number(film, o)) // 3 for o in drawn.observation]
    assert (min(ages), max(ages)) == (n_step, n_step + 20)


def film_number(film, observation):
    episode, t = film.which(observation)
    return next(number for number, place in film.place.items() if place[0] is episode and place[1] == t)


@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("autoreset", MODES)
def test_the_smallest_replay_never_runs_dry(autoreset, frames, n_step):
    film = Film(film_spec(autoreset, frames=frames), num_envs=1, p_end=0.6)
    film, replay = filled(film.spec, 50, num_envs=1, capacity=1, n_step=n_step, film=film)
    for step in range(100):
        add(film, replay, step)
        assert_shown(film, replay.sample(1, stream(0, "sample", step)), n_step, GAMMA)


@pytest.mark.parametrize("autoreset", MODES)
def test_every_complete_transition_can_be_drawn_and_each_equally_often(autoreset):
    film, replay = filled(film_spec(autoreset, image=False), 18, capacity=90)
    complete = 0
    for episode in {id(e): e for e, _ in film.place.values()}.values():
        complete += len(episode.reward) if episode.end else max(0, len(episode.reward) - 2)
    assert replay.size == complete
    counted = np.bincount(replay.sample(40_000, stream(0, "sample")).index)
    counted = counted[counted > 0]
    assert len(counted) == complete
    assert np.abs(counted / 40_000 * complete - 1).max() < 0.2  # 5 deviations of a draw of so many


def test_few_valid_rows_among_many_are_drawn_equally_often():
    film, replay = filled(film_spec("next_step", image=False), 0, capacity=900, n_step=30)
    for step in range(100):  # new episodes again and again: hardly a window is long enough, but each is cut whole
        replay.begin(film.reset([]))
        if step == 50:
            add(film, replay, step)
    assert replay.size == 3
    counted = np.bincount(replay.sample(3_000, stream(0, "sample")).index)
    assert sorted(counted[counted > 0] // 100) in ([9, 9, 10], [9, 10, 10], [9, 9, 11], [9, 10, 9])


@pytest.mark.parametrize("autoreset", MODES)
def test_a_cut_episode_is_bootstrapped_from_where_it_stopped(autoreset):
    film = Film(film_spec(autoreset), num_envs=2, p_end=0.0)
    film, replay = filled(film.spec, 2, num_envs=2, n_step=3, film=film)
    assert replay.size == 0
    cut = list(film.current)
    replay.begin(film.reset([]))
    assert replay.size == 4
    for step in range(10):
        add(film, replay, step)
    for episode in cut:
        episode.end = "truncated"
    drawn = replay.sample(500, stream(0, "sample"))
    assert len(np.unique(drawn.index)) == 4 + 2 * 8
    assert_shown(film, drawn, 3, GAMMA)


def test_a_stack_that_begins_in_mid_episode_keeps_its_older_frames():
    film = Film(film_spec("next_step"), num_envs=2, p_end=0.0)
    film.reset([])
    for _ in range(2):  # two steps without a replay: the stacks have 3 frames now, then 4
        film.step(np.zeros(2, int))
    for more in range(3):
        replay = Replay(film.spec, 2, 40, n_step=1, gamma=GAMMA, prioritized=False)
        replay.begin(np.stack([episode.observation[-1] for episode in film.current]))
        for step in range(6):
            add(film, replay, step)
        drawn = replay.sample(200, stream(0, "sample"))
        assert len(np.unique(drawn.index)) == 12, more
        assert_shown(film, drawn, 1, GAMMA)


def test_stacks_that_begin_in_mid_episode_in_a_full_ring_are_counted_once():
    film = Film(film_spec("next_step"), num_envs=2, p_end=0.0)
    film, replay = filled(film.spec, 30, num_envs=2, capacity=40, n_step=1, film=film)
    for _ in range(30):
        film.step(np.zeros(2, int))  # not kept
        replay.begin(np.stack([episode.observation[-1] for episode in film.current]))
        add(film, replay, 0)
        drawn = replay.sample(400, stream(0, "sample"))
        assert len(np.unique(drawn.index)) == replay.size


def collector(film, num_steps):
    sampler = SimpleNamespace(
        draw_noise=lambda generator, shape: generator.integers(3, size=shape), sample=lambda _, noise: noise
    )
    return Collector(World(), [film], lambda seen: seen, sampler, num_steps=num_steps, seed=0, timers=Timers())


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("num_steps", [1, 7])
@pytest.mark.parametrize("autoreset", MODES)
def test_rollouts_are_kept_like_steps(autoreset, num_steps, image):
    film = Film(film_spec(autoreset, image=image))
    replay = Replay(film.spec, 3, 60, n_step=3, gamma=GAMMA, prioritized=False)
    collects, draws = collector(film, num_steps), stream(0, "sample")
    for _ in range(350 // num_steps):
        replay.extend(collects.collect()[0])
        if replay.size:
            assert_shown(film, replay.sample(4, draws), 3, GAMMA)
    assert len({id(film.which(o)[0]) for o in replay.sample(500, draws).observation}) > 5


@pytest.mark.parametrize("autoreset", MODES)
def test_a_discontinuous_rollout_starts_new_episodes(autoreset):
    film = Film(film_spec(autoreset), p_end=0.0)
    replay = Replay(film.spec, 3, 60, n_step=3, gamma=GAMMA, prioritized=False)
    replay.extend(collector(film, 5).collect()[0])
    cut = list(film.current)
    replay.extend(collector(film, 5).collect()[0])  # resets the film
    for episode in cut:
        episode.end = "truncated"
    assert replay.size == 3 * 5 + 3 * 3
    assert_shown(film, replay.sample(300, stream(0, "sample")), 3, GAMMA)


def test_a_replay_that_starts_where_environments_only_reset_knows():
    film = Film(film_spec("next_step"), p_end=2.0)  # every step ends
    collects = collector(film, 1)
    collects.collect()
    replay = Replay(film.spec, 3, 60, n_step=1, gamma=GAMMA, prioritized=False)
    replay.extend(collects.collect()[0])  # a step in which all only reset
    assert replay.size == 0
    replay.extend(collects.collect()[0])
    assert replay.size == 3
    assert_shown(film, replay.sample(10, stream(0, "sample")), 1, GAMMA)


def test_a_rollout_left_out_is_noticed_though_all_observations_are_alike():
    spec = film_spec("next_step", image=False)
    replay = Replay(spec, 2, 60, n_step=2, gamma=GAMMA, prioritized=False)
    no, ended = np.zeros((2, 2), bool), np.array([[False, False], [True, False]])

    def rollout(reward, ended, weight):
        rewards = np.full((2, 2), reward, np.float32)
        return Rollout(np.ones((3, 2, 3), np.float32), np.zeros((2, 2), int), rewards, ended, ended, weight, [])

    replay.extend(rollout(1.0, no, np.ones((2, 2), np.float32)))
    # In the rollout that is left out, the first environment's episode ended: now it only resets.
    replay.extend(rollout(5.0, ended, np.array([[0.0, 1.0], [1.0, 1.0]], np.float32)))
    drawn = replay.sample(500, stream(0, "sample"))
    returns = sorted(
        {(round(float(r), 4), round(float(d), 4)) for r, d in zip(drawn.return_, drawn.discount, strict=True)}
    )
    # 1 + 0.9 once per environment, the 1 at the cut, the end's 5, and 5 + 0.9 x 5.
    assert returns == [(1.0, 0.9), (1.9, 0.81), (5.0, 0.0), (9.5, 0.81)]


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("gap", ["left out", "ended in a rollout left out", "resumed in new episodes"])
def test_no_return_crosses_a_gap_though_the_observations_are_alike(gap, autoreset):
    """Equal observations do not show that a rollout is missing, or that environments began anew."""
    replay = Replay(film_spec(autoreset, image=False), 2, 60, n_step=2, gamma=GAMMA, prioritized=False)
    no, ones = np.zeros((2, 2), bool), np.ones((2, 2), np.float32)
    ends = np.array([[False, False], [True, True]]) if gap.startswith("ended") else no

    def rollout(reward, ended, weight=ones):
        return Rollout(np.ones((3, 2, 3), np.float32), no.astype(int), reward * ones, ended, ended, weight, [])

    replay.extend(rollout(1.0, no))
    if gap.startswith("resumed"):
        replay.begin_anew()
    else:
        replay.leave_out(rollout(10.0, ends))
    rests = ends.any() and autoreset == "next_step"
    replay.extend(rollout(100.0, no, np.array([[0.0, 0.0], [1.0, 1.0]], np.float32) if rests else ones))
    drawn = replay.sample(500, stream(0, "sample"))
    returns = {round(float(value), 2) for value in drawn.return_}
    assert returns == ({1.0, 1.9} if rests else {1.0, 1.9, 190.0})


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_replay_continues_with_the_same_bits(prioritized):
    film, one = filled(film_spec("same_step"), 50, prioritized=prioritized)
    first = one.sample(8, stream(0, "before"))
    one.update_priorities(first.index, np.arange(8.0))
    state = {name: np.array(value) for name, value in one.state().items()}
    other = Replay(film.spec, 3, 60, n_step=3, gamma=GAMMA, prioritized=prioritized)
    other.restore(state)
    assert other.size == one.size
    draws = [stream(0, "after"), stream(0, "after")]
    for _ in range(100):
        action = film.random.integers(3, size=3)
        observation, reward, terminated, truncated, final = film.step(action)
        drawn = []
        for replay, generator in zip((one, other), draws, strict=True):
            replay.add(action, reward, terminated, truncated, observation, final)
            drawn.append(replay.sample(6, generator))
            replay.update_priorities(drawn[-1].index, drawn[-1].return_)
        for name in drawn[0].__slots__:
            np.testing.assert_array_equal(getattr(drawn[0], name), getattr(drawn[1], name))
    assert_shown(film, drawn[1], 3, GAMMA)


@pytest.mark.parametrize("changed", [{"capacity": 61}, {"n_step": 2}, {"prioritized": True}, {"num_envs": 2}])
def test_a_state_of_another_shape_is_refused_and_changes_nothing(changed):
    film, replay = filled(film_spec("same_step"), 50)
    other = Replay(
        film.spec, **{"num_envs": 3, "capacity": 60, "n_step": 3, "prioritized": False, **changed}, gamma=0.9
    )
    with pytest.raises(ConfigError, match=r"replay of another shape; .*algorithm\.capacity"):
        other.restore(replay.state())
    assert other.size == 0


def test_invalid_calls_raise_errors():
    film = Film(film_spec("same_step"), p_end=2.0)
    replay = Replay(film.spec, 3, 60, n_step=1, gamma=GAMMA, prioritized=False)
    with pytest.raises(ValueError, match="begin comes before"):
        add(film, replay, 0) if film.reset([]) is not None else None
    with pytest.raises(ValueError, match="no transition that is complete"):
        replay.sample(1, stream(0, "sample"))
    replay.begin(film.reset([]))
    yes, no = np.ones(3, bool), np.zeros(3, bool)
    with pytest.raises(ValueError, match="final observation is not given"):
        replay.add(np.zeros(3, int), np.zeros(3), no, yes, film.reset([]), None)


def test_ready_counts_what_can_be_drawn():
    film, replay = filled(film_spec("same_step", image=False), 0, n_step=1)
    assert not replay.ready(0)
    film.p_end = 0.0
    add(film, replay, 0)
    assert replay.ready(3)
    assert not replay.ready(4)


@pytest.mark.parametrize("image", [True, False])
def test_observations_in_a_file(tmp_path, image):
    path = tmp_path / "deep" / "shard_0.frames"
    film, replay = filled(film_spec("same_step", image=image), 100, path=path)
    assert_shown(film, replay.sample(100, stream(0, "sample")), 3, GAMMA)
    assert list(path.parent.iterdir()) == []  # nothing is left behind, however the process ends
    other = Replay(film.spec, 3, 60, n_step=3, gamma=GAMMA, prioritized=False)
    other.restore(replay.state())
    replay.close()
    assert_shown(film, other.sample(100, stream(0, "sample")), 3, GAMMA)
    with pytest.raises(ValueError, match="no transition"):
        replay.sample(1, stream(0, "sample"))


def test_runs_side_by_side_may_share_the_directory_of_their_files(tmp_path):
    path = tmp_path / "shard_0.frames"
    path.write_text("of a run that starts at the same time")
    film, replay = filled(film_spec("same_step"), 100, path=path)
    assert_shown(film, replay.sample(100, stream(0, "sample")), 3, GAMMA)
    assert path.read_text() == "of a run that starts at the same time"


def test_a_file_that_cannot_be_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"algorithm\.replay_path=.*taken cannot take .* MB"):
        filled(film_spec("same_step"), 0, path=tmp_path / "taken" / "x")
    with pytest.raises(ConfigError, match=r"cannot take 24000000\.\d MB"):
        filled(film_spec("same_step", image=False), 0, capacity=2 * 10**12, path=tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("observation", np.zeros((1, 4, 6, 5), np.uint8), "observation has shape "),
        ("action", 1, r"action has shape \[\]; give \[3\], one row for each environment"),
        ("action", np.array([0.9, 1.7, 0.0]), r"action has float64 numbers, but choices are whole"),
        ("action", np.array([5, -1, 0]), r"action=\[5, -1, 0\] has a choice outside 0 to"),
        ("reward", 1.0, r"reward has shape \[\]; give \[3\]"),
        ("terminated", False, r"terminated has shape \[\]"),
        ("final", np.zeros((1, 4, 6, 5), np.uint8), "final has shape "),
    ],
)
def test_what_numpy_would_repeat_or_round_is_refused(name, value, words):
    film, replay = filled(film_spec("same_step"), 2, n_step=1)
    no, size = np.zeros(3, bool), replay.size
    step = {
        "action": np.zeros(3, np.int64),
        "reward": np.ones(3, np.float32),
        "terminated": no,
        "truncated": no,
        "observation": np.stack([episode.observation[-1] for episode in film.current]),
        "final": None,
    }
    with pytest.raises(ConfigError, match=words):
        replay.add(**step | {name: value})
    with pytest.raises(ConfigError, match="observation has shape"):
        replay.begin(step["observation"][0])
    assert replay.size == size
    replay.add(**step)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"capacity": 0}, "capacity=0 must be a whole number of at least 1"),
        ({"capacity": 10.0}, "capacity=10.0 must be"),
        ({"n_step": 0}, "n_step=0 must be"),
        ({"gamma": 1.5}, "gamma=1.5 must be from 0 to 1"),
        ({"gamma": np.nan}, "gamma=nan must be from 0 to 1"),
    ],
)
def test_numbers_that_keep_or_discount_nothing_are_refused(numbers, words):
    with pytest.raises(ConfigError, match=words):
        Replay(
            film_spec("same_step"), 3, **{"capacity": 60, "n_step": 1, "gamma": GAMMA, "prioritized": False} | numbers
        )
