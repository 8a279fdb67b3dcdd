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
from lockstep.envs.spec import EnvSpec
from lockstep.jax import dqn, ppo, sac, td3
from lockstep.jax.comm import Comm
from lockstep.jax.export import save_policy
from lockstep.jax.flat import FlatParameters
from lockstep.run import Run

__all__ = ["RUN_BOUND_S", "dqn", "ppo", "sac", "save_policy", "td3"]

RUN_BOUND_S = 30.0  # of collectives in whole runs: the first one waits for what the other rank compiles


def prepare(rank: int) -> None:
    keep_compiled(rank)


def train(world: World, folder: str, run: Run, **kwargs: Any) -> Any:
    return train_one(world.rank, in_jax(Job(run, folder, world.port, **kwargs), 1))


@contextmanager
def ppo_learner(world: World, run: Run, seed: int = 0, spec: EnvSpec = SPEC) -> Iterator[ppo.PPO]:
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield ppo.PPO(run, ppo.Policy(spec, run.network, seed=seed), comm)


@contextmanager
def dqn_learner(world: World, run: Run, seed: int = 0) -> Iterator[dqn.DQN]:
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield dqn.DQN(run, dqn.QPolicy(SPEC, run.network, run.algorithm, seed=seed), comm)


@contextmanager
def actor_critic_learner(world: World, run: Run, spec: EnvSpec, seed: int = 0) -> Iterator[sac.SAC | td3.TD3]:
    learner = sac.SAC if run.algo == "sac" else td3.TD3
    with Comm(world, device="cpu", timeout_s=4 * BOUND_S) as comm:
        yield learner(run, sac.ContinuousPolicy(spec, run.network, run.algorithm, seed=seed), comm)


def parameters(policy: Any) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in policy.params.items()}


def record_loss(learner: ppo.PPO, seen: list[dict[str, Any]]) -> None:
    """Have each gradient step append its local sums and the first number of each of its observations."""
    loss = learner.loss

    def record(sums: Any, ids: Any) -> None:
        seen.append({"sums": sums.tolist(), "ids": ids.tolist()})

    def recorded(params: Any, part: Any, sequence_length: int = 1) -> Any:
        value, sums = loss(params, part, sequence_length)
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
        "values": read(learner.state.params),
        "metrics": learner.read_metrics(),
    }


def dqn_gradient(learner: dqn.DQN) -> np.ndarray:
    return 10.0 * learner.shared_arrays()["optimizer.moment"]


def ppo_networks(learner: ppo.PPO) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters."""
    learned = learner.flat.split(learner.comm.read(learner.state.params))
    return {"policy": parameters(learner.policy), "learned": learned}


def dqn_networks(learner: dqn.DQN) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters, and all arrays that are compared between ranks."""
    state = learner.comm.read(learner.state)
    return {
        "policy": parameters(learner.policy),
        "learned": {name: np.array(array) for name, array in learner.flat.split(state.params).items()},
        "target": {name: np.array(array) for name, array in learner.flat.split(state.target_params).items()},
        "shared": learner.shared_arrays(),
    }


def actor_critic_gradient(learner: sac.SAC | td3.TD3) -> dict[str, np.ndarray]:
    """The gradients of critics, actor and temperature, each as one vector, after one step."""
    state = learner.comm.read(learner.state)
    named = {f"critics.{name}": g for name, g in learner.flat_critics.split(state.critic_optimizer.moment).items()}
    return by_part(named | learner.flat_actor.split(state.actor_optimizer.moment), scale=10.0)


def by_part(named: dict[str, Any], scale: float = 1.0) -> dict[str, np.ndarray]:
    """Gradients as one vector for each part of the policy, in the order of names."""
    parts: dict[str, list[np.ndarray]] = {}
    for name in sorted(named):
        parts.setdefault(name.partition(".")[0], []).append(scale * np.ravel(named[name]))
    return {part: np.concatenate(vectors) for part, vectors in parts.items()}


