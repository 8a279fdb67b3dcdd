"""What an update makes of running moments that are not finite, and of the error that they end a run with."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from ppo_seams import config
from seam_world import make_rollout
from torch_seams import ppo_learner

from lockstep import World
from lockstep.session.normalizers import NormalizerError


@pytest.mark.parametrize(("name", "words"), [("observations", "number 1 of the observation"), ("returns", "return")])
def test_non_finite_moments_raise_normalizer_error(name, words):
    run = config(num_envs=4, normalize_observation=True, normalize_return=True)
    with ppo_learner(World(), run) as ppo:
        ppo.update([make_rollout(0)], np.zeros((1, 1)))
        held = ppo.normalizers.named()[name]
        held.mean[-2:][0] = np.nan  # as a file that is damaged may have it
        seen = held.count
        with pytest.raises(NormalizerError, match=f"{words} are not finite with the rollout of update 1"):
            ppo.update([make_rollout(0)], np.zeros((1, 1)))
        assert held.count == seen


def test_an_update_whose_moments_are_not_finite_is_skipped_alone():
    run = config(num_envs=4, normalize_observation=True, non_finite="skip")
    with ppo_learner(World(), run) as ppo:
        ppo.update([make_rollout(0)], np.zeros((1, 1)))
        before = ppo.flat.params.detach().clone(), ppo.normalizers.observations.count
        mean = ppo.normalizers.observations.mean.copy()
        ppo.normalizers.observations.mean[1] = np.inf
        ppo.update([make_rollout(0)], np.zeros((1, 1)))
        assert (ppo.flat.params == before[0]).all()
        ppo.normalizers.observations.mean[:] = mean
        ppo.update([make_rollout(0)], np.zeros((1, 1)))
        assert (ppo.flat.params != before[0]).any()
        assert ppo.normalizers.observations.count == 2 * before[1]


def test_a_non_finite_number_of_an_environment_names_that_environment():
    run, rollout = config(num_envs=4, normalize_observation=True), make_rollout(0)
    from lockstep.experience.rollout import NonFiniteValue
    from lockstep.session.non_finite import NonFiniteError

    rollout.observation[3, 1, 1] = np.nan
    rollout.fault = NonFiniteValue(2, 1, "an observation", float("nan"))
    with (
        ppo_learner(World(), run) as ppo,
        pytest.raises(NonFiniteError, match="environment 1 gave an observation") as error,
    ):
        ppo.update([rollout], np.zeros((1, 1)))
    assert not isinstance(error.value, NormalizerError)
