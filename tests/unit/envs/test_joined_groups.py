"""Rows of one array that hold the observations of the policy and of the critic."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.envs.joined_groups import join_groups, joined_shape, numbers_of, split_groups
from lockstep.envs.spec import ActionSpec, EnvSpec

VECTOR = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", separately_seedable=True, critic_size=2)
# 5 bytes: the critic's numbers begin where no number of 4 bytes may begin in an array.
PICTURE = replace(VECTOR, observation_size=5, image=(1, 1, 5))
SPECS = {"vector": VECTOR, "picture": PICTURE}


def groups(spec, *leading):
    random = np.random.default_rng(0)
    seen = random.integers(0, 256, (*leading, *spec.observation_shape)).astype(spec.observation_dtype)
    return seen, random.normal(size=(*leading, 2)).astype(np.float32)


@pytest.mark.parametrize("leading", [(1,), (4,), (3, 4)])
@pytest.mark.parametrize("name", SPECS)
def test_groups_come_back(name, leading):
    spec = SPECS[name]
    policy, critic = groups(spec, *leading)
    rows = join_groups(policy, critic)
    assert (rows.shape, rows.dtype) == ((*leading, *joined_shape(spec)), spec.observation_dtype)
    seen, own = split_groups(rows, spec)
    np.testing.assert_array_equal(seen, policy)
    np.testing.assert_array_equal(own, critic)
    assert (seen.dtype, own.dtype) == (policy.dtype, np.float32)


def test_without_a_group_of_its_own_rows_are_the_observation():
    for spec in SPECS.values():
        alone = replace(spec, critic_size=None)
        policy, _ = groups(spec, 4)
        assert joined_shape(alone) == spec.observation_shape
        seen, own = split_groups(policy, alone)
        assert seen is policy and own is None
        assert numbers_of(policy, alone) is policy


def test_numbers_beside_an_image_are_those_of_the_critic():
    policy, critic = groups(PICTURE, 4)
    np.testing.assert_array_equal(numbers_of(join_groups(policy, critic), PICTURE), critic)
    rows = join_groups(*groups(VECTOR, 4))
    assert numbers_of(rows, VECTOR) is rows
