"""Running moments on the device against the host's, and against numpy over everything that was seen."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.experience.normalize import RunningMoments
from lockstep.jax import moments

STEPS, ENVS = 40, 8
add = jax.jit(lambda held, rows: moments.merged({"returns": held}, held.sums(rows), jnp.ones((), bool)))


def begun(first):
    """As `PPODeviceLoop` begins: relative to the mean of the rows that episodes begin with."""
    host = RunningMoments(first.shape[1])
    host.begin_at(first.astype(np.float64).mean(0))
    return moments.read(host)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    updates=st.integers(1, 30),
    magnitude=st.floats(-6, 6),
    sign=st.sampled_from([-1.0, 1.0]),
    deviation=st.one_of(st.just(0.0), st.floats(-6, 3).map(lambda power: 10.0**power)),
    first=st.sampled_from([0.0, 1.0]),
)
def test_moments_are_those_of_all_rows(seed, updates, magnitude, sign, deviation, first):
    """Of any mean and deviation that observations may have; an episode may begin at 0 and then jump."""
    draw, mean = np.random.default_rng(seed), sign * 10.0**magnitude
    rows = (draw.standard_normal((updates, STEPS, ENVS, 3)) * [1, 0, 0.1] * deviation + mean).astype(np.float32)
    rows[0, 0] *= first
    device, back = begun(rows[0, 0]), RunningMoments(3)
    for part in rows:
        found, bad = add(device, part.reshape(-1, 3))
        device = found["returns"]
        assert bad == -1
    moments.write(device, back)
    every = rows.reshape(-1, 3).astype(np.float64)
    assert back.count == len(every)
    # What float32 sums of float32 rows can hold, whatever the mean: 5 digits, and one less where the first rows lie far
    # from all others.
    rtol = 2e-5 if first else 2e-4
    np.testing.assert_allclose(back.variance, every.var(0), rtol=rtol, atol=1e-20 * mean**2)
    np.testing.assert_allclose(back.mean, every.mean(0), rtol=1e-7, atol=rtol * every.std(0).max())
    assert np.isfinite(device.normalize(part)).all()


def test_fixed_columns_are_not_clipped():
    """As those of images of float32, such as a depth camera's."""
    host = RunningMoments(4, limit=2.0, fixed=[slice(1, 3)])
    rows = (5 + 3 * np.random.default_rng(0).standard_normal((50, 4))).astype(np.float32)
    host.update(host.sums(rows, np.ones(len(rows))))
    expected = host.normalize(rows)
    assert (expected[:, 1:3] == rows[:, 1:3]).all()
    np.testing.assert_array_equal(moments.normalized(host, jnp.asarray(rows)), expected)
    on_device = moments.read(host).normalize(jnp.asarray(rows), host.limit)
    np.testing.assert_allclose(on_device, expected, rtol=1e-5, atol=1e-6)


def test_rounding_makes_no_variance_negative():
    moved = moments.read(RunningMoments(1)).update(jnp.asarray([1600.0, 1600 * 1.6854, 1600 * 1.6854**2 - 0.01]))
    assert float(moved.variance[0]) == 0.0
    assert np.isfinite(moved.normalize(jnp.ones((1, 1)))).all()


def test_many_updates_lose_no_count_and_no_small_step():
    host = RunningMoments(1)
    host.restore({"count": np.array([3e9 + 1]), "mean": np.array([1e3]), "variance": np.array([1e-2])})
    device, rows = moments.read(host), np.full((64, 1), 1001.0, np.float32)
    for _ in range(200):
        host.update(host.sums(rows, np.ones(64)))
        device = add(device, rows)[0]["returns"]
    back = RunningMoments(1)
    moments.write(device, back)
    assert back.count == host.count == 3e9 + 1 + 200 * 64
    np.testing.assert_allclose(back.mean - 1e3, host.mean - 1e3, rtol=1e-3)
    np.testing.assert_allclose(back.variance - 1e-2, host.variance - 1e-2, rtol=1e-3)


def test_each_normalizer_takes_its_own_sums_in_compiled_code():
    """There a mapping has the order of its names."""
    sizes = {"observations": 2, "critic_observations": 3, "returns": 1, "values": 1}
    rows = {name: np.full((5, size), i + 1.0, np.float32) for i, (name, size) in enumerate(sizes.items())}
    held = {name: moments.read(RunningMoments(size)) for name, size in sizes.items()}
    sums = jnp.concatenate([held[name].sums(jnp.asarray(rows[name])) for name in sizes])
    after, bad = jax.jit(moments.merged)(held, sums, jnp.ones((), bool))
    assert int(bad) == -1
    for i, name in enumerate(sizes):
        assert (float(after[name].seen[0]), after[name].mean.tolist()) == (5.0, [i + 1.0] * sizes[name])


def test_what_is_too_large_is_told_by_its_number_and_nothing_is_taken_in():
    held = {name: moments.read(RunningMoments(2)) for name in ("observations", "returns")}
    sums = np.array([4, 1, 1, 1, 1, 4, 1, 1, 1, np.inf], np.float32)
    after, bad = moments.merged(held, jnp.asarray(sums), jnp.ones((), bool))
    assert int(bad) == 3
    assert all(float(one.seen[0]) == 0.0 for one in after.values())
    sums[-1] = 1.0
    for finite in (True, False):
        after, bad = moments.merged(held, jnp.asarray(sums), jnp.asarray(finite))
        assert int(bad) == -1
        assert [float(one.seen[0]) for one in after.values()] == [4.0 * finite] * 2


def test_moments_are_those_of_the_host():
    rng, host = np.random.default_rng(0), RunningMoments(3)
    device = moments.read(host)
    for _ in range(5):
        rows = rng.normal([5.0, -1.0, 100.0], [1.0, 0.1, 3.0], (64, 3)).astype(np.float32)
        np.testing.assert_allclose(device.normalize(jnp.asarray(rows)), host.normalize(rows), atol=2e-3)
        host.update(host.sums(rows, np.ones(64)))
        device = device.update(device.sums(jnp.asarray(rows)))
    back = RunningMoments(3)
    moments.write(device, back)
    assert back.count == host.count == 320
    np.testing.assert_allclose(back.mean, host.mean, rtol=1e-5)
    np.testing.assert_allclose(back.variance, host.variance, rtol=1e-3)
    np.testing.assert_allclose(device.normalize(jnp.full((1, 3), 1e6)), [[10.0] * 3])
    scaled = moments.read(host).scale(jnp.asarray([1.0, -1e9]))
    np.testing.assert_allclose(scaled, host.scale(np.array([1.0, -1e9])), rtol=1e-4)


def test_fixed_columns_are_not_normalized():
    """As those of images among numbers."""
    host = RunningMoments(3, fixed=[slice(0, 2)])
    host.begin_at(np.full(3, 5.0))
    held, rows = moments.read(host), np.random.default_rng(0).normal(5, 3, (4, 10, 3)).astype(np.float32)
    for part in rows:
        held = add(held, part)[0]["returns"]
    moments.write(held, host)
    np.testing.assert_array_equal(host.mean[:2], 0)
    np.testing.assert_array_equal(host.variance[:2], 1)
    np.testing.assert_allclose(host.variance[2], rows[..., 2].var(), rtol=1e-5)
    np.testing.assert_array_equal(held.normalize(part)[:, :2], part[:, :2])
