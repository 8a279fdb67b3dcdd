"""Collecting: what is kept of each step, and what is found once per rollout."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.distributed.timers import Timers
from lockstep.envs.joined_groups import split_groups
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError, RunError
from lockstep.experience.normalize import DiscountedReturns, RunningMoments
from lockstep.experience.rollout import Collector, EpisodeStats, NonFiniteValue, clipper
from lockstep.world import World, stream_seed


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    envs=st.integers(1, 5),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    often=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_episode_statistics_are_those_of_a_loop(seed, envs, steps, often):
    draw = np.random.default_rng(seed)
    stats, total, length = EpisodeStats(envs), np.zeros(envs), np.zeros(envs)
    for count in steps:
        reward, ended = draw.integers(-3, 4, (count, envs)).astype(np.float32), draw.random((count, envs)) < often
        weight = (draw.random((count, envs)) < 0.8).astype(np.float32)
        found: list[list[tuple[float, float]]] = [[] for _ in range(envs)]
        for t in range(count):
            total += reward[t]
            length += weight[t]
            for b in np.flatnonzero(ended[t]):
                found[b].append((total[b], length[b]))
                total[b] = length[b] = 0.0
        stats.update(reward, ended, weight)
        flat = [episode for one in found for episode in one]  # by environment, then in time
        assert list(zip(stats.returns, stats.lengths, strict=True)) == flat


class Scripted:
    """Observes [environment, step]; environment b's episodes end after b + 2 steps; pays the action."""

    def __init__(self, num_envs, autoreset="same_step", action=None, first=0):
        self.spec = EnvSpec(2, action or ActionSpec("discrete", (4,)), autoreset, True)
        self.num_envs, self.first = num_envs, first
        self.step_in_episode = np.zeros(num_envs, int)
        self.resetting = np.zeros(num_envs, bool)
        self.given, self.truncates, self.closed, self.reset_pays = [], True, False, 0
        self.observation = np.zeros((num_envs, 2), np.float32)

    def observe(self):
        self.observation[:] = np.stack([np.arange(self.num_envs) + self.first, self.step_in_episode], 1)
        return self.observation

    def reset(self, seeds):
        self.seeds = list(seeds)
        return self.observe()

    def step(self, action):
        self.given.append(np.array(action))
        self.step_in_episode = np.where(self.resetting, 0, self.step_in_episode + 1)
        ended = (self.step_in_episode >= np.arange(self.num_envs) + 2) & ~self.resetting
        reward = np.where(self.resetting, self.reset_pays, 1).astype(np.float32)
        final = None
        if self.spec.autoreset == "same_step":
            final = self.observe().copy()
            self.step_in_episode[ended] = 0
        else:
            self.resetting = ended.copy()
        none = np.zeros(self.num_envs, bool)
        return self.observe(), reward, none if self.truncates else ended, ended if self.truncates else none, final

    def close(self):
        self.closed = True


class Noisy:
    """Acts by its noise alone; keeps what it was shown."""

    def __init__(self):
        self.shown = []

    def draw_noise(self, generator, shape):
        return generator.integers(0, 4, (*shape, 1))

    def sample(self, parameters, noise):
        self.shown.append(parameters.copy())
        return noise[..., 0]

    mode = None


def collector(envs, world=None, steps=6, sampler=None, **kwargs):
    world = world or World(size=1, num_shards=len(envs))
    return Collector(
        world, envs, lambda seen: seen, sampler or Noisy(), num_steps=steps, seed=3, timers=Timers(), **kwargs
    )


def test_same_step_environments_keep_their_true_last_observation_aside():
    env, sampler = Scripted(3), Noisy()
    collected = collector([env], sampler=sampler)
    (rollout,) = collected.collect()
    assert rollout.observation.shape == (7, 3, 2)
    for t in range(6):
        assert (sampler.shown[t][0] == rollout.observation[t]).all(), "the actor saw something else"
        assert (env.given[t] == rollout.action[t]).all()
    # Environment 0 ends every 2 steps, 1 every 3, 2 every 4.
    assert np.flatnonzero(rollout.ended[:, 0]).tolist() == [1, 3, 5]
    assert np.flatnonzero(rollout.ended[:, 1]).tolist() == [2, 5]
    assert rollout.observation[:, 0, 1].tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert (rollout.weight == 1).all()
    assert not rollout.terminated.any()
    aside = {
        (t, int(b)): last.tolist() for t, rows, lasts in rollout.final for b, last in zip(rows, lasts, strict=True)
    }
    assert aside == {(1, 0): [0, 2], (3, 0): [0, 2], (5, 0): [0, 2], (2, 1): [1, 3], (5, 1): [1, 3], (3, 2): [2, 4]}


