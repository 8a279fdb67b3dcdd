"""Environments that a user might write, each with one fault; `Grid`, `Rows` and `Board` have none."""

import dataclasses
import os
import random
import time
from collections import namedtuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from lockstep.envs.spec import ActionSpec, EnvSpec


class Grid(gymnasium.Env):
    """Walk along a line of cells; an episode ends at its end, or after 20 steps."""

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.steps = int(self.np_random.integers(50)), 0
        return self.observe(), {}

    def step(self, action):
        self.cell = min(max(self.cell + 2 * int(action) - 1, 0), 50)
        self.steps += 1
        return self.observe(), 1.0, self.cell == 50, self.steps >= 20, {}

    def observe(self):
        return np.array([self.cell, self.steps], np.float32)

    def state(self):
        return {"cell": self.cell, "steps": self.steps}

    def restore(self, state):
        self.cell, self.steps = state["cell"], state["steps"]


class WithText(Grid):
    """Without a fault in the group `seen`; the other one has no fixed length."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"seen": self.observation_space, "mission": spaces.Text(20)})

    def observe(self):
        return {"seen": super().observe(), "mission": "gothere"}


class NeedsFourFrames(gymnasium.ObservationWrapper):
    """Refuses observations that are not a stack of four frames."""

    def observation(self, observation):
        assert np.shape(observation) == (4, 84, 84)
        return observation


class Counted(Grid):
    """Without a fault; counts how often it was made and closed."""

    made = closed = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1

    def close(self):
        type(self).closed += 1


class NoObservationSpace(Grid):
    def __init__(self):
        self.action_space = spaces.Discrete(2)


class ActionSpaceIsANumber(Grid):
    def __init__(self):
        super().__init__()
        self.action_space = 2


class ActionsAreWords(Grid):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Text(3)


class ResetWithoutInfo(Grid):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class ResetWithoutSeed(Grid):
    def reset(self):
        return super().reset()


class ResetRaises(Grid):
    def reset(self, *, seed=None, options=None):
        return 1 / 0


class ResetNeedsASeed(Grid):
    """As Gymnasium calls it after each episode, there is none."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed + 1)


class OldStep(Grid):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class StepReturnsNothing(Grid):
    def step(self, action):
        super().step(action)


class WrongShape(Grid):
    def observe(self):
        return np.zeros(3, np.float32)


class WordsSeen(Grid):
    def observe(self):
        return "here"


class FractionsOfBytes(Grid):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def observe(self):
        return np.full((8, 8, 3), 0.5)


class ChoiceOutOfRange(Grid):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Discrete(5)

    def observe(self):
        return 7


class KeysAreMissing(Grid):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"cell": spaces.Discrete(51), "steps": spaces.Discrete(21)})

    def observe(self):
        return {"cell": self.cell}


class KeysOfTwoTypes(KeysAreMissing):
    def observe(self):
        return {"cell": self.cell, 1: self.steps}


class TwoKeys(KeysAreMissing):
    """Without a fault."""

    def observe(self):
        return {"cell": self.cell, "steps": self.steps}


class GroupOfDoubles(Grid):
    """Without a fault, but one group has another type than its space says."""

    def __init__(self):
        super().__init__()
        seen = self.observation_space
        self.observation_space = spaces.Dict(
            {"cells": seen, "count": spaces.Box(0, 50, (1,), np.float32), "seen": seen}
        )

    def observe(self):
        seen = super().observe()
        return {"cells": seen, "count": np.array([self.steps], np.float64), "seen": seen}


class OneAction(Grid):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(1)


class NanSeen(Grid):
    def observe(self):
        return np.array([self.cell, np.nan], np.float32)


class NanReward(Grid):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class HugeReward(Grid):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1e300, *rest


class RewardIsAnArray(Grid):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, reward]), *rest


class RewardIsText(Grid):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, str(reward), *rest


class FlagIsNone(Grid):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, None, info


class StateIsASet(Grid):
    def state(self):
        return {"cells": {self.cell}}


class StateIsComplex(Grid):
    def state(self):
        return {"cells": np.zeros(2, np.complex64)}


class ForgetsTheCell(Grid):
    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.steps = state["steps"]


# What can be trained, and deserves a word.


class SeedIgnored(Grid):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 25 * (random.random() + np.random.random())
        return self.observe(), {}


class AlwaysTheSame(Grid):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 25
        return self.observe(), {}


class StepDrawsElsewhere(Grid):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, random.random(), *rest


class NeverEnds(Grid):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return np.minimum(observation, 100), reward, False, False, {}


class LiveBuffer(Grid):
    def __init__(self):
        super().__init__()
        self.array = np.zeros(2, np.float32)

    def observe(self):
        self.array[:] = self.cell, self.steps
        return self.array


class OutOfBounds(Grid):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)


class Doubles(Grid):
    def observe(self):
        return super().observe().astype(np.float64)


class Numbers(Grid):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class NoInfo(Grid):
    def step(self, action):
        return *super().step(action)[:4], None


class Masked(Grid):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": np.array([1, 0])}


class Forgetful(gymnasium.Wrapper):
    """A wrapper that cannot be saved."""


class HalfAState(Grid):
    restore = None


# Many at once, as lockstep's VectorEnv says.


