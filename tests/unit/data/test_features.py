"""Files of features: round trip, validation of edits, ReAgent's format."""

import json
import math

import numpy as np
import pytest

from lockstep.data.feature_file import features_from_dict, features_to_dict, load_features, save_features
from lockstep.data.features import Feature, Features, numbered, ordered
from lockstep.errors import ConfigError, RunError

SOME = Features(
    {
        "10": Feature(type="enum", possible_values=(1.0, 2.5), note="two"),
        "9": Feature(type="continuous", mean=0.1, stddev=3.0, min_value=-1.0, max_value=1e300),
        "speed": Feature(type="quantile", quantiles=(0.0, 0.1, 7.0)),
        "-3": Feature(type="boxcox", boxcox_lambda=0.5, boxcox_shift=1e-4, mean=0.0, stddev=1.0),
        "flag": Feature(type="binary"),
    }
)


def test_ids_are_ordered_by_number_then_by_name():
    assert ordered(["b", "10", "9", "a1", "-3", "2", "1.5"]) == ("-3", "2", "9", "10", "1.5", "a1", "b")
    assert ordered(["100", "11", "-3", "-10"]) == ("-10", "-3", "11", "100")
    assert ordered(["-3", "-10"]) == ("-10", "-3")


def test_ids_of_one_word_are_ordered_by_their_number():
    assert ordered(["x_10", "x_2", "x_0"]) == ("x_0", "x_2", "x_10")
    assert ordered(["x_10", "x_2", "y_0"]) == ("x_10", "x_2", "y_0"), "only where all have the word"
    assert numbered(ordered(f"x-{i}" for i in range(120)))


def test_features_keep_the_order_in_which_they_were_stored():
    """Columns of prepared data, and parameters of policies, stand in the order by name of earlier versions."""
    one = Feature(type="binary")
    earlier = Features({name: one for name in ("x_0", "x_10", "x_2")})
    assert features_from_dict(features_to_dict(earlier)).ids == ("x_0", "x_10", "x_2")
    assert Features({name: one for name in ("x_2", "x_10", "x_0")}).ids == ("x_0", "x_2", "x_10")
    assert SOME.ids == ("-3", "9", "10", "flag", "speed")
    assert SOME.names == ("-3", "9", "10=1", "10=2.5", "flag", "speed")
    assert (SOME.size, len(SOME)) == (6, 5)


def test_saved_features_are_read_back(tmp_path):
    path = tmp_path / "deep" / "features.json"
    save_features(SOME, path)
    assert features_to_dict(load_features(path)) == features_to_dict(SOME)
    assert [item.name for item in path.parent.iterdir()] == ["features.json"]
    assert '"possible_values": [1.0, 2.5],\n' in path.read_text()
    assert features_from_dict(json.loads(path.read_text())) == SOME
    empty = Features({})
    save_features(empty, path)
    assert load_features(path) == empty
    assert empty.normalize(np.zeros((3, 0))).shape == (3, 0)


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "features.json"
    save_features(SOME, path)
    before = path.read_text()
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunError, match=r"features.json could not be written.*No space"):
        save_features(Features({}), path)
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == (before, 1)


def test_features_are_equal_if_types_and_constants_are():
    tree = features_to_dict(SOME)
    tree["features"]["9"] |= {"note": "mine", "min_value": -7.0}
    assert features_from_dict(tree) == SOME and hash(features_from_dict(tree)) == hash(SOME)
    tree["features"]["9"]["mean"] = 0.2
    assert features_from_dict(tree) != SOME


