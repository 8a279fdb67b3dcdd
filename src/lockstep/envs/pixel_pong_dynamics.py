"""The rules and pictures of `lockstep/PixelPong-v0`, for numpy, torch and JAX arrays.

All numbers are integers that fit in int32, so states, rewards and pictures are equal to the bit in all three. The court
is a square of `COURT` units whatever the size of the pictures; an object covers a pixel if it covers its centre.

All functions take int32 arrays of any shape, elementwise.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError

FRAMES = 4
"""Of an observation."""
COURT = 672
"""Units from wall to wall; a pixel of a picture of 84 by 84 has 8."""
_BALL, _THICKNESS, _PADDLE = 32, 32, 160
_OPPONENT_X, _PLAYER_X = 32, COURT - 64
_BALL_SPEED, _PLAYER_SPEED, _OPPONENT_SPEED = 32, 32, 5
"""Units per step: of the ball across the court, and of the paddles along it."""
_STEEPEST = 30
"""Speed of the ball along the court after the edge of a paddle hit it."""
_REACH = (_PADDLE + _BALL) // 2
"""Largest distance between the centres of a paddle and of a ball that it hits."""
_MODULUS, _FACTOR = 65537, 75
SEEDS = _MODULUS - 1
"""The actions of an episode and a number below this one determine it."""
NOWHERE = -COURT
"""A position outside of the picture: frames before an episode's first are black."""


class PongState(NamedTuple):
    """int32 arrays of one shape. Positions are of upper left corners; x grows to the right, y downwards."""

    x: Any
    """Of the ball."""
    y: Any
    speed_x: Any
    speed_y: Any
    player: Any
    """y of the paddle on the right, which the policy moves."""
    opponent: Any
    """y of the paddle on the left."""
    won: Any
    """Points of the player."""
    lost: Any
    """Points of the opponent."""
    number: Any
    """Below `SEEDS`; determines the next serve."""


def first_state(number: Any) -> PongState:
    """The first state of an episode, from int32 numbers drawn uniformly below `SEEDS`."""
    zero = 0 * number
    middle = zero + (COURT - _PADDLE) // 2
    return _served(PongState(zero, zero, zero, zero, middle, middle, zero, zero, number))


def advance(xp: Any, state: PongState, action: Any) -> tuple[PongState, Any]:
    """One step.

    Args:
        xp: numpy, `torch` or `jax.numpy`.
        state: before the step.
        action: int32: 0 stays, 1 moves up, 2 moves down.

    Returns:
        The state after the step, with the next ball served where a point was made; 1 where the player made a point, -1
        where the opponent did, else 0.
    """
    lowest = COURT - _PADDLE
    player = xp.clip(state.player + _PLAYER_SPEED * (1 - (action + 1) % 3), 0, lowest)
    chased = state.y + (_BALL - _PADDLE) // 2 - state.opponent
    opponent = xp.clip(state.opponent + xp.clip(chased, -_OPPONENT_SPEED, _OPPONENT_SPEED), 0, lowest)

    floor = COURT - _BALL
    unbounded = state.y + state.speed_y
    y = floor - xp.abs(floor - xp.abs(unbounded))  # reflected by the walls
    speed_y = xp.where(y == unbounded, state.speed_y, -state.speed_y)

    # A paddle reflects a ball that crosses its front, the more steeply the farther from its middle.
    x = state.x + state.speed_x
    right, left = _PLAYER_X - _BALL, _OPPONENT_X + _THICKNESS
    from_player, from_opponent = (y + (_BALL - _PADDLE) // 2 - paddle for paddle in (player, opponent))
    by_player = (state.x <= right) & (x > right) & (xp.abs(from_player) <= _REACH)
    by_opponent = (state.x >= left) & (x < left) & (xp.abs(from_opponent) <= _REACH)
    hit = by_player | by_opponent
    x = xp.where(by_player, 2 * right - x, xp.where(by_opponent, 2 * left - x, x))
    speed_x = xp.where(hit, -state.speed_x, state.speed_x)
    speed_y = xp.where(hit, xp.where(by_player, from_player, from_opponent) * _STEEPEST // _REACH, speed_y)

    won, lost = x <= 0, x >= floor
    moved = PongState(
        x, y, speed_x, speed_y, player, opponent, state.won + won, state.lost + lost, state.number
    )  # fmt: skip
    after = (xp.where(won | lost, new, old) for new, old in zip(_served(moved), moved, strict=True))
    return PongState(*after), 1 * won - 1 * lost


def _served(state: PongState) -> PongState:
    """The ball in the middle; its height and direction follow from the state's number."""
    drawn = (state.number + 1) * _FACTOR % _MODULUS - 1  # Lehmer's generator, of full period
    height, slope, side = drawn % 64, drawn // 64 % 7, drawn // 448 % 2
    return state._replace(
        x=0 * drawn + (COURT - _BALL) // 2,
        y=10 * height,
        speed_x=_BALL_SPEED * (2 * side - 1),
        speed_y=6 * (slope - 3),
        number=drawn,
    )


def shown(state: PongState) -> tuple[Any, Any, Any, Any]:
    """What a frame is drawn from: x and y of the ball, y of the player and of the opponent."""
    return state.x, state.y, state.player, state.opponent


def pixel_centres(size: int) -> np.ndarray:
    """Where the pixels of a row or column of a picture have their centres, int32 [size], in `1 / (2 size)` units."""
    return COURT * (2 * np.arange(size, dtype=np.int32) + 1)


def picture(white: Any, centres: Any, positions: Iterable[Any]) -> Any:
    """Pictures, uint8 [..., size, size].

    Args:
        white: uint8 255, an array without dimensions.
        centres: `pixel_centres(size)`, an array of the same library.
        positions: what is `shown`, each [...].
    """
    x, y, player, opponent = positions
    scale = 2 * len(centres)
    centres = centres.reshape((1,) * x.ndim + (len(centres),))

    def covered(begin: Any, length: int) -> Any:  # bytes, which torch combines ten times as fast as flags on a CPU
        return white * ((scale * begin <= centres) & (centres < scale * (begin + length)))

    def block(columns: Any, rows: Any) -> Any:
        return columns[..., None, :] & rows[..., :, None]

    ball = block(covered(x[..., None], _BALL), covered(y[..., None], _BALL))
    right = block(covered(_PLAYER_X, _THICKNESS), covered(player[..., None], _PADDLE))
    left = block(covered(_OPPONENT_X, _THICKNESS), covered(opponent[..., None], _PADDLE))
    return ball | right | left


def pixel_pong_spec(size: int, points: int, max_episode_steps: int, *, separately_seedable: bool) -> EnvSpec:
    """Sizes and conventions of the task.

    Raises:
        ConfigError: an argument is too small.
    """
    if size < COURT // _BALL:
        raise ConfigError(f"env.kwargs size={size} must be at least {COURT // _BALL}, or the ball would not be seen")
    if points < 1:
        raise ConfigError(f"env.kwargs points={points} must be at least 1")
    if max_episode_steps < 1:
        raise ConfigError(f"max_episode_steps={max_episode_steps} must be at least 1")
    return EnvSpec(
        observation_size=FRAMES * size * size,
        action=ActionSpec("discrete", (3,)),
        autoreset="same_step",
        separately_seedable=separately_seedable,
        reward_threshold=0.6 * points,  # ours
        max_episode_steps=max_episode_steps,
        image=(FRAMES, size, size),
        frames=FRAMES,
    )
