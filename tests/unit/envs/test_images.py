"""Images: what counts as one, how it is described, and that its bytes reach a rollout as they are."""

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.distributed.timers import Timers
from lockstep.envs.spaces import flatten_observation, image_shape
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import Collector
from lockstep.world import World


def pixels(*shape, dtype=np.uint8):
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (pixels(4, 84, 84), (4, 84, 84)),
        (pixels(96, 64, 3), (3, 96, 64)),
        (pixels(5, 5, 5), (5, 5, 5)),
        (pixels(84, 84), None),
        (pixels(3, 84, 84, dtype=np.float32), None),
        (spaces.Discrete(3), None),
    ],
)
def test_an_image_is_bytes_in_three_dimensions_channels_first(space, image):
    assert image_shape(space) == image


def test_channels_come_first_and_bytes_stay_bytes():
    space = pixels(6, 5, 3)
    seen = space.sample()
    flat = flatten_observation(space)(seen)
    assert flat.dtype == np.uint8 and flat.shape == (3, 6, 5)
    assert all((flat[c] == seen[:, :, c]).all() for c in range(3))
    seen[:] = 0  # an environment may use its array again
    assert flat.any()


def test_a_description_survives_json_and_refuses_what_does_not_fit():
    action = ActionSpec("discrete", (3,))
    spec = EnvSpec(4 * 6 * 5, action, "next_step", True, image=(4, 6, 5), frames=4)
    assert EnvSpec.from_dict(spec.to_dict()) == spec
    assert (spec.observation_shape, spec.observation_dtype) == ((4, 6, 5), np.uint8)
    assert EnvSpec(7, action, "next_step", True).observation_shape == (7,)
    for image, frames in (((4, 6, 6), 4), ((4, 6, 5), 3)):
        with pytest.raises(ConfigError, match="observation_size=120"):
            EnvSpec(120, action, "next_step", True, image=image, frames=frames)


class Film:
    """Shows the environment and the step as bytes; an episode ends after 3 steps."""

    def __init__(self, num_envs, first):
        self.spec = EnvSpec(2, ActionSpec("discrete", (5,)), "same_step", True, image=(1, 1, 2))
        self.num_envs, self.first, self.step_in_episode = num_envs, first, 0

    def observe(self):
        rows = [[self.first + i, self.step_in_episode] for i in range(self.num_envs)]
        return np.array(rows, np.uint8).reshape(self.num_envs, 1, 1, 2)

    def reset(self, seeds):
        return self.observe()

    def step(self, action):
        self.step_in_episode += 1
        final, truncated = self.observe(), np.full(self.num_envs, self.step_in_episode == 3)
        self.step_in_episode %= 3
        return self.observe(), np.zeros(self.num_envs), np.zeros(self.num_envs, bool), truncated, final

    def close(self):
        pass


class Uniform:
    """Actions that tell the noise they were drawn with."""

    def draw_noise(self, generator, shape):
        return generator.random((*shape, 1))

    def sample(self, parameters, noise):
        return (noise[..., 0] * 5).astype(np.int64)

    mode = None


def collected(num_shards, envs):
    world = World(num_shards=num_shards, pinned=True)
    made = [Film(envs, shard * envs) for shard in range(num_shards)]
    return Collector(
        world, made, lambda o: o[..., 0], Uniform(), num_steps=4, seed=3, timers=Timers(), noise_per_env=True
    )


def test_a_rollout_keeps_bytes_and_the_true_last_image():
    (rollout,) = collected(1, 2).collect()
    assert rollout.observation.dtype == np.uint8 and rollout.observation.shape == (5, 2, 1, 1, 2)
    ((t, rows, last),) = rollout.final
    assert (t, list(rows), last.dtype) == (2, [0, 1], np.uint8)
    assert last[:, 0, 0].tolist() == [[0, 3], [1, 3]]


def test_an_environment_draws_from_its_own_stream_however_shards_are_cut():
    whole, cut = collected(1, 4), collected(4, 1)
    for _ in range(2):
        (one,), parts = whole.collect(), cut.collect()
        assert (one.action == np.concatenate([part.action for part in parts], 1)).all()
    assert len({tuple(column) for column in one.action.T.tolist()}) > 1


def test_the_streams_of_environments_go_on_from_a_checkpoint():
    first, second = collected(2, 2), collected(2, 2)
    first.collect()
    for k in range(2):
        saved = first.shard_state(k)
        second.restore_shard(k, saved, 8)
    assert [r.action.tolist() for r in second.collect()] == [r.action.tolist() for r in first.collect()]
