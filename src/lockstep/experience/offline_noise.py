"""Random numbers of the gradient steps on logged data: functions of seed, shard and step, without a state to save."""

import numpy as np

from lockstep.world import stream


def draw_noise(
    seed: int, shard: int, step: int, shape: tuple[int, int, int], num_uniform: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The random numbers of one shard in one gradient step.

    Args:
        seed: of the run.
        shard: index of the shard.
        step: rows that the run has learned from before this step, all ranks together.
        shape: rows N, actions of a row J, and dimensions of an action D.
        num_uniform: J'.

    Returns:
        Standard normal numbers [N, J, D], and numbers uniform in [-1, 1), [N, J', D]; float32.
    """
    generator = stream(seed, f"offline noise {step}", shard)
    normal = generator.standard_normal(shape, dtype=np.float32)
    uniform = 2.0 * generator.random((shape[0], num_uniform, shape[2]), dtype=np.float32) - 1.0
    return normal, uniform
