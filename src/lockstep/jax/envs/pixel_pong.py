"""`lockstep/PixelPong-v0` in JAX."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.pixel_pong_dynamics import (
    FRAMES,
    NOWHERE,
    SEEDS,
    PongState,
    advance,
    first_state,
    picture,
    pixel_centres,
    pixel_pong_spec,
    shown,
)


class PongEpisode(NamedTuple):
    """The state, what the frames are drawn from, and steps of the episode."""

    state: PongState
    seen: Array
    """int32 [4, FRAMES], see `shown`."""
    steps: Array


class PixelPong:
    """Play a ball past an opponent, from pixels; see `lockstep.envs.pixel_pong.PixelPong`."""

    on_device = True

    def __init__(self, *, size: int = 84, points: int = 5, max_episode_steps: int = 500) -> None:
        """`size` is the width and height of the images, which changes no rule of the game."""
        self.spec = pixel_pong_spec(size, points, max_episode_steps, separately_seedable=True)
        self._points = points
        self._limit = max_episode_steps
        self._centres = pixel_centres(size)

    def reset(self, key: Array) -> PongEpisode:
        """A serve from the middle."""
        state = first_state(jax.random.randint(key, (), 0, SEEDS, jnp.int32))
        seen = jnp.full((4, FRAMES), NOWHERE, jnp.int32).at[:, -1].set(jnp.stack(shown(state)))
        return PongEpisode(state, seen, jnp.zeros((), jnp.int32))

    def observe(self, state: PongEpisode) -> Array:
        """Four pictures, the newest last."""
        return picture(np.uint8(255), self._centres, state.seen)

    def step(self, state: PongEpisode, action: Array, key: Array) -> tuple[PongEpisode, Array, Array, Array, Array]:
        """One step."""
        del key
        moved, reward = advance(jnp, state.state, action)
        seen = jnp.concatenate([state.seen[:, 1:], jnp.stack(shown(moved))[:, None]], 1)
        after = PongEpisode(moved, seen, state.steps + 1)
        terminated = (moved.won >= self._points) | (moved.lost >= self._points)
        return after, self.observe(after), reward.astype(jnp.float32), terminated, after.steps >= self._limit
