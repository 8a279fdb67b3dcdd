"""Whoever sleeps in the pool of threads in which several CPU devices compute is woken every second."""

import subprocess
import sys
import threading

import pytest

pytest.importorskip("jax")


from lockstep.jax.collectives import waker
from lockstep.jax.comm import Comm
from lockstep.world import World

# Both threads of the pool wait for `release`; a task that comes then has to wait for them.
IN_THE_POOL = """
import os, threading, time
os.environ["NPROC"] = "2"
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_platforms", "cpu")
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from lockstep.jax.collectives.waker import Waker

release, inside = threading.Event(), threading.Semaphore(0)
mesh, own = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")

def wait(x):
    inside.release()
    release.wait(60)
    return x

def part(x):
    return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

x = jax.device_put(np.zeros(2, np.float32), NamedSharding(mesh, own))
woken = Waker(jax.devices())
woken.wake().block_until_ready()
found = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=own, out_specs=own, check_vma=False))(x)
inside.acquire(), inside.acquire()
copy = woken.wake()
time.sleep(0.5)
print("elsewhere" if copy.is_ready() else "in the pool")
release.set()
found.block_until_ready(), copy.block_until_ready()
woken.close()
"""


def test_what_wakes_comes_to_the_pool_in_which_devices_compute():
    done = subprocess.run([sys.executable, "-c", IN_THE_POOL], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "in the pool\n", "XLA copies elsewhere now: a sleeping pool would not be woken"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "lockstep-waker"]


@pytest.mark.parametrize("devices", [1, 2])
def test_several_devices_are_woken_again_and_again(monkeypatch, devices):
    woken = threading.Semaphore(0)
    monkeypatch.setattr(waker, "_EVERY_S", 0.01)
    monkeypatch.setattr(waker.Waker, "wake", lambda self: woken.release())
    with Comm(World().with_shards(2), device="cpu", devices_per_process=devices):
        assert len(threads()) == devices - 1, "one thread for several devices, none for one"
        for _ in range(3 * len(threads())):
            assert woken.acquire(timeout=30), "nobody wakes the pool"
    assert not threads()
