"""Which output a donated buffer becomes. On CPUs XLA orders the copies between them; on a GPU it did not."""

import re

import numpy as np
import pytest

from lockstep import World
from lockstep.jax.comm import Comm

NAMES = ("critics", "moment", "policy", "square", "target")


@pytest.mark.parametrize("devices", [1, 2])
def test_a_donated_buffer_becomes_the_output_of_its_own_place(devices):
    world = World().with_shards(2)
    with Comm(world, device="cpu", devices_per_process=devices) as comm:
        copy = comm.spmd(lambda shared, own: (shared | {"critics": shared["target"]}, own))
        shared = comm.replicate({name: np.full(8, number, np.float32) for number, name in enumerate(NAMES)})
        text = copy.lower(shared, ()).as_text()
    (signature,) = (line for line in text.splitlines() if "func.func public @main" in line)
    arguments = re.split(r"%arg\d+: ", signature.partition(" -> ")[0])[1:]
    assert len(arguments) == len(NAMES), "JAX has left out what the function ignores"
    if devices == 1:  # over several devices XLA assigns the buffers later
        assert [int(place) for place in re.findall(r"tf\.aliasing_output = (\d+)", signature)] == [*range(len(NAMES))]