class Rows:
    """Random walks; `same_step`."""

    def __init__(self, num_envs, separately_seedable=True, autoreset="same_step"):
        self.num_envs = num_envs
        self.spec = EnvSpec(2, ActionSpec("discrete", (2,)), autoreset, separately_seedable)

    def reset(self, seeds):
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        self.place = np.stack([self.draw(i) for i in range(self.num_envs)])
        self.steps = 0
        return self.place.copy()

    def draw(self, i):
        return self.generators[i].standard_normal(2, dtype=np.float32)

    def step(self, action):
        self.place[:, 0] += 2 * action - 1
        self.steps += 1
        final, cut = self.place.copy(), np.full(self.num_envs, self.steps % 7 == 0)
        if cut.any():
            self.place = np.stack([self.draw(i) for i in range(self.num_envs)])
        reward = np.ones(self.num_envs, np.float32)
        return self.place.copy(), reward, np.zeros(self.num_envs, bool), cut, final

    def close(self):
        pass


class RowsWithNanElsewhere(Rows):
    """Without a fault: final observations mean nothing where no episode ended."""

    def step(self, action):
        *found, cut, final = super().step(action)
        return *found, cut, np.where(cut[:, None], final, np.float32(np.nan))


class RowsResetWithInfo(Rows):
    def reset(self, seeds):
        return super().reset(seeds), {}


class RowsNeverEnd(Rows):
    def step(self, action):
        return *super().step(action)[:3], np.zeros(self.num_envs, bool), self.place.copy()


class RowsShareASeed(Rows):
    def reset(self, seeds):
        return super().reset([seeds[0] + i for i in range(self.num_envs)])


class RowsAlike(Rows):
    def __init__(self, num_envs):
        super().__init__(num_envs, separately_seedable=False)

    def reset(self, seeds):
        return super().reset([seeds[0]] * self.num_envs)


class RowsLoseTheFinal(Rows):
    def step(self, action):
        observation, *rest, _ = super().step(action)
        return observation, *rest, observation


class RowsWithoutFinal(Rows):
    def step(self, action):
        return *super().step(action)[:4], None


class RowsWithAFinalTooMany(Rows):
    def __init__(self, num_envs):
        super().__init__(num_envs, autoreset="next_step")


class RowsOfFlags(Rows):
    def step(self, action):
        observation, reward, terminated, truncated, final = super().step(action)
        return observation, reward, terminated.astype(int), truncated, final


class RowsOfOneReward(Rows):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1.0, *rest


class RowsWithACritic(Rows):
    """Without a fault: an observation of the critic's own."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.spec = dataclasses.replace(self.spec, critic_size=3)
        self.seen = np.zeros((num_envs, 3), np.float32)

    def step(self, action):
        found = super().step(action)
        self.final, self.seen = self.seen, self.seen + 1
        return found

    def critic_observation(self):
        return self.seen, getattr(self, "final", None)


class CriticIsAbsent(RowsWithACritic):
    critic_observation = None


class CriticIsAlone(RowsWithACritic):
    def critic_observation(self):
        return self.seen


class CriticOfTwo(RowsWithACritic):
    def critic_observation(self):
        return self.seen[:, :2], self.seen[:, :2]


class CriticWithNan(RowsWithACritic):
    def step(self, action):
        found = super().step(action)
        self.final = np.full_like(self.final, np.nan)
        return found


class CriticWithoutFinal(RowsWithACritic):
    def critic_observation(self):
        return self.seen, None


class CriticLosesTheFinal(RowsWithACritic):
    def critic_observation(self):
        return self.seen, self.seen


# Many at once, as Gymnasium's VectorEnv says.


class Board(gymnasium.vector.VectorEnv):
    """Counts; `same_step`."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.np_random.normal(size=(self.num_envs, 1)).astype(np.float32)
        self.steps = 0
        return self.count.copy(), {}

    def step(self, actions):
        self.count += 1
        self.steps += 1
        ended = np.full(self.num_envs, self.steps % 5 == 0)
        info = {"final_obs": self.count.copy(), "_final_obs": ended} if ended.any() else {}
        if ended.any():
            self.count = self.np_random.normal(size=(self.num_envs, 1)).astype(np.float32)
        return self.count.copy(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), info


class BoardWithoutAMode(Board):
    metadata = {}  # noqa: RUF012


class BoardWithoutFinals(Board):
    def step(self, actions):
        return *super().step(actions)[:4], {}


class BoardLosesTheFinal(Board):
    def step(self, actions):
        observation, reward, ended, truncated, info = super().step(actions)
        if info:
            info["final_obs"] = observation
        return observation, reward, truncated, ended, info


class BoardBeyondItsLimit(Board):
    """Takes a limit, and goes on."""

    def __init__(self, num_envs, max_episode_steps=None):
        super().__init__(num_envs)


class BoardOfOne(Board):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation[0], info


# Neither.


class NoBase:
    """What people write who do not know of Gymnasium's base class."""

    def reset(self):
        return np.zeros(2)

    def step(self, action):
        return np.zeros(2), 0.0, False, {}


OldGym = type("OldGym", (namedtuple("Env", ()),), {"__module__": "gym.envs.mine"})


class Hangs(Grid):
    def reset(self, *, seed=None, options=None):
        time.sleep(600)


class Leaves(Grid):
    """The process it is in."""

    def step(self, action):
        os._exit(4)


class SlowStart(Grid):
    """A simulator that starts with the first episode."""

    started = False

    def reset(self, *, seed=None, options=None):
        if not SlowStart.started:
            SlowStart.started = True
            time.sleep(0.5)
        return super().reset(seed=seed, options=options)


class Slow(Grid):
    """A simulator that takes its time."""

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)
