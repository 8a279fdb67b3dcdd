"""An environment whose observation has groups, of which the value network may receive others than the policy."""

import gymnasium
import numpy as np


class Hidden(gymnasium.Env):
    """A number moves at random by a hidden speed; the action that has the sign of the number is rewarded.

    The policy is to observe the `position`, the value network the `speed` and the `position`.
    """

    def __init__(self, limit=7):
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"position": box, "speed": box, "step": gymnasium.spaces.Discrete(limit + 1)}
        )
        self.action_space = gymnasium.spaces.Discrete(2)
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.speed = self.np_random.normal(size=(2, 2))
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        reward = float(action == (self.position[0] > 0))
        self.position = self.position + self.speed
        terminated = bool(abs(self.position[0]) > 5)
        return self.observe(), reward, terminated, self.steps == self.limit, {}

    def observe(self):
        return {
            "position": self.position.astype(np.float32),
            "speed": 100 + 10 * self.speed.astype(np.float32),
            "step": self.steps,
        }

    def state(self):
        return {"position": self.position, "speed": self.speed, "steps": self.steps}

    def restore(self, state):
        self.position, self.speed, self.steps = state["position"], state["speed"], state["steps"]
