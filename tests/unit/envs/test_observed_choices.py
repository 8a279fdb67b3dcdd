"""Choices in observations become one-hot numbers, of whatever type they are; one outside its space is refused."""

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.envs.spaces import flatten_observation

CHOICES = spaces.MultiDiscrete([3, 2], start=[1, 0])
ALL = spaces.Dict({"both": CHOICES, "one": spaces.Tuple([spaces.Discrete(2, start=5), spaces.MultiBinary(2)])})


@pytest.mark.parametrize("kind", ["list", "numpy", "torch"])
def test_choices_may_be_of_any_kind(kind):
    make = np.asarray if kind == "numpy" else list
    if kind == "torch":
        make = pytest.importorskip("torch").tensor
    assert flatten_observation(CHOICES)(make([1, 1])).tolist() == [1, 0, 0, 0, 1]
    number = 6 if kind == "list" else make([6])[0]
    seen = flatten_observation(ALL)({"both": make([3, 0]), "one": (number, make([1, 0]))})
    assert (seen.dtype, seen.tolist()) == (np.float32, [0, 0, 1, 1, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Discrete(5, start=2), 1),
        (spaces.Discrete(5, start=2), 7),
        (CHOICES, [0, 0]),
        (CHOICES, [1, -1]),
        (CHOICES, [4, 0]),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,))}), {"a": 2, "b": [0.5]}),
    ],
)
def test_a_choice_outside_its_space_is_refused(space, observation):
    """One-hot, gymnasium would make it another choice, or one of the component beside it."""
    with pytest.raises(ValueError, match=r"^the observation .* is outside (Multi)?Discrete\("):
        flatten_observation(space)(observation)
