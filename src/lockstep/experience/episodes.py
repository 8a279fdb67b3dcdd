"""Returns and lengths of the episodes that rollouts are made of.

Shapes: T steps, B environments of a shard.
"""

import numpy as np


class EpisodeStats:
    """Returns and lengths of the episodes of one shard, found once per rollout. Attributes: `returns`, `lengths`."""

    def __init__(self, num_envs: int) -> None:
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs)
        self.returns, self.lengths = np.zeros(0), np.zeros(0)

    def update(self, reward: np.ndarray, ended: np.ndarray, weight: np.ndarray) -> None:
        """Add a rollout [T, B]; `returns` and `lengths` [episodes] are those of the episodes that ended in it.

        A reward that is not finite counts 0, or no later episode of its environment would have a finite return.
        """
        summed = np.cumsum(np.where(np.isfinite(reward), reward, 0), 0, dtype=np.float64) + self._return
        counted = np.cumsum(weight, 0, dtype=np.float64) + self._length
        env, step = np.nonzero(ended.T)  # by environment, then in time: an episode starts where the previous one ended
        self.returns, self.lengths = summed[step, env], counted[step, env]
        follows = np.flatnonzero(env[1:] == env[:-1]) + 1
        last = np.flatnonzero(np.append(env[1:] != env[:-1], True)) if len(env) else np.zeros(0, int)
        self._return, self._length = summed[-1], counted[-1]
        self._return[env[last]] -= self.returns[last]
        self._length[env[last]] -= self.lengths[last]
        self.returns[follows], self.lengths[follows] = (
            self.returns[follows] - self.returns[follows - 1],
            self.lengths[follows] - self.lengths[follows - 1],
        )

    def state(self) -> dict[str, np.ndarray]:
        """Returns and lengths of the unfinished episodes."""
        return {"return": self._return, "length": self._length}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore a `state`."""
        self._return, self._length = state["return"], state["length"]
