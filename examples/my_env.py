"""An environment of your own, twice: as a `gymnasium.Env`, and vectorized in numpy. Both train as they are.

    lockstep train examples/my_env.py:MyEnv --ranks 2 --set device=cpu --set learning_rate=1e-3 --set stop_return=0.99
    lockstep train examples/my_env.py:MyVectorEnv --ranks 2 --set device=cpu --set env.kwargs.width=9

The game: a ball falls down a board, straight, and a paddle at the bottom moves left, stays or moves right. Catching
the ball pays 1, missing it -1, and either ends the episode.
"""

import gymnasium
import numpy as np

from lockstep.envs import ActionSpec, EnvSpec


class MyEnv(gymnasium.Env[np.ndarray, int]):
    """One board. Lockstep makes as many as a rank needs, and gives each a seed of its own."""

    def __init__(self, width: int = 5, height: int = 6) -> None:
        self.width, self.height = width, height
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new game."""
        super().reset(seed=seed)  # makes self.np_random: draw from nothing else, or ranks may play the same games
        self.ball, self.paddle, self.row = int(self.np_random.integers(self.width)), self.width // 2, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move the paddle, let the ball fall by one row."""
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.width - 1)
        self.row += 1
        landed = self.row == self.height - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if landed else 0.0
        # `terminated`: the game is over and nothing more could be won. `truncated` would be: we stop watching here.
        return self._observe(), reward, landed, False, {}

    # The next two are optional: with them a resumed run continues in mid-game, and ends as one that never stopped.
    def state(self) -> dict:
        """What decides how the game continues; `np_random` is saved by Lockstep."""
        return {"ball": self.ball, "paddle": self.paddle, "row": self.row}

    def restore(self, state: dict) -> None:
        """Go on from `state`."""
        self.ball, self.paddle, self.row = state["ball"], state["paddle"], state["row"]

    def _observe(self) -> np.ndarray:
        return np.array([(self.ball - self.paddle) / self.width, self.row / self.height], np.float32)


class MyVectorEnv:
    """All boards of a shard at once, following `lockstep.envs.VectorEnv`: no base class, no Python loop."""

    def __init__(self, num_envs: int, width: int = 5, height: int = 6) -> None:
        self.num_envs, self.width, self.height = num_envs, width, height
        self.spec = EnvSpec(
            observation_size=2,
            action=ActionSpec("discrete", (3,)),
            autoreset="same_step",  # the step that ends an episode returns the first observation of the next
            separately_seedable=False,  # one generator for all boards: `reset` uses the first seed only
            reward_threshold=0.99,
        )
        self.ball, self.paddle, self.row = np.zeros((3, num_envs), np.int64)

    def reset(self, seeds: list[int]) -> np.ndarray:
        """New games everywhere."""
        self.generator = np.random.default_rng(seeds[0])
        self._begin(np.full(self.num_envs, True))
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step every board; where a game ends, the next begins at once."""
        self.paddle = np.clip(self.paddle + action - 1, 0, self.width - 1)
        self.row = self.row + 1
        landed = self.row == self.height - 1
        reward = np.where(landed, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0).astype(np.float32)
        final = self._observe()  # what each board looked like before any reset
        self._begin(landed)
        return self._observe(), reward, landed, np.zeros(self.num_envs, bool), final

    def state(self) -> dict:
        """What decides how the games continue; optional, as above."""
        boards = np.stack([self.ball, self.paddle, self.row])
        return {"boards": boards, "generator": self.generator.bit_generator.state}

    def restore(self, state: dict) -> None:
        """Go on from `state`."""
        self.ball, self.paddle, self.row = state["boards"].copy()
        self.generator.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Nothing to free."""

    def _begin(self, boards: np.ndarray) -> None:
        self.ball[boards] = self.generator.integers(self.width, size=boards.sum())
        self.paddle[boards], self.row[boards] = self.width // 2, 0

    def _observe(self) -> np.ndarray:
        return np.stack([(self.ball - self.paddle) / self.width, self.row / self.height], 1).astype(np.float32)
