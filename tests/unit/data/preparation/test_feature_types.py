"""Types of features, identified from a sample of their values."""

import numpy as np
import pytest

from lockstep.config import settings
from lockstep.data.feature_file import load_features, save_features
from lockstep.data.features import Features
from lockstep.data.preparation.identify import NormParams, identify
from lockstep.errors import ConfigError
from lockstep.world import stream

pytest.importorskip("scipy")

N = 2000
DRAWS = stream(0, "features")
NORMAL = DRAWS.normal(size=N)
SAMPLES = {
    "binary": DRAWS.integers(2, size=N),
    "always 0": np.zeros(N),
    "share": DRAWS.random(N),
    "few": DRAWS.integers(2, 9, size=N),
    "many": DRAWS.integers(0, 12, size=N),
    "negative": np.round(1.5 * NORMAL).clip(-3, 3),
    "normal": 40 + 5 * NORMAL,
    "small": 0.1 * NORMAL,
    "log-normal": np.exp(2 * NORMAL),
    "two humps": np.where(DRAWS.random(N) < 0.5, -100, 100) + NORMAL,
    "large ids": 2.0**53 - DRAWS.integers(1, 4, size=N),
    "huge": 1e300 * NORMAL,
    "constant": np.full(N, 3.7),
    "sometimes": np.where(DRAWS.random(N) < 0.1, 3.7, np.nan),
    "never": np.full(N, np.nan),
    "rare": np.where(np.arange(N) < 19, 100 * DRAWS.random(N), np.nan),
    "rare flag": np.where(np.arange(N) < 3, 1.0, np.nan),
}
WANTED = {
    "binary": "binary",
    "always 0": "binary",
    "share": "probability",
    "few": "enum",
    "many": "quantile",
    "negative": "continuous",
    "normal": "continuous",
    "small": "continuous",
    "log-normal": "boxcox",
    "two humps": "quantile",
    "large ids": "enum",
    "huge": "continuous",
    "constant": "continuous",
    "sometimes": "binary",
    "never": "continuous",
    "rare": "continuous",
    "rare flag": "binary",
}


def identify_features(*names, **params) -> Features:
    names = names or tuple(SAMPLES)
    return identify(names, np.stack([SAMPLES[name] for name in names], 1).astype(np.float64), NormParams(**params))


def test_types_are_identified():
    found = identify_features()
    assert {name: found[name].type for name in SAMPLES} == WANTED


def test_constants_are_computed_from_the_sample():
    found = identify_features()
    normal, sample = found["normal"], SAMPLES["normal"]
    assert (normal.mean, normal.stddev) == pytest.approx((sample.mean(), sample.std(ddof=1)))
    assert (normal.min_value, normal.max_value) == (sample.min(), sample.max())
    assert found["few"].possible_values == (2, 3, 4, 5, 6, 7, 8)
    assert found["large ids"].possible_values == (2.0**53 - 3, 2.0**53 - 2, 2.0**53 - 1)
    assert found["log-normal"].boxcox_lambda == pytest.approx(0, abs=0.05)
    assert found["log-normal"].boxcox_shift == pytest.approx(1e-4, rel=0.2) or found["log-normal"].boxcox_shift == 0
    quantiles = found["two humps"].quantiles
    assert len(quantiles) == 21
    assert (quantiles[0], quantiles[-1]) == (SAMPLES["two humps"].min(), SAMPLES["two humps"].max())
    shares = np.diff(np.searchsorted(np.sort(SAMPLES["two humps"]), quantiles, side="right"))
    assert (np.abs(shares - N / 20) <= 1).all()
    assert found["huge"].stddev == pytest.approx(1e300, rel=0.1)
    assert "19 of 2000 sampled rows have it, too few" in found["rare"].note


def test_small_deviations_are_not_scaled_up():
    assert identify_features("small")["small"].stddev == 1.0
    scaled = identify_features("small", min_stddev=0.0)["small"]
    assert scaled.stddev == pytest.approx(0.1, rel=0.1)
    assert identify_features("constant", min_stddev=0.0)["constant"].stddev == 1.0


