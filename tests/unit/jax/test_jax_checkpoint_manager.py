"""Checkpoints of a JAX loop of one's own."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep import ConfigError, World
from lockstep.jax.checkpoint_manager import CheckpointManager
from lockstep.jax.comm import Comm


def test_arrays_come_back_with_their_bits(tmp_path):
    optax = pytest.importorskip("optax")
    params = {"weight": jax.numpy.arange(3.0), "half": jax.numpy.ones(2, jax.numpy.bfloat16)}
    state = optax.adam(1e-3).init(params)
    with Comm(World(), device="cpu") as comm, CheckpointManager(comm, tmp_path) as checkpoints:
        checkpoints.save(4, {"params": params, "optimizer": jax.tree.leaves(state)})
        found = checkpoints.restore()
    assert found is not None and found.step == 4
    for name, array in params.items():
        assert found.shared["params"][name].dtype == array.dtype
        np.testing.assert_array_equal(found.shared["params"][name], np.asarray(array))
    restored = jax.tree.unflatten(jax.tree.structure(state), found.shared["optimizer"])
    assert type(restored[0]) is type(state[0])
    np.testing.assert_array_equal(restored[0].mu["weight"], np.zeros(3))


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int4"])
def test_numbers_that_numpy_does_not_have_can_be_saved_again(tmp_path, kind):
    """From the device, from the host, and as they were restored."""
    array = jax.numpy.arange(3).astype(kind)
    with Comm(World(), device="cpu") as comm, CheckpointManager(comm, tmp_path) as checkpoints:
        checkpoints.save(1, {"device": array, "host": jax.device_get(array)})
        checkpoints.save(2, checkpoints.restore().shared)
        found = checkpoints.restore().shared
    for name in ("device", "host"):
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], np.asarray(array))


@pytest.mark.parametrize("kind", [np.complex64, object])
def test_other_arrays_are_refused_with_what_can_be_saved(tmp_path, kind):
    words = r"shared\.x is an array of (complex64|object), .* give booleans, integers"
    with Comm(World(), device="cpu") as comm, CheckpointManager(comm, tmp_path) as checkpoints:
        with pytest.raises(ConfigError, match=words):
            checkpoints.save(1, {"x": np.zeros(2, kind)})
        assert checkpoints.restore() is None


def test_a_typed_random_key_is_refused_with_the_way_to_save_it(tmp_path):
    key = jax.random.key(3)
    with Comm(World(), device="cpu") as comm, CheckpointManager(comm, tmp_path) as checkpoints:
        with pytest.raises(ConfigError, match=r"shared\.key is a typed random key .*save jax\.random\.key_data\(key\)"):
            checkpoints.save(1, {"key": key})
        checkpoints.save(2, {"key": jax.random.key_data(key)})
        found = checkpoints.restore()
    assert jax.random.wrap_key_data(found.shared["key"]) == key
