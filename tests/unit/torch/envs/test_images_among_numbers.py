"""Groups with images as rows of numbers: their columns, their layout, and what a spec says of them."""

import numpy as np
import torch
from gymnasium import spaces

from lockstep.envs.spaces import flatten_observation
from lockstep.envs.spec import ImagePart
from lockstep.torch.envs.spaces import image_shape, joined, observation_fields

JOINTS = spaces.Box(-1, 1, (3,), np.float32)
DEPTH = spaces.Box(-np.inf, np.inf, (1, 4, 5), np.float32)
SCREEN = spaces.Box(0, 255, (4, 5, 3), np.uint8)
GROUPS = {"actor": JOINTS, "depth": DEPTH, "screen": SCREEN, "height": JOINTS}


def test_a_spec_says_where_images_are_and_what_is_left_out():
    policy, critic = ({name: GROUPS[name] for name in names} for names in (("actor", "depth", "screen"), ("screen",)))
    assert observation_fields(GROUPS, policy, critic, None) == {
        "observation_size": 3 + 20 + 60,
        "image": None,
        "image_parts": (ImagePart(3, (1, 4, 5)), ImagePart(23, (3, 4, 5))),
        "critic_size": 60,
        "critic_image_parts": (ImagePart(0, (3, 4, 5)),),
        "unused_groups": ("height",),
    }


def test_an_image_alone_is_no_part():
    only = {"screen": SCREEN}
    found = observation_fields(GROUPS, only, {}, image_shape(SCREEN))
    assert (found["image"], found["image_parts"], found["critic_size"]) == ((3, 4, 5), (), None)


def test_rows_are_those_of_the_environments_on_the_host():
    space = spaces.Dict({name: GROUPS[name] for name in ("actor", "screen")})
    space.seed(1)
    samples = [space.sample() for _ in range(4)]
    batch = {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in space}
    rows = joined(dict(space.spaces.items()), batch)
    np.testing.assert_array_equal(rows, [flatten_observation(space)(sample) for sample in samples])


def test_images_of_floats_keep_their_numbers():
    depth = torch.rand(2, 1, 4, 5) * 7
    assert torch.equal(joined({"depth": DEPTH}, {"depth": depth}), depth.flatten(1))
