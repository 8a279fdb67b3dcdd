"""A fixed quota of episodes per environment."""

import numpy as np
import pytest

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import RunError
from lockstep.experience import evaluate
from lockstep.experience.acting import ActorWithState
from lockstep.experience.evaluate import MAX_ENVS, play, quota
from lockstep.world import World


class Counting:
    """Environment b's episodes last b + 1 steps and pay 1 each."""

    def __init__(self, num_envs, autoreset, max_episode_steps=None):
        self.spec = EnvSpec(1, ActionSpec("discrete", (2,)), autoreset, True, None, max_episode_steps)
        self.num_envs = num_envs
        self.lengths = np.arange(num_envs) + 1

    def reset(self, seeds):
        self.seeds = list(seeds)
        self.count, self.resetting = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, action):
        self.count = np.where(self.resetting, 0, self.count + 1)
        ended = (self.count >= self.lengths) & ~self.resetting
        # A reward in the reset step must not count.
        reward = np.where(self.resetting, 99.0, 1.0).astype(np.float32)
        if self.spec.autoreset == "next_step":
            self.resetting = ended.copy()
        else:
            self.count[ended] = 0
        observation = np.full((self.num_envs, 1), action.sum(), np.float32)
        return observation, reward, ended, np.zeros(self.num_envs, bool), None

    def close(self):
        pass


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_every_environment_plays_its_share(autoreset):
    env, beats = Counting(4, autoreset), []
    seeds = [5, 6, 7, 8]
    played = play(env, lambda o: np.zeros(len(o), int), 10, seeds, lambda: beats.append(1))
    assert played.lengths == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4]
    assert played.returns == [float(n) for n in played.lengths], "short episodes are counted more often"
    assert env.seeds == seeds
    assert len(beats) == (8 if autoreset == "same_step" else 9)


def test_observations_reach_who_chooses():
    shown = []

    def choose(observation):
        shown.append(observation[0, 0])
        return np.full(len(observation), len(shown))

    play(Counting(2, "same_step"), choose, 4, [0, 1], lambda: None)
    assert shown == [0, 2, 4, 6]


def test_episodes_that_never_end_are_an_error():
    env = Counting(2, "same_step", max_episode_steps=20)
    env.lengths = np.array([1, 10**9])
    with pytest.raises(RunError, match=r"environment 1 .* after 20 steps"):
        play(env, lambda o: np.zeros(len(o), int), 2, [0, 1], lambda: None)


class Breaking(Counting):
    """From its second episode on, environment 1 gives what is not finite: a reward, or an observation of a step."""

    def __init__(self, autoreset, what):
        super().__init__(2, autoreset)
        self.what, self.steps = what, 0

    def reset(self, seeds):
        observation = super().reset(seeds)
        if self.what == "reset":
            observation[1] = np.inf
        return observation

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.steps += 1
        if self.what == "reward" and self.steps > 2:
            reward[1] = np.nan  # of the reset step, with next_step, it does not count
        if self.what == "observation" and self.steps == 3:
            observation[1] = np.nan
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("autoreset", "what", "step", "words"),
    [
        ("same_step", "reward", 1, "environment 1 gave a reward that is not finite (nan)"),
        ("next_step", "reward", 1, "environment 1 gave a reward that is not finite (nan)"),
        ("same_step", "observation", 1, "environment 1 gave an observation that is not finite (nan)"),
        ("next_step", "observation", 0, "environment 1 gave an observation that is not finite (nan)"),
        ("same_step", "reset", 0, "environment 1 gave an observation that is not finite (inf)"),
    ],
)
def test_a_number_that_is_not_finite_ends_the_evaluation(autoreset, what, step, words):
    def played(**kwargs):
        return play(Breaking(autoreset, what), lambda o: np.zeros(len(o), int), 6, [0, 1], lambda: None, **kwargs)

    found = played()
    assert (found.fault.step, str(found.fault)) == (step, words)
    assert len(found.returns) < 6
    skipped = played(skip_non_finite=True)
    assert (str(skipped.fault), len(skipped.returns)) == (words, 6)


@pytest.mark.parametrize("episodes", [1, 3, 100, 1000])
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_quotas_add_up_and_are_even(episodes, shards):
    world = World(size=shards)
    quotas = [quota(episodes, world, shard) for shard in range(shards)]
    assert sum(wanted for _, wanted in quotas) == episodes
    assert max(wanted for _, wanted in quotas) - min(wanted for _, wanted in quotas) <= 1
    for envs, wanted in quotas:
        assert envs <= min(MAX_ENVS, wanted)
        assert (envs == 0) == (wanted == 0)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_without_a_limit_episodes_that_never_end_are_cut_and_the_next_ones_begin_anew(autoreset, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 20)
    env, resets = Counting(3, autoreset), []
    env.lengths = np.array([1, 10**9, 7])
    monkeypatch.setattr(env, "reset", lambda seeds: (resets.append(list(seeds)), Counting.reset(env, seeds))[1])
    actor = ActorWithState(lambda observation: observation, (3,))
    played = play(env, lambda o: np.zeros(len(o), int), 8, [5, 6, 7], lambda: None, actor)
    assert played.lengths == [1, 1, 1, 20, 20, 20, 7, 7]
    assert played.returns == [float(n) for n in played.lengths]
    assert played.num_cut == 3
    assert resets[0] == [5, 6, 7]
    assert len({tuple(seeds) for seeds in resets}) == 3, "an episode that follows a cut one has a seed of its own"


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize("agents", [2, 3, 40, MAX_ENVS + 1])
def test_quotas_of_agents_are_whole_environments(agents, shards):
    world = World(size=shards)
    for episodes in (1, 3, 100):
        quotas = [quota(episodes, world, shard, agents) for shard in range(shards)]
        assert 0 <= sum(wanted for _, wanted in quotas) - episodes < agents
        for rows, wanted in quotas:
            assert rows % agents == wanted % agents == 0
            assert rows <= min(max(MAX_ENVS, agents), wanted)
            assert (rows == 0) == (wanted == 0)
