"""Environments a user might write, for the tests."""

import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from lockstep.envs.spec import ActionSpec, EnvSpec


class Counter(gymnasium.Env):
    """Observes [seed, step]; ends by itself after `length` steps. Reuses its observation array, as some tasks do."""

    def __init__(self, length=3, observation_space=None, action_space=None, observation=None):
        self.length, self.fixed = length, observation
        box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = box if observation_space is None else observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.array = np.zeros(2)
        self.actions = []

    def _observe(self):
        return self.array if self.fixed is None else self.fixed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = (seed if seed is not None else -1, 0)
        return self._observe(), {"ragged": "x"}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        self.actions.append(action)
        self.array[1] += 1
        return self._observe(), 1, self.array[1] >= self.length, False, {"ragged": 1}


class NoSpaces(gymnasium.Env):
    """Sets its spaces in `reset`, which is too late."""


class Faulty(Counter):
    """Does what the file at `order` says, where its seed is named."""

    def __init__(self, order):
        super().__init__(length=100)
        self.order = Path(order)

    def step(self, action):
        if self.array[0] == 11 and self.order.exists():
            word = self.order.read_text()
            if word == "raise":
                raise ValueError("the motor is hot")
            if word == "sleep":
                time.sleep(600)
            if word.startswith("exit"):
                os._exit(int(word.split()[1]))
            if word == "narrow":
                observation, *rest = super().step(action)
                return observation[:1], *rest
        return super().step(action)


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


class Vector:
    """Follows the protocol of VectorEnv."""

    def __init__(self, num_envs, size=1):
        self.spec = EnvSpec(size, ActionSpec("discrete", (2,)), "same_step", False)
        self.num_envs = num_envs

    def reset(self, seeds):
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, action):
        raise NotImplementedError

    def close(self):
        pass


class GymVector(gymnasium.vector.VectorEnv):
    """Same-step autoreset at every second step, image-like observations, shifted actions."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs):
        self.num_envs, self.count = num_envs, 0
        self.single_observation_space = spaces.Box(0, 255, (2, 2), np.uint8)
        self.single_action_space = spaces.Discrete(3, start=-1)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def _observe(self):
        return np.full((self.num_envs, 2, 2), self.count, np.uint8)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self._observe(), {}

    def step(self, actions):
        self.count += 1
        ended = np.full(self.num_envs, self.count == 2)
        info = {"final_obs": self._observe(), "_final_obs": ended} if ended.any() else {}
        if ended.any():
            self.count = 0
        return self._observe(), actions.astype(np.int64), ended, ~ended & False, info


class Camera(Counter):
    """Observes a colour image [height 5, width 4, 3 channels] whose numbers say where they belong; can be drawn."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length=3, render_mode=None):
        super().__init__(length, spaces.Box(0, 255, (5, 4, 3), np.uint8))
        self.render_mode = render_mode
        self.picture = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)

    def _observe(self):
        self.picture[0, 0, 0] = 100 + self.array[1]
        return self.picture

    def render(self):
        return np.full((20, 640, 3), self.array[1], np.uint8)


class GymCamera(GymVector):
    """The same images from a vector environment."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.single_observation_space = spaces.Box(0, 255, (5, 4, 3), np.uint8)

    def _observe(self):
        image = np.tile(np.arange(60, dtype=np.uint8).reshape(5, 4, 3), (self.num_envs, 1, 1, 1))
        image[:, 0, 0, 0] = 100 + self.count
        return image


class Half:
    """Neither one nor the other."""

    def __init__(self, num_envs):
        pass


function = print


class Remembering(Counter):
    """Can be saved; ends at random, by Gymnasium's generator and one of its own."""

    def reset(self, *, seed=None, options=None):
        first = super().reset(seed=seed)
        if seed is not None:
            self.own = np.random.Generator(np.random.Philox(seed))
        return first

    def step(self, action):
        self.array[0] = self.own.normal()
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, bool(self.np_random.random() < 0.2), truncated, info

    def state(self):
        return {"array": self.array, "own": self.own.bit_generator.state}

    def restore(self, state):
        self.array[:] = state["array"]
        self.own.bit_generator.state = state["own"]


class Odometer(gymnasium.RewardWrapper):
    """A wrapper that can be saved: rewards grow."""

    total = 0

    def reward(self, reward):
        self.total += 1
        return reward + self.total

    def state(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


class Shy(Remembering):
    """An attribute hides the method, as `state` would in a subclass of Gymnasium's tasks."""

    def __init__(self):
        super().__init__()
        self.state = None


class Heavier(CartPoleEnv):
    """Nobody knows what a subclass keeps."""


class RememberingVector(Vector):
    """Can be saved, or so it says."""

    savable = True

    def state(self):
        return {}

    def restore(self, state):
        pass


class Unwilling(RememberingVector):
    savable = False


def clipped(env):
    wrappers = gymnasium.wrappers
    env = wrappers.ClipReward(wrappers.ClipAction(wrappers.RescaleAction(env, -1.0, 1.0)), -5.0, -1.0)
    env = wrappers.FlattenObservation(wrappers.ReshapeObservation(env, (3, 1)))
    return wrappers.DtypeObservation(wrappers.RescaleObservation(env, -1.0, 1.0), np.float32)


def negated(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: -reward)
