"""Your own training loop in JAX, made data-parallel: REINFORCE on an environment of pure functions.

    python examples/my_jax_loop.py                   one rank
    python examples/my_jax_loop.py --ranks 2         two; each plays half of the episodes

The update is one function, compiled by `comm.spmd` for all devices of all ranks at once. Inside it, `shared` is equal
everywhere and `own` belongs to one device. The game is that of `my_jax_env.py`. B episodes of a device, T steps.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from lockstep import World, spawn, stream_seed
from lockstep.jax import Comm

sys.path.append(str(Path(__file__).parent))  # fresh processes that `spawn` starts need it, too
from my_jax_env import MyJaxEnv

SEED, EPISODES, HIDDEN = 0, 256, 32  # EPISODES per update, played by all ranks together
ENV, ADAM = MyJaxEnv(width=5, height=6), optax.adam(1e-2)


def initial(seed: int) -> dict[str, Any]:
    """Parameters and Adam's state, the same on every rank for the same seed."""
    keys = jax.random.split(jax.random.key(seed), 2)
    weights = {
        "hidden": jax.random.normal(keys[0], (ENV.spec.observation_size, HIDDEN)) * 0.5,
        "bias": jnp.zeros(HIDDEN),
        "out": jax.random.normal(keys[1], (HIDDEN, ENV.spec.action.num_parameters)) * 0.01,
    }
    return {"weights": weights, "adam": ADAM.init(weights)}


def logits(weights: dict[str, Array], observation: Array) -> Array:
    """[..., O] to [..., A]."""
    return jnp.tanh(observation @ weights["hidden"] + weights["bias"]) @ weights["out"]


def play(weights: dict[str, Array], key: Array) -> tuple[Array, Array, Array]:
    """One episode of fixed length: observations [T, O], actions [T] and its return."""
    begin, key = jax.random.split(key)

    def step(state: Any, key: Array) -> tuple[Any, tuple[Array, Array, Array]]:
        observation = ENV.observe(state)
        choose, move = jax.random.split(key)  # each key is used once
        action = jax.random.categorical(choose, logits(weights, observation))
        state, _, reward, _, _ = ENV.step(state, action, move)
        return state, (observation, action, reward)

    _, (observation, action, reward) = jax.lax.scan(step, ENV.reset(begin), jax.random.split(key, ENV.height - 1))
    return observation, action, reward.sum()


def train(rank: int, args: argparse.Namespace) -> float:
    """The whole training, run by every rank; returns the last mean return."""
    with Comm(World.from_environment(), device=args.device) as comm:

        def update(shared: dict[str, Any], own: Array) -> tuple[dict[str, Any], Array]:
            """One gradient step on new episodes; `own` holds the numbers [1, B] of this device's episodes."""
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(SEED), own[0])
            observation, action, returns = jax.vmap(play, (None, 0))(shared["weights"], keys)
            _, mean, variance = comm.moments(returns)  # of the episodes of all devices
            advantage = (returns - mean) / jnp.sqrt(variance + 1e-8)

            def loss(weights: dict[str, Array]) -> Array:
                log_prob = jax.nn.log_softmax(logits(weights, observation))
                action_log_prob = jnp.take_along_axis(log_prob, action[..., None], -1)[..., 0].sum(-1)
                return -(action_log_prob * advantage).mean()

            gradient = comm.average_gradients(jax.grad(loss)(shared["weights"]))
            change, adam = ADAM.update(gradient, shared["adam"])
            weights = optax.apply_updates(shared["weights"], change)
            return {"weights": weights, "adam": adam, "return": mean}, own + EPISODES

        step = comm.spmd(update)
        shared = comm.replicate(initial(stream_seed(SEED, "init")) | {"return": jnp.zeros(())})
        share = comm.world.shard_size(EPISODES, "EPISODES")  # randomness is keyed by the episode, not by a rank
        own = comm.shard([jnp.arange(share) + shard * share for shard in comm.world.shards])
        for number in range(1, args.updates + 1):
            shared, own = step(shared, own)
            if number % 10 == 0 and comm.world.rank == 0:
                print(f"update {number}: mean return {float(comm.read(shared)['return']):.3f}", flush=True)
        comm.check_equal({"hidden": comm.read(shared)["weights"]["hidden"]})
        return float(comm.read(shared)["return"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4, 8, 16))  # they divide EPISODES
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print(*(spawn(train, args.ranks, (args,)) if args.ranks > 1 else [train(0, args)]))
