"""Images among the numbers of a Dict or Tuple observation: where they are in the flat row, and what the spec says."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.config.env import EnvConfig
from lockstep.envs.make import make_vector_env
from lockstep.envs.spaces import flatten_observation, image_parts, image_shape
from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart, number_columns
from lockstep.envs.stacking import stacked_spec
from lockstep.errors import ConfigError
from lockstep.session.env_checks.values import describe_network_input

REACH = "tests/ranks/grouped_envs.py:Reach"
VECTOR = spaces.Box(-1, 1, (2,), np.float32)
CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)
ROBOT = spaces.Dict(
    {"arm": VECTOR, "hand": spaces.Dict({"camera": CAMERA, "grip": spaces.Discrete(2)}), "screen": CAMERA}
)


def test_images_are_found_with_their_columns():
    assert image_parts(ROBOT) == (ImagePart(2, (3, 4, 5)), ImagePart(64, (3, 4, 5)))
    assert image_parts(spaces.Tuple([CAMERA, VECTOR])) == (ImagePart(0, (3, 4, 5)),)
    assert image_parts(CAMERA) == image_parts(VECTOR) == image_parts(spaces.Dict({"arm": VECTOR})) == ()
    assert image_shape(CAMERA) == (3, 4, 5), "an image alone is no part"


def test_the_flat_row_has_each_image_channels_first_between_0_and_1():
    ROBOT.seed(3)
    observation = ROBOT.sample()
    row = flatten_observation(ROBOT)(observation)
    assert (row.dtype, row.shape) == (np.float32, (124,))
    hand, screen = (row[part.columns].reshape(part.shape) for part in image_parts(ROBOT))
    np.testing.assert_allclose(hand, np.moveaxis(observation["hand"]["camera"], -1, 0) / 255, rtol=1e-6)
    np.testing.assert_allclose(screen, np.moveaxis(observation["screen"], -1, 0) / 255, rtol=1e-6)
    np.testing.assert_array_equal(row[:2], observation["arm"])
    np.testing.assert_array_equal(row[62:64], np.eye(2)[observation["hand"]["grip"]])


def test_columns_of_no_image():
    parts = (ImagePart(2, (1, 2, 2)), ImagePart(6, (1, 2, 2)))
    assert number_columns(parts, 12) == [slice(0, 2), slice(10, 12)]
    assert number_columns(parts, 10) == [slice(0, 2)]
    assert number_columns((), 3) == [slice(0, 3)]


def spec_with(*parts, **more):
    return EnvSpec(12, ActionSpec("discrete", (2,)), "same_step", True, image_parts=parts, **more)


def test_a_spec_is_written_and_read():
    spec = spec_with(ImagePart(2, (1, 2, 2)), critic_size=4, critic_image_parts=(ImagePart(0, (1, 2, 2)),))
    spec = replace(spec, unused_groups=("camera",))
    assert EnvSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.has_images and not spec_with().has_images
    plain = spec_with().to_dict()
    assert not {"image_parts", "critic_image_parts", "unused_groups"} & set(plain), "earlier versions read it"


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        ((ImagePart(9, (1, 2, 2)),), {}),
        ((ImagePart(4, (1, 2, 2)), ImagePart(6, (1, 2, 2))), {}),
        ((ImagePart(4, (1, 2, 2)), ImagePart(0, (1, 2, 2))), {}),
        ((), {"critic_image_parts": (ImagePart(0, (1, 2, 2)),)}),
        ((ImagePart(0, (1, 2, 2)),), {"image": (3, 2, 2)}),
    ],
)
def test_images_that_do_not_fit_are_refused(parts, more):
    with pytest.raises(ConfigError, match=r"image_parts: an image of \[1, 2, 2\] at"):
        spec_with(*parts, **more)


def environments(**config):
    return make_vector_env(REACH, EnvConfig(**config), 2)


def test_environments_of_gymnasium_say_where_their_images_are():
    camera = ImagePart(0, (3, 12, 12))
    env = environments()
    assert (env.spec.observation_size, env.spec.image_parts, env.spec.image) == (435, (camera,), None)
    first = env.reset([1, 2])
    assert first.dtype == np.float32 and first.shape == (2, 435)
    assert first[:, camera.columns].max() == np.float32(250) * np.float32(1 / 255)
    env.close()


def test_groups_of_policy_and_critic_have_their_own_images():
    env = environments(policy_keys=("joint", "camera"), critic_keys=("target", "joint", "camera"))
    spec = env.spec
    assert (spec.observation_size, spec.critic_size, spec.unused_groups) == (434, 435, ())
    assert spec.image_parts == (ImagePart(2, (3, 12, 12)),)
    assert spec.critic_image_parts == (ImagePart(3, (3, 12, 12)),)
    seen = env.reset([1, 2])
    of_critic, _ = env.critic_observation()
    np.testing.assert_array_equal(seen[:, 2:], of_critic[:, 3:])
    np.testing.assert_array_equal(seen[:, :2], of_critic[:, 1:3])
    env.close()


def test_an_image_alone_stays_bytes_beside_a_critic_with_images():
    env = environments(policy_keys=("camera",), critic_keys=("camera", "joint"))
    spec = env.spec
    assert (spec.image, spec.image_parts, spec.unused_groups) == ((3, 12, 12), (), ("target",))
    assert spec.critic_image_parts == (ImagePart(0, (3, 12, 12)),)
    seen, (of_critic, _) = env.reset([1, 2]), env.critic_observation()
    assert seen.dtype == np.uint8
    np.testing.assert_allclose(of_critic[:, :432].reshape(seen.shape), seen / 255, rtol=1e-6)
    env.close()


def test_they_are_not_stacked():
    with pytest.raises(ConfigError, match=r"env.frame_stack=3 is for vectors"):
        stacked_spec(spec_with(ImagePart(0, (1, 2, 2))), 3, "mine")


def test_reports_describe_both():
    assert describe_network_input(12, None, [ImagePart(0, (1, 2, 3))]) == (
        "an image of 1 channel, 2 x 3 and a vector of 6"
    )


def test_a_dict_without_images_is_flattened_as_gymnasium_does():
    space = spaces.Dict({"b": VECTOR, "a": spaces.MultiDiscrete([2, 3]), "c": spaces.Tuple([spaces.Discrete(3)])})
    sample = space.sample()
    np.testing.assert_array_equal(flatten_observation(space)(sample), gymnasium.spaces.flatten(space, sample))
