"""Bits at sizes at which XLA cuts its sums and convolutions into parts: as many as its pool has threads."""

import pytest

pytest.importorskip("jax")

from jax_real_size import gradient

from lockstep import spawn
from lockstep.errors import ConfigError


@pytest.mark.slow
def test_a_real_cnn_has_the_same_bits_on_any_number_of_devices():
    told = {devices: spawn(gradient, 1, (devices,), timeout_s=300)[0] for devices in (1, 2, 4)}
    assert told[2] == told[1], "bits depend on the number of devices"
    assert told[4] == told[1], "bits depend on the number of devices"


def test_more_cpu_devices_than_the_pool_is_sure_of_are_refused():
    with pytest.raises(ConfigError, match="devices_per_process=5: with num_shards pinned"):
        spawn(gradient, 1, (5,), timeout_s=60)
