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


class Reach(gymnasium.Env):
    """Push a joint to the column that a camera shows as bright: neither the camera nor the joint alone is enough.

    Groups: `camera`, a picture [H, W, 3] of bytes; `joint`, its position in [0, 1] and its last move; `target`, which
    only a value network is to observe.
    """

    SIZE = 12

    def __init__(self, limit=8):
        boxes = {name: gymnasium.spaces.Box(-1, 1, (size,), np.float32) for name, size in (("joint", 2), ("target", 1))}
        camera = gymnasium.spaces.Box(0, 255, (self.SIZE, self.SIZE, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"camera": camera, **boxes})
        self.action_space = gymnasium.spaces.Discrete(3)
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.target, self.joint = self.np_random.random(2)
        self.moved, self.steps = 0.0, 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        self.moved = 0.2 * (action - 1)
        self.joint = float(np.clip(self.joint + self.moved, 0, 1))
        reward = float(abs(self.joint - self.target) < 0.15)
        return self.observe(), reward, False, self.steps == self.limit, {}

    def observe(self):
        camera = np.full((self.SIZE, self.SIZE, 3), 20, np.uint8)
        camera[:, int(self.target * self.SIZE), 1] = 250
        return {
            "camera": camera,
            "joint": np.array([self.joint, self.moved], np.float32),
            "target": np.array([self.target], np.float32),
        }

    def state(self):
        return {"target": self.target, "joint": self.joint, "moved": self.moved, "steps": self.steps}

    def restore(self, state):
        for name, value in state.items():
            setattr(self, name, value)
