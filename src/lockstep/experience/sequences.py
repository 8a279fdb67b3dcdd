"""Sequences of consecutive steps, the unit of which recurrent policies make minibatches.

A rollout [T, B] has B T / L sequences of L steps. Number s is of environment s % B and begins at step s // B * L.
"""

from typing import Any

import numpy as np

from lockstep.algorithms.ppo import PPOConfig


def rows_of_sequences(order: Any, *, length: int, num_envs: int, num_minibatches: int) -> Any:
    """The rows of a flattened rollout [T * B] in which sequences follow one another, minibatch by minibatch.

    Args:
        order: [..., sequences], numbers of all sequences; numpy or JAX.
        length: L; 1 for a policy without recurrent layers, and then the rows are the `order`.
        num_envs: B.
        num_minibatches: parts of `order`.

    Returns:
        [..., T * B]; the rows of each minibatch are time-major.
    """
    if length == 1:
        return order
    first = order // num_envs * (length * num_envs) + order % num_envs
    first = first.reshape(*order.shape[:-1], num_minibatches, 1, -1)
    steps = np.arange(length, dtype=order.dtype).reshape(*[1] * (first.ndim - 2), length, 1)
    rows = first + steps * num_envs
    return rows.reshape(*order.shape[:-1], -1)


def draw_order(generator: np.random.Generator, config: PPOConfig, sequence_length: int, rows: int) -> np.ndarray:
    """The order of a shard's rows in each epoch of an update [E, rows], including epochs that an early stop skips.

    Args:
        generator: of the shard.
        config: with E epochs.
        sequence_length: L; 1 for a policy without recurrent layers.
        rows: of the shard's rollout.
    """
    order = np.stack([generator.permutation(rows // sequence_length) for _ in range(config.num_epochs)])
    return rows_of_sequences(
        order, length=sequence_length, num_envs=rows // config.num_steps, num_minibatches=config.num_minibatches
    )