def test_normalized_values_are_finite_and_near_zero():
    """For every type, applied to its own sample."""
    found = identify_features()
    normal = found.normalize(np.stack([SAMPLES[name] for name in found.ids], 1).astype(np.float64))
    columns = dict(zip(found.names, normal.T, strict=True))
    assert np.isfinite(normal).all()
    for name in ("normal", "log-normal", "huge"):
        assert columns[name].mean() == pytest.approx(0, abs=0.01), name
        assert columns[name].std() == pytest.approx(1, abs=0.01), name
    assert columns["two humps"].mean() == pytest.approx(0.5, abs=0.01)
    assert set(np.unique(columns["sometimes"])) == {0.0, 1.0}
    assert (columns["constant"] == 0).all()
    assert (columns["never"] == 0).all()
    assert sum(columns[f"few={k}"] for k in range(2, 9)).min() == 1


def test_thresholds_change_types():
    assert identify_features("many", max_unique_enum_values=12)["many"].type == "enum"
    assert identify_features("few", max_unique_enum_values=6)["few"].type == "quantile"
    assert identify_features("log-normal", skip_box_cox=True)["log-normal"].type == "quantile"
    assert identify_features("log-normal", skip_box_cox=True, skip_quantiles=True)["log-normal"].type == "continuous"
    assert identify_features("two humps", skip_quantiles=True)["two humps"].type == "continuous"
    assert identify_features("two humps", quantile_k2_threshold=1e9)["two humps"].type == "continuous"
    assert len(identify_features("two humps", quantile_size=4)["two humps"].quantiles) == 5


def test_override_sets_the_type():
    given = {"few": "CONTINUOUS", "normal": "quantile", "log-normal": "clip_log", "share": "boxcox", "binary": "enum"}
    given |= {"many": "discrete_action", "small": "continuous_action", "huge": "do_not_preprocess", "never": "binary"}
    found = identify_features(feature_overrides=given)
    assert {name: found[name].type for name in given} == {name: kind.lower() for name, kind in given.items()}
    assert found["two humps"].type == "quantile"
    assert "its type was given" in found["few"].note


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("normal", "enum", None),
        ("normal", "probability", r"normal=probability, but the sample holds values from 2\d.* to 5\d"),
        ("never", "enum", "never=enum, but the sample holds 0 different values"),
        ("never", "quantile", "no two different values"),
        ("constant", "continuous_action", "no two different values"),
        ("constant", "boxcox", "its values give no lambda"),
    ],
)
def test_unsuitable_override_is_rejected(name, kind, expected):
    if expected is None:  # 2000 values are many, and not too many
        assert identify_features(name, feature_overrides={name: kind})[name].size == N
        return
    with pytest.raises(ConfigError, match=f"feature_overrides: .*{expected}.*; give it another type"):
        identify_features(name, feature_overrides={name: kind})


def test_enum_of_too_many_values_is_rejected():
    sample = np.arange(10_001.0)[:, None]
    with pytest.raises(ConfigError, match="id=enum, but the sample holds 10001 different values"):
        identify(("id",), sample, NormParams(feature_overrides={"id": "enum"}))


def test_unknown_feature_or_type_is_rejected():
    with pytest.raises(ConfigError, match=r"the log has no feature norml; it has normal"):
        identify_features("normal", "few", feature_overrides={"norml": "enum"})
    with pytest.raises(ConfigError, match="feature_overrides: 3=enumeration is not a type; there are binary"):
        NormParams(feature_overrides={"3": "enumeration"})
    for name, value in (("num_samples", 0), ("quantile_size", 0), ("min_stddev", -1.0), ("max_unique_enum_values", 0)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            NormParams(**{name: value})


def test_params_are_parsed_from_settings():
    params = settings.override(NormParams(), {"quantile_size": "5", "feature_overrides": "{a: ENUM}"})
    assert params == NormParams(quantile_size=5, feature_overrides={"a": "enum"})


@pytest.mark.parametrize("seed", range(5))
def test_features_of_extreme_samples_are_computed_and_saved(tmp_path, seed):
    """Odd columns: few values, extremes side by side, denormal ones."""
    draws = stream(seed, "odd")
    odd = [0.0, 1.0, -1.0, 5e-324, 1e-308, 1.7e308, -1.7e308, 1e16, 2.0**53, 0.1, 3.0]
    sample = draws.choice([*odd, np.nan], size=(200, 30))
    sample[:, 20:] = draws.standard_cauchy((200, 10)) * 10.0 ** draws.integers(-300, 300, size=10)
    ids = tuple(map(str, range(30)))
    found = identify(ids, sample)
    save_features(found, tmp_path / "features.json")
    assert load_features(tmp_path / "features.json") == found
    assert np.isfinite(found.normalize(sample)).all()
