"""Epsilon-greedy exploration.

Shapes: A actions.
"""

import math

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError


def epsilon(config: DQNConfig, env_steps: int) -> float:
    """Probability of a random action once all ranks together have taken `env_steps` steps.

    linear:       start + (end - start) min(steps / epsilon_steps, 1)
    exponential:  end + (start - end) exp(-steps / epsilon_steps)
    """
    start, end = config.epsilon_range
    if not config.epsilon_steps:
        return end
    passed = env_steps / config.epsilon_steps
    if config.epsilon_schedule == "exponential":
        return end + (start - end) * math.exp(-passed)
    return start + (end - start) * min(passed, 1.0)


class EpsilonGreedy:
    """The best action, or with probability `epsilon` a uniformly random one.

    Args:
        action: of the task; one choice.
        epsilon: probability of a random action; changed between rollouts.

    Raises:
        ConfigError: an action is more than one choice.
    """

    def __init__(self, action: ActionSpec, epsilon: float = 0.0) -> None:
        if action.kind != "discrete":
            kind = "several choices at once" if action.kind == "multi_discrete" else "real numbers"
            raise ConfigError(
                f"algo=dqn needs a task with one discrete action, and this one takes {kind}; use algo=ppo"
            )
        self.num_actions, self.epsilon = action.sizes[0], epsilon

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """[*shape, 2] numbers in [0, 1): whether to act randomly, and the random action.

        Both are always drawn, so that the stream does not depend on epsilon.
        """
        return generator.random((*shape, 2))

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [...] from Q values [..., A] and noise [..., 2]."""
        random = (noise[..., 1] * self.num_actions).astype(np.int64)
        return np.where(noise[..., 0] < self.epsilon, random, self.mode(parameters))

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """Actions [...] of the largest Q values [..., A]; the first of equal ones."""
        return parameters.argmax(-1)
