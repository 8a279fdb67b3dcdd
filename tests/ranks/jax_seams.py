"""What the tests of the seams do differently in JAX; `torch_seams.py` has the same names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_compiled import keep_compiled
from jax_running import in_jax, train_one
from running import Job
from seam_world import BOUND_S, SPEC

from lockstep import World
from lockstep.jax import dqn, ppo
from lockstep.jax.comm import Comm
from lockstep.jax.export import save_policy
from lockstep.jax.flat import FlatParameters
from lockstep.run import Run

__all__ = ["RUN_BOUND_S", "dqn", "ppo", "save_policy"]

RUN_BOUND_S = 30.0  # of collectives in whole runs: the first one waits for what the other rank compiles


def prepare(rank: int) -> None:
    keep_compiled(rank)


def train(world: World, folder: str, run: Run, **kwargs: Any) -> Any:
    return train_one(world.rank, in_jax(Job(run, folder, world.port, **kwargs), 1))


@contextmanager
def ppo_learner(world: World, run: Run, seed: int = 0) -> Iterator[ppo.PPO]:
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield ppo.PPO(run, ppo.Policy(SPEC, run.network, seed=seed), comm)


@contextmanager
def dqn_learner(world: World, run: Run, seed: int = 0) -> Iterator[dqn.DQN]:
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield dqn.DQN(run, dqn.QPolicy(SPEC, run.network, run.algorithm, seed=seed), comm)


def parameters(policy: Any) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in policy.params.items()}


def record_loss(learner: ppo.PPO, seen: list[dict[str, Any]]) -> None:
    """Have each gradient step append its local sums and the first number of each of its observations."""
    loss = learner.loss

    def record(sums: Any, ids: Any) -> None:
        seen.append({"sums": sums.tolist(), "ids": ids.tolist()})

    def recorded(params: Any, part: Any) -> Any:
        value, sums = loss(params, part)
        jax.debug.callback(record, sums, part.observation[:, 0], ordered=True)
        return value, sums

    learner.loss = recorded


def copied(observation: Any, action: Any) -> tuple[Any, Any]:
    """For `symmetry`."""
    return jnp.tile(observation, (3, 1)), jnp.tile(action, 3)


def ppo_state(learner: ppo.PPO) -> dict[str, Any]:
    jax.effects_barrier()  # every step has been recorded
    read = learner.comm.read
    return {
        "gradient": read(learner.state.optimizer.moment) / 0.1,  # after one step Adam's moment is a tenth of it
        "learning_rate": float(read(learner.state.learning_rate)),
        "steps": int(read(learner.state.optimizer.steps)),
        "values": read(learner.state.values),
        "metrics": learner.read_metrics(),
    }


def dqn_gradient(learner: dqn.DQN) -> np.ndarray:
    return 10.0 * learner.shared_arrays()["optimizer.moment"]


def ppo_networks(learner: ppo.PPO) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters."""
    learned = learner.flat.split(learner.comm.read(learner.state.values))
    return {"policy": parameters(learner.policy), "learned": learned}


def dqn_networks(learner: dqn.DQN) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters, and all arrays that are compared between ranks."""
    state = learner.comm.read(learner.state)
    return {
        "policy": parameters(learner.policy),
        "learned": {name: np.array(array) for name, array in learner.flat.split(state.values).items()},
        "target": {name: np.array(array) for name, array in learner.flat.split(state.target).items()},
        "shared": learner.shared_arrays(),
    }


gradient_step = (dqn.DQN, "_learn")
"""What is called once for each gradient step of DQN."""


# -- a plain reference: one process, the whole batch, the equations of the papers --------------------------------------


def ppo_values(run: Run, observation: np.ndarray) -> np.ndarray:
    policy = ppo.Policy(SPEC, run.network, seed=0)
    params = {name: jnp.asarray(array) for name, array in policy.params.items()}
    return np.asarray(policy.apply(params, observation)[1], np.float64)


def ppo_gradient(
    run: Run, observation: np.ndarray, action: np.ndarray, advantage: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """The gradient of PPO's loss at its first step, not clipped."""
    policy = ppo.Policy(SPEC, run.network, seed=0)
    advantages, targets = jnp.asarray(advantage, jnp.float32), jnp.asarray(target, jnp.float32)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        logits, value = policy.apply(params, observation)
        probability = jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)
        taken = probability[jnp.arange(len(action)), action]
        ratio = taken / jax.lax.stop_gradient(taken)
        entropy = -(probability * jnp.log(probability)).sum(-1)
        value_loss = 0.5 * run.algorithm.value_coef * jnp.square(value - targets).mean()
        return value_loss - (ratio * advantages).mean() - run.algorithm.entropy_coef * entropy.mean()

    found = jax.grad(loss)({name: jnp.asarray(array) for name, array in policy.params.items()})
    return np.concatenate([np.ravel(found[name]) for name in sorted(found)])


def dqn_loss_and_gradient(run: Run, batch: dict[str, np.ndarray], weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The Huber loss of the temporal differences, and its gradient, not clipped."""
    policy = dqn.QPolicy(SPEC, run.network, run.algorithm, seed=0)
    weights = jnp.asarray(weight, jnp.float32)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        q = policy.apply(params, batch["observation"])[0][np.arange(len(weights)), batch["action"].astype(np.int32)]
        following = policy.apply(policy.params, batch["next_observation"])[0].max(1)
        error = batch["return_"] + batch["discount"] * following - q
        size = jnp.abs(error)
        return (weights * jnp.where(size <= 1.0, 0.5 * error**2, size - 0.5)).mean()

    value, gradient = jax.value_and_grad(loss)(policy.params)
    return float(value), np.asarray(FlatParameters(policy.params).join(gradient))
