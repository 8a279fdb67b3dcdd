"""`lockstep/PixelPong-v0` in numpy: rules by hand. Its twins: tests/parity/test_jax_pixel_pong_parity.py."""

import numpy as np
import pytest

from lockstep.envs.make import make_vector_env
from lockstep.envs.pixel_pong import PixelPong
from lockstep.envs.pixel_pong_dynamics import COURT, SEEDS, PongState, advance, first_state
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig

STAY, UP, DOWN = 0, 1, 2
MIDDLE = (COURT - 160) // 2
CENTRE = (COURT - 32) // 2


def after(action=STAY, **changes):
    """The state after a step, and its reward, from a ball that flies nowhere in the middle."""
    zero = np.zeros(1, np.int32)
    resting = PongState(
        zero + CENTRE, zero + CENTRE, zero, zero, zero + MIDDLE, zero + MIDDLE, zero, zero, zero + 5
    )  # fmt: skip
    given = {name: zero + value for name, value in changes.items()}
    state, reward = advance(np, resting._replace(**given), zero + action)
    assert {field.dtype for field in state} == {np.dtype(np.int32)}
    return PongState(*(int(field[0]) for field in state)), int(reward[0])


def test_the_paddle_stays_moves_up_moves_down_and_stops_at_the_walls():
    moved = {action: after(action)[0].player for action in (STAY, UP, DOWN)}
    assert moved == {STAY: MIDDLE, UP: MIDDLE - 32, DOWN: MIDDLE + 32}
    assert after(UP, player=10)[0].player == 0
    assert after(DOWN, player=COURT - 170)[0].player == COURT - 160


def test_the_opponent_follows_the_ball_at_a_sixth_of_the_speed():
    assert after(y=0)[0].opponent == MIDDLE - 5
    assert after(y=COURT - 32)[0].opponent == MIDDLE + 5
    assert after(y=CENTRE + 3)[0].opponent == MIDDLE + 3


def test_walls_reflect_the_ball():
    for y, speed, expected in ((10, -30, 20), (COURT - 40, 30, COURT - 32 - 22)):
        state, reward = after(y=y, speed_y=speed)
        assert (state.y, state.speed_y, reward) == (expected, -speed, 0)
    assert after(y=30, speed_y=-30)[0][1:4] == (0, 0, -30)


@pytest.mark.parametrize(("offset", "speed"), [(0, 0), (48, 15), (96, 30), (-48, -15), (-96, -30)])
def test_a_paddle_reflects_the_ball_the_more_steeply_the_farther_from_its_middle(offset, speed):
    front = COURT - 64 - 32
    state, reward = after(x=front - 10, speed_x=32, y=CENTRE + offset)
    assert (state.x, state.speed_x, state.speed_y, reward) == (front - 22, -32, speed, 0)
    state, reward = after(x=64 + 10, speed_x=-32, y=CENTRE + offset, opponent=MIDDLE - 5 * int(np.sign(offset)))
    assert (state.x, state.speed_x, state.speed_y, reward) == (64 + 22, 32, speed, 0)


def test_a_missed_ball_is_a_point_and_the_next_one_is_served():
    front = COURT - 64 - 32
    state, reward = after(x=front - 10, speed_x=32, y=CENTRE + 97)
    assert (state.x, state.speed_x, reward) == (front + 22, 32, 0)
    served, reward = after(x=COURT - 64, speed_x=32, y=600, won=2, lost=1)
    assert (reward, served.won, served.lost) == (-1, 2, 2)
    assert (served.x, served.number) == (CENTRE, (5 + 1) * 75 % 65537 - 1)
    assert after(x=32, speed_x=-32, y=600)[1] == 1


def test_serves_go_everywhere():
    state = first_state(np.arange(SEEDS, dtype=np.int32))
    assert len(np.unique(state.number)) == SEEDS
    for field, values in ((state.y, range(0, 640, 10)), (state.speed_y, range(-18, 19, 6)), (state.speed_x, (-32, 32))):
        found, counts = np.unique(field, return_counts=True)
        np.testing.assert_array_equal(found, values)
        assert counts.min() > 0.98 * SEEDS / len(values)


@pytest.mark.parametrize("size", [21, 42, 84])
def test_pictures_show_ball_and_paddles(size):
    env = PixelPong(1, size=size)
    first = env.reset([3])[0]
    assert first.shape == env.spec.image == (4, size, size)
    assert not first[:3].any(), "frames before the episode's first are black"
    expected = np.zeros((COURT, COURT), np.uint8)
    x, y, _, _, player, opponent, *_ = env._state[:, 0]
    expected[player : player + 160, COURT - 64 : COURT - 32] = 255
    expected[opponent : opponent + 160, 32:64] = 255
    expected[y : y + 32, x : x + 32] = 255
    unit = COURT // size
    np.testing.assert_array_equal(first[3], expected[unit // 2 :: unit, unit // 2 :: unit])
    second = env.step(np.array([UP]))[0][0]
    np.testing.assert_array_equal(second[2], first[3])
    assert (second[3] != first[3]).any()


def played(policy):
    """The mean return over 500 steps or 5 points."""
    draw = np.random.default_rng(0)
    state = first_state(draw.integers(0, SEEDS, 500, np.int32))
    total, goes_on = np.zeros(500), np.ones(500, bool)
    for _ in range(500):
        state, reward = advance(np, state, policy(state, draw).astype(np.int32))
        total += reward * goes_on
        goes_on &= (state.won < 5) & (state.lost < 5)
    return total.mean()


def beside_the_middle(state, _):
    """Meet the ball a little beside the middle of the paddle, so that it flies back steeply."""
    ahead = state.y - 64 + 32 - state.player
    return np.where(ahead < -16, UP, np.where(ahead > 16, DOWN, STAY))


def test_random_actions_lose_and_who_follows_the_ball_to_return_it_steeply_wins():
    assert -2 < played(lambda state, draw: draw.integers(0, 3, 500)) < -1
    assert played(beside_the_middle) > PixelPong(1).spec.reward_threshold


def test_an_episode_ends_with_the_last_point():
    env = PixelPong(1, size=21, points=2)
    env.reset([0])
    rewards, terminated = [], False
    while not terminated:
        _, (reward,), (terminated,), (truncated,), _ = env.step(np.array([UP]))
        assert not truncated
        rewards.append(reward)
    assert rewards[-1] != 0
    assert max(rewards.count(1), rewards.count(-1)) == 2
    assert PongState(*env._state[:, 0])[6:8] == (0, 0)


def test_it_can_be_drawn():
    env = make_vector_env("lockstep/PixelPong-v0", EnvConfig(kwargs={"size": 21}), 2, render=True)
    env.reset([0])
    pictures = env.render()
    assert [picture.shape for picture in pictures] == [(252, 252, 3)] * 2
    assert {picture.dtype for picture in pictures} == {np.dtype(np.uint8)}
    assert np.mean(pictures[0] > 0) == pytest.approx((32 * 32 + 2 * 32 * 160) / COURT**2, rel=0.03)


@pytest.mark.parametrize("kwargs", [{"size": 20}, {"points": 0}])
def test_arguments_that_are_too_small_are_refused(kwargs):
    (name, value) = next(iter(kwargs.items()))
    with pytest.raises(ConfigError, match=f"env.kwargs {name}={value} must be at least"):
        make_vector_env("lockstep/PixelPong-v0", EnvConfig(kwargs=kwargs), 2)
