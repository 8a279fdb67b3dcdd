"""The preprocessing module equals the numpy formulas; presence is a separate input."""

import numpy as np
import pytest
import torch

from lockstep.data.features import Feature, Features
from lockstep.torch.scoring.preprocess import Preprocessor
from lockstep.world import stream


def features():
    draws = stream(3, "features")
    made = {}
    for i in range(4):  # in turn, so that the columns of a type do not lie side by side
        made |= {
            f"{i}0": Feature(type="continuous", mean=draws.normal(), stddev=draws.random() + 0.1),
            f"{i}1": Feature(type="enum", possible_values=tuple(map(float, range(i + 1)))),
            f"{i}2": Feature(type="quantile", quantiles=tuple(np.sort(draws.normal(size=3 + 5 * i)))),
            f"{i}3": Feature(type="boxcox", boxcox_lambda=i - 1.0, boxcox_shift=0.5, mean=0.5, stddev=2.0),
            f"{i}4": Feature(type="probability"),
            f"{i}5": Feature(type="binary"),
        }
    return Features(made)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e12])
def test_module_equals_numpy_formulas(scale):
    some, draws = features(), stream(0, "raw")
    raw = np.where(
        draws.random((500, 24)) < 0.3, draws.integers(-1, 5, (500, 24)), scale * draws.normal(size=(500, 24))
    )
    raw[draws.random(raw.shape) < 0.2] = np.nan
    wanted = some.normalize(raw)
    module = Preprocessor(some)
    np.testing.assert_allclose(module(torch.from_numpy(raw)).numpy(), wanted, rtol=1e-6, atol=1e-6)
    present = ~np.isnan(raw)
    for presence in (present, present.astype(np.float32)):
        given = module(torch.from_numpy(np.nan_to_num(raw, nan=7.0)), torch.from_numpy(presence))
        np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_absent_feature_is_zero():
    some = features()
    value = torch.tensor([0.5, torch.nan, torch.inf, 3.0]).repeat_interleave(24).view(4, 24).double()
    assert (Preprocessor(some)(value, torch.zeros(4, 24)) == 0).all()
    assert (Preprocessor(some)(value)[1] == 0).all(), "NaN is absent"
    assert torch.isfinite(Preprocessor(some)(value)).all()


def test_float32_and_bool_inputs_are_accepted():
    seen = Preprocessor(features())(torch.ones(2, 24), torch.ones(2, 24, dtype=torch.bool))
    assert (seen.dtype, seen.shape) == (torch.float32, (2, features().size))


def test_preprocessor_has_no_parameters_or_state():
    module = Preprocessor(features())
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    assert Preprocessor(Features({}))(torch.zeros(3, 0)).shape == (3, 0)
