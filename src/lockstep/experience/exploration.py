"""Exploration: epsilon-greedy, by learned noise, and by uniformly random actions at the start.

Shapes: K shards of this rank, B environments of a shard, A actions.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.experience.sampling import NoisyDeterministic, SquashedGaussian, center_and_half_range
from lockstep.world import stream


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
            kind, others = "several choices at once", "ppo"
            if action.kind == "continuous":
                kind, others = "real numbers", "ppo, sac or td3"
            raise ConfigError(
                f"algo=dqn needs a task with one discrete action, and this one takes {kind}; use algo={others}"
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


class UniformStart:
    """Uniformly random actions within their bounds while `random` is set; afterwards those of the policy.

    Args:
        action: of the task; every dimension needs finite bounds.
        sampler: of the policy.

    Attributes:
        random: changed between rollouts.
    """

    def __init__(self, action: ActionSpec, sampler: SquashedGaussian | NoisyDeterministic) -> None:
        self._sampler = sampler
        self._width = action.sizes[0]
        self._center, self._half_range = center_and_half_range(action)
        self.random = True

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers in [-1, 1), or the policy's noise; [*shape, D]."""
        if self.random:
            return generator.random((*shape, self._width), dtype=np.float32) * 2 - 1
        return self._sampler.draw_noise(generator, shape)

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [..., D] from the policy's parameters [..., P] and noise [..., D]."""
        if self.random:
            return self._center + self._half_range * noise
        return self._sampler.sample(parameters, noise)

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The policy's most likely actions."""
        return self._sampler.mode(parameters)


class NoisyActor:
    """Computes Q values with learned noise: each environment has its own at each step, whichever rank steps it.

    Args:
        q_values: observations [B, O] and standard normal numbers [B, num_noise] to Q [B, A].
        num_noise: random numbers per environment and step.
        seed: of the run.
        envs: the global indices of the environments of each local shard.
    """

    def __init__(
        self,
        q_values: Callable[[np.ndarray, np.ndarray], np.ndarray],
        num_noise: int,
        seed: int,
        envs: Sequence[range],
    ) -> None:
        self._q_values = q_values
        self._num_noise = num_noise
        self._seed = seed
        self._envs = envs
        self.begin(0)

    def begin(self, update: int) -> None:
        """Start the streams of this update; checkpoints need no state of them."""
        self._streams = [[stream(self._seed, f"noise of env {i}", update) for i in envs] for envs in self._envs]

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[K, B, O] to Q [K, B, A] of K local shards; one forward pass each."""
        return np.stack([self._act(part, streams) for part, streams in zip(observation, self._streams, strict=True)])

    def _act(self, observation: np.ndarray, streams: Sequence[np.random.Generator]) -> np.ndarray:
        noise = np.stack([s.standard_normal(self._num_noise, np.float32) for s in streams])
        return self._q_values(observation, noise)
