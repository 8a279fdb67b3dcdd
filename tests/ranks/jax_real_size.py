"""A gradient of the Nature CNN at its real size, on some devices of one process."""

import jax
import jax.numpy as jnp
import numpy as np

from lockstep.distributed.fingerprint import fingerprint
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.jax import hardware
from lockstep.jax.adam import global_norm
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters
from lockstep.jax.networks import Policy
from lockstep.run import NetworkConfig, Run
from lockstep.world import World

SHARDS, ROWS = 4, 32
PONG = EnvSpec(
    observation_size=4 * 84 * 84,
    action=ActionSpec(kind="discrete", sizes=(6,)),
    autoreset="next_step",
    separately_seedable=True,
    image=(4, 84, 84),
)


def gradient(rank: int, devices: int) -> tuple[str, str]:
    """Of all shards' rows: its fingerprint, and that of its norm."""
    world = World().with_shards(SHARDS)
    hardware.pin(Run(task="any", num_shards=SHARDS, devices_per_process=devices, ml_framework="jax"), world)
    with Comm(world, device="cpu", devices_per_process=devices) as comm:
        policy = Policy(PONG, NetworkConfig(), seed=1)
        flat, draw = FlatParameters(policy.params), np.random.default_rng(0)
        seen = [draw.integers(0, 256, (ROWS, 4, 84, 84)).astype(np.uint8) for _ in range(SHARDS)]

        def row(values: jax.Array, observation: jax.Array) -> jax.Array:
            values, observation = jax.lax.optimization_barrier((values, observation))

            def loss(params: dict[str, jax.Array]) -> jax.Array:
                parameters, value = policy.apply(params, observation)
                return jnp.square(parameters).sum() + jnp.square(value).sum()

            return jax.lax.optimization_barrier(flat.join(jax.grad(loss)(flat.split(values))))

        def summed(values: jax.Array, own: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[()]]:
            total = comm.sum_shards(jnp.stack([row(values, one) for one in own]), "gradient")
            return (total, global_norm(total)), ()

        told, _ = comm.spmd(summed, donate=False)(comm.replicate(flat.join(policy.params)), comm.shard(seen))
        total, norm = comm.read(told)
    return fingerprint({"gradient": total}), fingerprint({"norm": norm})
