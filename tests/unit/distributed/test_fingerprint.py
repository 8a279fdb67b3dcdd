import numpy as np
import pytest
from torch import nn

from lockstep.distributed.fingerprint import combine, digest, fingerprint
from lockstep.errors import ConfigError

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "other",
    [
        ARRAY.reshape(3, 2),
        ARRAY.astype(np.float64),
        ARRAY.view(np.int32),
        np.nextafter(ARRAY, np.float32(9)),
        np.where(ARRAY == 0, np.float32(-0.0), ARRAY),
    ],
    ids=["shape", "dtype", "kind", "last bit", "sign of zero"],
)
def test_any_difference_changes_the_fingerprint(other):
    assert digest(ARRAY) != digest(other)


def test_memory_layout_and_byte_order_do_not_count():
    assert digest(ARRAY) == digest(np.asfortranarray(ARRAY)) == digest(ARRAY.astype(">f4")) == digest(ARRAY.copy())
    assert len(digest(ARRAY)) == 32
    assert digest(np.zeros(())) != digest(np.zeros(1))


def test_names_count_and_their_order_does_not():
    a, b = np.zeros(2), np.ones(2)
    assert fingerprint({"a": a, "b": b}) == fingerprint({"b": b, "a": a}) != fingerprint({"a": b, "b": a})
    assert combine(["1", "2"]) != combine(["2", "1"])


def test_types_of_jax_have_a_fingerprint():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert digest(ARRAY.astype(bfloat16)) == digest(ARRAY.astype(bfloat16)) != digest((ARRAY + 1).astype(bfloat16))


def test_an_array_without_numbers_has_one_that_is_stable():
    assert digest(np.zeros((0, 3), np.float32)) != digest(np.zeros((0, 4), np.float32))
    assert digest(ARRAY) == "f20061482cf6e2b4ac67a1f68af4fa7f"


def test_what_is_no_mapping_of_arrays_is_named():
    module = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=r"^fingerprint takes arrays by name, not a Linear; of a module give"):
        fingerprint(module)
    with pytest.raises(ConfigError, match=r"but bias is a Tensor; give np.asarray\(...\) of it, of a tensor"):
        fingerprint({"a": ARRAY, "bias": module.bias.detach()})
    assert fingerprint({"a": np.float32(1)}) == fingerprint({"a": np.array(1, np.float32)})