class Asymmetric(Scripted):
    """Gives the critic the negative of the environment, step and 1000."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.spec = dataclasses.replace(self.spec, critic_size=3)

    def step(self, action):
        result = super().step(action)
        self.final = result[-1]
        return result

    def critic_observation(self):
        final = getattr(self, "final", None)
        return critic_part(self.observation), None if final is None else critic_part(final)


def critic_part(observation):
    return np.concatenate([-observation, np.full((len(observation), 1), 1000, np.float32)], 1)


def test_actor_does_not_see_the_critics_observations():
    env, sampler = Asymmetric(3), Noisy()
    (rollout,) = collector([env], sampler=sampler, with_critic=True).collect()
    policy, critic = split_groups(rollout.observation, env.spec)
    assert (policy.shape, critic.shape) == ((7, 3, 2), (7, 3, 3))
    for t in range(6):
        assert (sampler.shown[t][0] == policy[t]).all(), "the actor saw something else"
    for row in range(7):
        assert (critic[row] == critic_part(policy[row])).all()
    for _, _, rows in rollout.final:
        last, own = split_groups(rows, env.spec)
        assert (own == critic_part(last)).all(), "the critic's final observation is another"


@pytest.mark.parametrize("image", [None, (1, 1, 2)])
def test_environment_without_the_critics_observations_is_refused(image):
    env = Scripted(3)
    env.spec = dataclasses.replace(env.spec, critic_size=3, image=image)
    with pytest.raises(ConfigError, match=r"critic_size=3.*give their class the method critic_observation"):
        collector([env], with_critic=True)


def test_terminated_episodes_need_no_last_observation():
    env = Scripted(3)
    env.truncates = False
    (rollout,) = collector([env]).collect()
    assert rollout.final == []
    assert (rollout.terminated == rollout.ended).all()


def test_an_episode_that_terminates_in_its_last_allowed_step_needs_no_last_observation(monkeypatch):
    env = Scripted(3)
    step = env.step

    def step_with_both(action):
        observation, reward, _, truncated, final = step(action)
        return observation, reward, truncated, truncated, final

    monkeypatch.setattr(env, "step", step_with_both)
    (rollout,) = collector([env]).collect()
    assert rollout.terminated.any()
    assert rollout.final == []


def test_next_step_environments_weigh_their_reset_rows_nothing_also_over_the_edge_of_a_rollout():
    collected = collector([Scripted(3, "next_step")], steps=3)
    first, weights = collected.collect()[0], []
    weights = [first.weight.copy()]
    lengths = [collected.episodes[0].lengths.copy()]
    for _ in range(3):
        (rollout,) = collected.collect()
        assert rollout.final == []
        weights.append(rollout.weight.copy())
        lengths.append(collected.episodes[0].lengths.copy())
    # Environment 0: 2 steps and a reset, over and over.
    assert np.concatenate(weights)[:, 0].tolist() == [1, 1, 0] * 4
    assert np.concatenate(weights)[:, 1].tolist() == [1, 1, 1, 0] * 3
    assert sorted(np.concatenate(lengths).tolist()) == [2.0] * 4 + [3.0] * 3 + [4.0] * 2
    assert len(collected.episodes[0].returns) == len(lengths[-1])


def test_what_a_reset_row_pays_belongs_to_no_episode():
    """As in evaluation: every step of an episode pays 1."""
    env = Scripted(3, "next_step")
    env.reset_pays = 5
    collected = collector([env])
    for _ in range(2):
        (rollout,) = collected.collect()
        np.testing.assert_array_equal(rollout.reward, rollout.weight)
        assert collected.episodes[0].returns.tolist() == collected.episodes[0].lengths.tolist() != []


def test_a_rollout_starts_where_the_last_one_stopped():
    collected = collector([Scripted(3)], steps=4)
    (rollout,) = collected.collect()
    last = rollout.observation[-1].copy()
    (rollout,) = collected.collect()
    assert (rollout.observation[0] == last).all()


def test_shards_are_seeded_and_draw_by_their_number_whatever_rank_holds_them():
    alone = [Scripted(2), Scripted(2, first=2)]
    together = collector(alone)
    both = [(r.action.copy(), r.observation.copy()) for r in together.collect()]
    for rank in range(2):
        env = Scripted(2, first=2 * rank)
        mine = collector([env], World(rank=rank, size=2))
        (rollout,) = mine.collect()
        assert env.seeds == alone[rank].seeds == [stream_seed(3, "env", 2 * rank + i) for i in range(2)]
        assert (rollout.action == both[rank][0]).all()
        assert mine.fingerprints == [together.fingerprints[rank]]
    assert (both[0][0] != both[1][0]).any()
    assert together.fingerprint() not in together.fingerprints


def test_the_actor_sees_normalized_observations_and_the_rollout_keeps_raw_ones():
    moments, sampler = RunningMoments(2), Noisy()
    moments.update(moments.sums(np.array([[0.0, 0.0], [2.0, 4.0]]), np.ones(2)))
    (rollout,) = collector([Scripted(3)], sampler=sampler, observation_moments=moments).collect()
    assert np.allclose(sampler.shown[2][0], (rollout.observation[2] - [1, 2]) / [1, 2])


def test_box_actions_are_clipped_for_the_environment_only():
    class Wide(Noisy):
        def draw_noise(self, generator, shape):
            return generator.normal(0, 3, (*shape, 2)).astype(np.float32)

        def sample(self, parameters, noise):
            return noise

    action = ActionSpec("continuous", (2,), (-1.0, -np.inf), (0.5, 2.0))
    env = Scripted(3, action=action)
    (rollout,) = collector([env], sampler=Wide()).collect()
    given = np.stack(env.given)
    assert np.abs(rollout.action).max() > 2.0
    assert (given == np.clip(rollout.action, [-1, -np.inf], [0.5, 2])).all()
    assert given.dtype == np.float32
    free = ActionSpec("continuous", (1,), (-np.inf,), (np.inf,))
    assert (clipper(free)(rollout.action) == rollout.action).all()


def faulty(value, what, at=5, row=2):
    """An environment that gives `value` once; a rollout of 6 steps."""
    env = Scripted(3)
    step = env.step

    def faulty_step(action):
        observation, reward, terminated, truncated, final = step(action)
        if len(env.given) == at:
            {"reward": reward, "observation": observation[:, 0], "final": final[:, 0]}[what][row] = value
        return observation, reward, terminated, truncated, final

    env.step = faulty_step
    return env


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("what", "words"), [("reward", "a reward"), ("observation", "an observation")])
def test_numbers_that_are_not_finite_name_their_environment(value, what, words):
    message = f"environment 5 gave {words} that is not finite .{value}., in step 4 .*rank 1, shard 1"
    with pytest.raises(RunError, match=message):
        collector([faulty(value, what)], World(rank=1, size=2)).collect()


@pytest.mark.parametrize(
    ("what", "at", "row", "step"),
    [("reward", 1, 1, 0), ("observation", 5, 2, 4), ("final", 4, 2, 3), ("reward", 99, 0, None)],
)
def test_report_non_finite_stores_the_first_non_finite_number(what, at, row, step):
    (rollout,) = collector([faulty(np.inf, what, at, row)], report_non_finite=True).collect()
    name = "a reward" if what == "reward" else "an observation"
    assert rollout.fault == (None if step is None else NonFiniteValue(step, row, name, np.inf))


def test_an_observation_at_the_end_of_a_rollout_spoils_the_next_one_too():
    collected = collector([faulty(np.nan, "observation", at=4, row=1)], steps=4, report_non_finite=True)
    faults = [collected.collect()[0].fault for _ in range(3)]
    assert [fault and (fault.step, fault.env) for fault in faults] == [(3, 1), (-1, 1), None]


def test_non_finite_rewards_count_0_and_do_not_affect_later_episodes():
    stats, reward, ended = EpisodeStats(2), np.ones((6, 2), np.float32), np.zeros((6, 2), bool)
    reward[1], ended[[2, 5]] = [np.nan, -np.inf], True
    stats.update(reward, ended, np.ones((6, 2), np.float32))
    assert stats.returns.tolist() == [2.0, 3.0] * 2
    assert stats.lengths.tolist() == [3.0] * 4
    discounted = DiscountedReturns(2, 0.5).update(reward, ended)
    assert discounted[:, 0].tolist() == [1.0, 0.5, 1.25, 1.0, 1.5, 1.75]


def test_no_environment_is_sent_what_is_not_finite():
    drawn = np.array([[np.nan, 0.1], [0.2, np.inf], [-np.inf, np.nan]], np.float32)
    for low, high, expected in [
        ((-np.inf, -np.inf), (np.inf, np.inf), [[0, 0.1], [0.2, 0], [0, 0]]),
        ((-1.0, 0.5), (1.0, 2.0), [[0, 0.5], [0.2, 0.5], [0, 0.5]]),
    ]:
        sent = clipper(ActionSpec("continuous", (2,), low, high))(drawn)
        assert sent.dtype == np.float32
        np.testing.assert_allclose(sent, expected)


def test_an_environment_that_raises_is_named():
    env = Scripted(4)
    env.step = lambda action: 1 / 0
    with pytest.raises(RunError, match=r"rank 1 .*env\.step of shard 1 \(environments 4 to 7\): ZeroDivisionError"):
        collector([env], World(rank=1, size=2)).collect()


def test_observations_of_another_shape_end_the_run():
    """numpy would repeat the one column in all."""
    env = Scripted(4)
    whole = collector([env])
    step = env.step
    env.step = lambda action: (step(action)[0][:, :1], *step(action)[1:])
    with pytest.raises(RunError, match=r"shard 0 gave observations of the shape \[4, 1\].* says \[4, 2\]"):
        whole.collect()


def test_closing_closes_the_environments():
    envs = [Scripted(1), Scripted(1)]
    collector(envs).close()
    assert all(env.closed for env in envs)
