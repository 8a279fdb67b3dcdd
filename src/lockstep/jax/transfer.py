"""Arrays of other frameworks on the devices of JAX."""

from typing import Any

import jax
import numpy as np
from jax import Array

from lockstep.envs.dlpack import CPU, DLPackArray


def to_device(array: DLPackArray, device: Any) -> Array:
    """The array on a device of JAX.

    Without a copy where the device's own memory holds it, aligned as JAX needs it: nobody may write to the array again.
    """
    if array.__dlpack_device__()[0] == CPU and device.platform != "cpu":
        return jax.device_put(np.from_dlpack(array), device)
    return jax.dlpack.from_dlpack(array, device)
