"""Observations of the policy and of the critic as rows of one array, so that collectors keep and move a single one.

Vectors stand side by side, float32 [..., O + C]. Beside an image, a row is bytes, [..., O + 4 C]: those of the image,
then those of the critic's float32 numbers.

Shapes: O and C numbers of the policy's and of the critic's observation; leading dimensions are free.
"""

import numpy as np

from lockstep.envs.spec import EnvSpec

_BYTES = np.dtype(np.float32).itemsize


def joined_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Shape of a row; the observation's own if the critic has none of its own."""
    if spec.critic_size is None:
        return spec.observation_shape
    return (spec.observation_size + (1 if spec.image is None else _BYTES) * spec.critic_size,)


def join_groups(policy: np.ndarray, critic: np.ndarray) -> np.ndarray:
    """Rows of the policy's observations, vectors or uint8 images, and the critic's own."""
    if policy.dtype == np.uint8:
        policy = policy.reshape(*critic.shape[:-1], -1)
        critic = np.ascontiguousarray(critic, np.float32).view(np.uint8)
    return np.concatenate([policy, critic], -1)


def split_groups(rows: np.ndarray, spec: EnvSpec) -> tuple[np.ndarray, np.ndarray | None]:
    """The policy's observations and the critic's own, if it has any, of rows in numpy or JAX."""
    if spec.critic_size is None:
        return rows, None
    policy, critic = rows[..., : spec.observation_size], rows[..., spec.observation_size :]
    if spec.image is not None:
        policy = policy.reshape(*policy.shape[:-1], *spec.image)
        critic = critic.copy().view(np.float32)  # numbers of 4 bytes begin anywhere in a row
    return policy, critic


def numbers_of(rows: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The part of rows that can hold non-finite numbers: all, or, beside a uint8 image, the critic's numbers."""
    _, critic = split_groups(rows, spec)
    return rows if critic is None or spec.image is None else critic
