"""The settings of the workloads `cartpole_ppo` and `hopper_ppo`, for scripts that write out PPO's loop."""

from typing import NamedTuple


class Settings(NamedTuple):
    """Of PPO for one task."""

    task: str
    envs: int
    steps: int
    epochs: int
    minibatches: int
    learning_rate: float
    entropy: float
    observation: int
    """Numbers of an observation."""
    actions: int
    continuous: bool
    """Continuous actions; observations, and rewards or returns, are normalized."""


WORKLOADS = {
    "cartpole_ppo": Settings("CartPole-v1", 8, 128, 4, 4, 2.5e-4, 0.01, 4, 2, continuous=False),
    "hopper_ppo": Settings("Hopper-v5", 4, 512, 10, 32, 3e-4, 0.0, 11, 3, continuous=True),
}
"""By the name of the workload."""
