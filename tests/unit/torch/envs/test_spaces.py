"""Observation and action spaces as flat tensors."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.envs.spaces import action_spec as numpy_action_spec
from lockstep.envs.spaces import flatten_observation
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.torch.envs.spaces import (
    action_spec,
    channels_first,
    env_action,
    flat_size,
    flatten,
    float_image_range,
    groups_of,
    image_bytes,
    image_shape,
)

BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (BOX, [[1.0, 2.0]], [[1, 2]]),
        (spaces.Box(np.float32(-1), np.float32(1), ()), [0.5], [[0.5]]),
        (spaces.Box(-1, 1, (2, 2)), [[[1.0, 2.0], [3.0, 4.0]]], [[1, 2, 3, 4]]),
        (spaces.Discrete(3), [[2]], [[0, 0, 1]]),
        (spaces.Discrete(3), [1], [[0, 1, 0]]),
        (spaces.MultiDiscrete([2, 3]), [[1, 0]], [[0, 1, 1, 0, 0]]),
        (spaces.Discrete(3, start=-1), [-1], [[1, 0, 0]]),
        (spaces.Discrete(3, start=1), [3], [[0, 0, 1]]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), [[6, -1]], [[0, 1, 1, 0, 0]]),
        (spaces.MultiDiscrete([[2], [3]], start=[[5], [-1]]), [[[6], [-1]]], [[0, 1, 1, 0, 0]]),
    ],
)
def test_a_space_is_flattened(space, value, expected):
    flat = flatten(space, torch.tensor(value))
    assert flat.dtype == torch.float32
    assert flat.tolist() == expected
    assert flat_size(space) == len(expected[0])
    assert flatten_observation(space)(np.array(value[0])).tolist() == expected[0], "as on the host"


def test_parts_follow_each_other_in_the_order_of_the_space():
    one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[0]])
    pair = spaces.Tuple([BOX, spaces.Discrete(2)])
    assert flatten(pair, (one, two)).tolist() == [[1, 2, 1, 0]]
    named = spaces.Dict({"b": BOX, "a": spaces.Discrete(2)})
    order = [key for key in named.spaces]
    expected = {"b": [1, 2], "a": [1, 0]}
    assert flatten(named, {"b": one, "a": two}).tolist() == [expected[order[0]] + expected[order[1]]]
    assert flat_size(pair) == flat_size(named) == 4


def test_actions_of_each_kind():
    box = spaces.Box(np.float32(-2), np.float32(2), (3,))
    assert action_spec(box) == ActionSpec("continuous", (3,), (-2.0,) * 3, (2.0,) * 3)
    assert action_spec(spaces.Discrete(3)) == ActionSpec("discrete", (3,))
    assert action_spec(spaces.MultiDiscrete([3, 2])) == ActionSpec("multi_discrete", (3, 2))
    with pytest.raises(ConfigError, match="an action is a Dict"):
        action_spec(spaces.Dict({"a": BOX}))


@pytest.mark.parametrize(
    "space",
    [
        *(spaces.Discrete(3), spaces.Discrete(3, start=-1), spaces.MultiDiscrete([3, 2], start=[1, 0])),
        *(spaces.MultiDiscrete([[3, 2], [2, 4]]), spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2, 3))),
        spaces.Box(np.float32(-1), np.float32(1), ()),
    ],
    ids=str,
)
def test_actions_reach_the_environment_as_it_takes_them(space):
    spec = action_spec(space)
    assert spec == numpy_action_spec(space, "any")
    choices = torch.tensor([[0] * len(spec.sizes), [size - 1 for size in spec.sizes]])
    policy = {"discrete": choices[:, 0], "multi_discrete": choices, "continuous": torch.ones(2, spec.width)}[spec.kind]
    for action in env_action(spec, policy):
        assert space.contains(action.numpy().astype(space.dtype))


def test_bytes_of_three_dimensions_are_an_image():
    assert image_shape(spaces.Box(0, 255, (3, 8, 9), np.uint8)) == (3, 8, 9)
    last = spaces.Box(0, 255, (8, 9, 3), np.uint8)
    assert image_shape(last) == (3, 8, 9), "channels in the last place, as of Isaac Lab's showcase"
    images = torch.arange(2 * 8 * 9 * 3).view(2, 8, 9, 3)
    assert torch.equal(channels_first(last, images)[1, 2], images[1, :, :, 2])
    assert channels_first(spaces.Box(0, 255, (3, 8, 9), np.uint8), images) is images
    assert image_shape(spaces.Box(0, 1, (3, 8, 9))) is None
    assert image_shape(BOX) is None


def test_an_image_of_floats_becomes_bytes_within_its_range():
    unbounded, bounded = spaces.Box(-np.inf, np.inf, (3, 8, 9)), spaces.Box(0, 2, (3, 8, 9))
    assert float_image_range({"policy": bounded}, None) == (0.0, 2.0)
    assert float_image_range({"policy": unbounded}, [-1, 1]) == (-1, 1)
    assert image_bytes(torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0]), -1, 1).tolist() == [0, 0, 128, 255, 255]
    for others in ({"policy": BOX}, {"policy": bounded, "more": BOX}):
        assert float_image_range(others, None) is None
        with pytest.raises(ConfigError, match=r"image_range=\[0, 1\] is for one image of floats"):
            float_image_range(others, [0, 1])
    with pytest.raises(ConfigError, match=r"images of floats \[3, 8, 9\].*--set env.kwargs.image_range=\[-1,1\]"):
        float_image_range({"policy": unbounded}, None)
    with pytest.raises(ConfigError, match=r"image_range=\[1, 1\]"):
        float_image_range({"policy": unbounded}, [1, 1])


def test_other_spaces_are_refused():
    with pytest.raises(ConfigError, match="Text"):
        flat_size(spaces.Text(3))
    with pytest.raises(ConfigError, match="Dict of groups"):
        groups_of(BOX)