def actor_critic_networks(learner: sac.SAC | td3.TD3) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters, and all arrays that are compared between ranks."""
    target = learner.flat_target.split(learner.comm.read(learner.state).target_params)
    prefix = "critics." if isinstance(learner, sac.SAC) else ""  # TD3 has a target of the actor, too
    return {
        "policy": parameters(learner.policy),
        "target": {f"{prefix}{name}": np.array(value) for name, value in target.items()},
        "shared": learner.shared_arrays(),
    }


gradient_step = (dqn.DQN, "_parts")
"""What is called once for each gradient step of DQN."""
actor_critic_step = (sac.SAC, "_parts")
"""What is called once for each gradient step of SAC."""


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


def actor_critic_reference(
    run: Run, batch: dict[str, np.ndarray], weight: np.ndarray
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Means of the losses of SAC or TD3 in their first step, and the gradients of each part, not clipped."""
    from actor_critic_seams import SPEC as CONTINUOUS

    c, soft = run.algorithm, run.algo == "sac"
    params = {name: jnp.asarray(p) for name, p in sac.ContinuousPolicy(CONTINUOUS, run.network, c).params.items()}
    observation, noise = batch["observation"], batch["noise"]
    low, high = np.array(CONTINUOUS.action.low), np.array(CONTINUOUS.action.high)
    action = (2 * (batch["action"] - low) / (high - low) - 1).astype(np.float32)

    def network(params: Any, part: str, x: Any) -> Any:
        """Linear layers with ReLU between them; those of critics are stacked."""
        count = len(run.network.hidden)
        for i in range(count + 1):
            weight, bias = params[f"{part}.layers.{i}.weight"], params[f"{part}.layers.{i}.bias"]
            x = jnp.einsum("...ni,...oi->...no", x, weight) + bias[..., None, :]
            x = jnp.maximum(x, 0.0) if i < count else x
        return x

    def q_of(params: Any, observation: Any, action: Any) -> Any:
        return network(params, "critics", jnp.concatenate([observation, action], -1)[None])[..., 0]

    def drawn(params: Any, observation: Any, noise: Any) -> tuple[Any, Any]:
        mean, log_std = jnp.split(network(params, "actor", observation), 2, -1)
        u = mean + jnp.exp(log_std) * noise
        log_normal = jax.scipy.stats.norm.logpdf(u, mean, jnp.exp(log_std))
        return jnp.tanh(u), (log_normal - jnp.log(1 - jnp.tanh(u) ** 2)).sum(-1)

    if soft:
        following, next_log_prob = drawn(params, batch["next_observation"], noise[:, 0])
    else:
        smoothing = jnp.clip(c.target_noise * noise[:, 0], -c.noise_clip, c.noise_clip)
        following = jnp.clip(jnp.tanh(network(params, "actor", batch["next_observation"])) + smoothing, -1, 1)
        next_log_prob = jnp.zeros(len(noise))
    value = q_of(params, batch["next_observation"], following).min(0) - next_log_prob  # alpha is 1
    target = batch["return_"] + batch["discount"] * value

    def value_loss(params: Any) -> Any:
        error = target[None] - q_of(params, observation, action)
        return (jnp.asarray(weight, jnp.float32) * (error**2).sum(0)).mean() / 2

    def actor_loss(actor: Any) -> tuple[Any, Any]:
        if not soft:
            return -q_of(params, observation, jnp.tanh(network(actor, "actor", observation)))[0].mean(), 0.0
        chosen, log_prob = drawn(actor, observation, noise[:, 1])
        return (log_prob - q_of(params, observation, chosen).min(0)).mean(), -log_prob.mean()

    of_critics, gradient = jax.value_and_grad(value_loss)(params)
    (of_actor, entropy), actor_gradient = jax.value_and_grad(actor_loss, has_aux=True)(params)
    losses = {"loss/value": of_critics, "loss/policy": of_actor, "value/target": target.mean()}
    gradients = {name: g for name, g in gradient.items() if name.startswith("critics.")}
    gradients |= {name: g for name, g in actor_gradient.items() if name.startswith("actor.")}
    if soft:
        losses["policy/entropy"] = entropy
        gradients["temperature.log_alpha"] = jnp.asarray(entropy + 2.0)  # target entropy: -2
    return {name: float(value) for name, value in losses.items()}, by_part(gradients)