CONTINUOUS = {"type": "continuous", "mean": 0.0, "stddev": 1.0}


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ({"mean": 0.0}, "type is missing"),
        ({"type": "contiguous"}, "type=contiguous is unknown; there are binary, probability"),
        ({"type": 3}, "type=3 must be text"),
        ([1], r"\[1\] must be a mapping"),
        (CONTINUOUS | {"stdev": 1.0}, "stdev is unknown; there are type, mean, stddev"),
        ({"type": "continuous", "mean": 0.0}, "stddev is missing, which type=continuous needs"),
        (CONTINUOUS | {"stddev": 0}, "stddev=0.0 must be greater than 0"),
        (CONTINUOUS | {"stddev": "1"}, 'stddev="1" must be a number'),
        (CONTINUOUS | {"mean": True}, "mean=true must be a number"),
        (CONTINUOUS | {"mean": math.nan}, "mean=nan must be finite"),
        (CONTINUOUS | {"mean": 10**400}, "mean=10+.* must be a number that float64 can hold"),
        (CONTINUOUS | {"quantiles": [0, 1]}, "quantiles is not used by type=continuous; remove it"),
        ({"type": "quantile", "quantiles": [0]}, ".* must be at least two numbers, each above the last"),
        ({"type": "quantile", "quantiles": [0, 2, 2]}, ".* must be at least two numbers, each above the last"),
        ({"type": "quantile", "quantiles": 3}, "quantiles=3 must be a list of numbers"),
        ({"type": "quantile", "quantiles": [-1.7e308, 1.7e308]}, ".* must be at least two numbers"),
        ({"type": "enum", "possible_values": []}, ".* must be numbers, each once"),
        ({"type": "enum", "possible_values": [1, 2, 1.0]}, ".* must be numbers, each once"),
        ({"type": "enum", "possible_values": [1, "a"]}, 'possible_values holds "a", not a number'),
        ({"type": "continuous_action", "min_value": 1, "max_value": 1}, "max_value=1.0 must be greater than min_value"),
    ],
)
def test_invalid_edits_are_rejected(tmp_path, feature, expected):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"format": 1, "features": {"1": {"type": "binary"}, "42": feature}}))
    with pytest.raises(ConfigError, match=rf"mine.json: feature 42: {expected}"):
        load_features(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"format": 1, "features": {}', r"mine.json is not JSON: .*line 1"),
        ('{"format": 1, "features": {"1": {}, "1": {}}}', "mine.json: 1 is there twice"),
        ('{"format": 2, "features": {}}', "format=2 must be 1; upgrade lockstep-rl"),
        ('{"features": {}}', "format=None must be 1$"),
        ('{"format": 1, "feature": {}}', "mine.json: feature is unknown"),
        ('{"format": 1}', "mine.json: features: null must be a mapping"),
        ("[]", r"mine.json: \[\] must be a mapping"),
        (b"\xff\xfe", "cannot read .*mine.json"),
    ],
)
def test_malformed_file_is_rejected(tmp_path, text, expected):
    path = tmp_path / "mine.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=expected):
        load_features(path)
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load_features(tmp_path / "none.json")


def classic(**given):
    """A feature in ReAgent's format: constants of all types for every type."""
    plain = {"boxcox_lambda": None, "boxcox_shift": 0.0, "mean": 0.0, "stddev": 1.0, "possible_values": None}
    return json.dumps(plain | {"quantiles": None, "min_value": -1.0, "max_value": 2.0} | given)


def test_reagent_files_are_read(tmp_path):
    path = tmp_path / "state_features_norm.json"
    texts = {
        "0": classic(feature_type="CONTINUOUS", mean=3.5, stddev=2.0),
        "10": classic(feature_type="ENUM", possible_values=[0, 3]),
        "2": classic(feature_type="QUANTILE", quantiles=[0.0, 1.0, 4.0]),
        "3": classic(feature_type="BOXCOX", boxcox_lambda=0.5, boxcox_shift=1.0),
        "4": classic(feature_type="BINARY"),
    }
    path.write_text(json.dumps(texts))
    found = load_features(path)
    bounds = {"min_value": -1.0, "max_value": 2.0}
    assert found.ids == ("0", "2", "3", "4", "10")
    assert found["0"] == Feature(type="continuous", mean=3.5, stddev=2.0, **bounds)
    assert found["10"] == Feature(type="enum", possible_values=(0.0, 3.0), **bounds)
    assert found["3"] == Feature(type="boxcox", boxcox_lambda=0.5, boxcox_shift=1.0, mean=0.0, stddev=1.0, **bounds)
    assert found["4"] == Feature(type="binary", **bounds)
    for text, expected in (
        (classic(feature_type="WHATEVER"), "feature 0: type=whatever is unknown"),
        (classic(feature_type=None), "feature 0: feature_type=None must be text"),
        (classic(feature_type="ENUM"), "feature 0: possible_values is missing"),
        (classic(feature_type="BINARY", oddity=1), "feature 0: oddity is unknown"),
        ("{", "feature 0 is not JSON"),
    ):
        path.write_text(json.dumps({"0": text}))
        with pytest.raises(ConfigError, match=f"state_features_norm.json: {expected}"):
            load_features(path)


def test_absent_features_are_zero_and_outputs_are_finite():
    raw = np.array([[np.nan] * 5, [np.inf] * 5, [-np.inf] * 5, [1e308] * 5, [-1e308] * 5, [5e-324] * 5])
    normal = SOME.normalize(raw)
    assert normal.dtype == np.float32
    assert (normal[0] == 0).all()
    assert np.isfinite(normal).all()
    assert SOME.normalize(raw[:0]).shape == (0, 6)
