"""What crosses ranks as bytes: plain values and arrays, and nothing that could run code."""

import os
import pickle

import numpy as np
import pytest

from lockstep.distributed import messages


class Attack:
    """What unpickling would run."""

    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def test_plain_values_and_arrays_round_trip():
    value = {
        "a": [1, 2.5, None, True, "é"],
        "b": {"x": np.arange(6, dtype=np.int64).reshape(2, 3), "y": np.float32(0.5)},
    }
    back = messages.decode(messages.encode(value))
    assert back["a"] == value["a"]
    assert back["b"]["y"] == 0.5
    assert back["b"]["x"].dtype == np.int64
    np.testing.assert_array_equal(back["b"]["x"], value["b"]["x"])
    back["b"]["x"][0, 0] = 7  # an array of its own, not a view of the message


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int32, np.float32, np.float64, np.complex64])
def test_arrays_keep_every_bit(kind):
    array = np.array([[0, 1, 3]]).astype(kind)
    back = messages.decode(messages.encode([array, np.zeros((0, 4), kind)]))
    assert back[0].dtype == array.dtype and back[0].tobytes() == array.tobytes()
    assert back[1].shape == (0, 4)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Attack(), "Attack"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (np.array([Attack()], dtype=object), "an array of object"),
        (np.array(["text"]), "an array of <U4"),
    ],
)
def test_other_types_are_refused(value, name):
    with pytest.raises(TypeError, match=f"^{name} cannot be sent between ranks"):
        messages.encode({"value": value})


def test_a_pickle_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        messages.decode(b"\x08\0\0\0\0\0\0\0" + pickle.dumps(Attack()))
    assert list(tmp_path.iterdir()) == []
