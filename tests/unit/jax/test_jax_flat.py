"""Parameters as one vector and back."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.jax.flat import FlatParameters, subtree, with_prefix

PARAMS = {
    "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.float32([10, 11]),
    "b.bias": np.float32([20]),
}


def test_they_lie_in_the_order_of_their_names():
    flat = FlatParameters(PARAMS)
    assert list(flat.shapes) == ["a", "b.bias", "b.weight"]
    assert flat.shapes == {"a": (2,), "b.bias": (1,), "b.weight": (2, 3)}
    assert flat.num_parameters == 9
    assert flat.join(PARAMS).tolist() == [10, 11, 20, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", [np.asarray, jax.numpy.asarray])
def test_they_come_back_as_they_were(kind):
    flat, given = FlatParameters(PARAMS), {name: kind(value) for name, value in PARAMS.items()}
    vector = flat.join(given)
    assert type(vector) is type(given["a"])
    back = flat.split(vector)
    assert list(back) == list(flat.shapes)
    for name, value in PARAMS.items():
        assert type(back[name]) is type(vector)
        np.testing.assert_array_equal(back[name], value)


def test_parts_of_a_vector_of_the_host_are_views_of_it():
    flat, vector = FlatParameters(PARAMS), np.zeros(9, np.float32)
    parts = flat.split(vector)
    vector[3:] = 7
    assert (parts["b.weight"] == 7).all()
    assert not parts["a"].any()


def test_gradients_come_as_one_vector():
    flat = FlatParameters(PARAMS)

    def loss(vector):
        params = flat.split(vector)
        return (params["b.weight"] ** 2).sum() + 3 * params["b.bias"].sum()

    gradient = jax.grad(loss)(jax.numpy.asarray(flat.join(PARAMS)))
    assert gradient.tolist() == [0, 0, 3, 0, 2, 4, 6, 8, 10]
    said = str(jax.make_jaxpr(jax.grad(loss))(flat.join(PARAMS)))
    assert "concatenate" in said
    assert " pad" not in said, "each part is written into a vector of its own"


def test_what_is_no_float32_is_refused():
    with pytest.raises(ValueError, match="count is int32; parameters of type float32 are needed"):
        FlatParameters(PARAMS | {"count": np.zeros(3, np.int32)})


def test_names_below_a_name():
    assert {name: value.tolist() for name, value in subtree(PARAMS, "b").items()} == {
        "weight": [[0, 1, 2], [3, 4, 5]],
        "bias": [20],
    }
    assert with_prefix("b", subtree(PARAMS, "b")).keys() == {"b.weight", "b.bias"}
    assert subtree({"ab.c": PARAMS["a"]}, "a") == {}
