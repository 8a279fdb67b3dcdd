"""What the tests of the seams do differently in torch; `jax_seams.py` has the same names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from running import Job, train_one
from seam_world import BOUND_S, SPEC
from torch.distributions import Categorical, Normal

from lockstep import World
from lockstep.envs.spec import EnvSpec
from lockstep.run import Run
from lockstep.torch import dqn, ppo, sac, td3
from lockstep.torch.comm import Comm
from lockstep.torch.export import save_policy

__all__ = ["RUN_BOUND_S", "dqn", "ppo", "sac", "save_policy", "td3"]

RUN_BOUND_S = BOUND_S  # of collectives in whole runs


def prepare(rank: int) -> None:
    torch.set_num_threads(1)


def train(world: World, folder: str, run: Run, **kwargs: Any) -> Any:
    return train_one(world.rank, Job(run, folder, world.port, **kwargs))


@contextmanager
def ppo_learner(world: World, run: Run, seed: int = 0, spec: EnvSpec = SPEC) -> Iterator[ppo.PPO]:
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield ppo.PPO(run, ppo.Policy(spec, run.network, seed=seed), comm)


@contextmanager
def dqn_learner(world: World, run: Run, seed: int = 0) -> Iterator[dqn.DQN]:
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield dqn.DQN(run, dqn.QPolicy(SPEC, run.network, run.algorithm, seed=seed), comm)


@contextmanager
def actor_critic_learner(world: World, run: Run, spec: EnvSpec, seed: int = 0) -> Iterator[sac.SAC | td3.TD3]:
    learner = sac.SAC if run.algo == "sac" else td3.TD3
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        yield learner(run, sac.ContinuousPolicy(spec, run.network, run.algorithm, seed=seed), comm)


def parameters(policy: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in policy.named_parameters()}


def record_loss(learner: ppo.PPO, seen: list[dict[str, Any]]) -> None:
    """Have each gradient step append its local sums and the first number of each of its observations."""
    loss = learner._backward._loss

    def recorded(part: Any) -> Any:
        value, sums = loss(part)
        seen.append({"sums": sums.tolist(), "ids": part.observation[:, 0].tolist()})
        return value, sums

    learner._backward._loss = recorded


def copied(observation: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For `symmetry`."""
    return observation.repeat(3, 1), action.repeat(3)


def ppo_state(learner: ppo.PPO) -> dict[str, Any]:
    return {
        "gradient": learner.flat.gradient.numpy().copy(),
        "learning_rate": float(learner.learning_rate),
        "steps": int(learner.optimizer.steps),
        "values": learner.flat.params.detach().numpy().copy(),
        "metrics": learner.metrics.read(),
    }


def dqn_gradient(learner: dqn.DQN) -> np.ndarray:
    return learner.flat.gradient.numpy().copy()


def ppo_networks(learner: ppo.PPO) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters."""
    return {"policy": parameters(learner.policy)}


def dqn_networks(learner: dqn.DQN) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters, and all arrays that are compared between ranks."""
    shared = {name: tensor.numpy(force=True).copy() for name, tensor in learner.shared_tensors().items()}
    return {"policy": parameters(learner.policy), "target": parameters(learner.target), "shared": shared}


def actor_critic_gradient(learner: sac.SAC | td3.TD3) -> dict[str, np.ndarray]:
    """The gradients of critics, actor and temperature, each as one vector."""
    names = ("critics", "actor", "temperature") if isinstance(learner, sac.SAC) else ("critics", "actor")
    parts = [gradient_by_part_of(learner.policy, name) for name in names]
    return {name: gradient for part in parts for name, gradient in part.items()}


def actor_critic_networks(learner: sac.SAC | td3.TD3) -> dict[str, dict[str, np.ndarray]]:
    """Every copy of the parameters, and all arrays that are compared between ranks."""
    shared = {name: tensor.numpy(force=True).copy() for name, tensor in learner.shared_tensors().items()}
    prefix = "critics." if isinstance(learner, sac.SAC) else ""  # TD3 has a target of the actor, too
    target = {f"{prefix}{name}": p for name, p in parameters(learner.target).items()}
    return {"policy": parameters(learner.policy), "target": target, "shared": shared}


def broadcast_module(world: World) -> dict[str, np.ndarray]:
    class Buffered(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((2,), float(world.rank)))
            self.register_buffer("mean", torch.full((3,), float(world.rank)))
            self.register_buffer("count", torch.tensor(world.rank))

    module = Buffered()
    with Comm(world, device="cpu", timeout_s=BOUND_S) as comm:
        comm.broadcast_(module)
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


gradient_step = actor_critic_step = (Comm, "average_gradients_")
"""What is called once for each gradient step of DQN, and of SAC."""


# -- a plain reference: one process, the whole batch, the equations of the papers --------------------------------------


def ppo_values(run: Run, observation: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return ppo.Policy(SPEC, run.network, seed=0)(torch.from_numpy(observation))[1].double().numpy()


def ppo_gradient(
    run: Run, observation: np.ndarray, action: np.ndarray, advantage: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """The gradient of PPO's loss at its first step, not clipped."""
    policy = ppo.Policy(SPEC, run.network, seed=0)
    parameters, value = policy(torch.from_numpy(observation))
    distribution, chosen = Categorical(logits=parameters), torch.from_numpy(action)
    log_prob = distribution.log_prob(chosen)
    ratio = (log_prob - log_prob.detach()).exp()
    advantages, targets = torch.from_numpy(advantage).float(), torch.from_numpy(target).float()
    value_loss = run.algorithm.value_coef * 0.5 * (value - targets).square().mean()
    entropy = run.algorithm.entropy_coef * distribution.entropy().mean()
    (value_loss - (ratio * advantages).mean() - entropy).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()]).numpy()


def dqn_loss_and_gradient(run: Run, batch: dict[str, np.ndarray], weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The Huber loss of the temporal differences, and its gradient, not clipped."""
    policy = dqn.QPolicy(SPEC, run.network, run.algorithm, seed=0)
    columns = {name: torch.from_numpy(column) for name, column in batch.items()}
    q = policy(columns["observation"])[0].gather(1, columns["action"].long()[:, None])[:, 0]
    with torch.no_grad():
        following = policy(columns["next_observation"])[0].max(1).values
        target = columns["return_"] + columns["discount"] * following
    loss = (torch.from_numpy(weight).float() * torch.nn.functional.huber_loss(q, target, reduction="none")).mean()
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.reshape(-1) for p in policy.parameters()]).numpy()


def actor_critic_reference(
    run: Run, batch: dict[str, np.ndarray], weight: np.ndarray
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Means of the losses of SAC or TD3 in their first step, and the gradients of each part, not clipped."""
    from actor_critic_seams import SPEC as CONTINUOUS

    c = run.algorithm
    policy = sac.ContinuousPolicy(CONTINUOUS, run.network, c, seed=0)
    columns = {name: torch.from_numpy(column) for name, column in batch.items()}
    observation, noise = columns["observation"], columns["noise"]
    low, high = torch.tensor(CONTINUOUS.action.low), torch.tensor(CONTINUOUS.action.high)
    action = 2 * (columns["action"] - low) / (high - low) - 1

    def drawn(observation: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = policy.actor(observation).chunk(2, -1)
        normal = Normal(mean, log_std.exp())
        u = mean + normal.stddev * noise
        return u.tanh(), (normal.log_prob(u) - (1 - u.tanh().square()).log()).sum(-1)

    with torch.no_grad():
        if run.algo == "sac":
            following, next_log_prob = drawn(columns["next_observation"], noise[:, 0])
        else:
            smoothing = (c.target_noise * noise[:, 0]).clamp(-c.noise_clip, c.noise_clip)
            following = (policy.actor(columns["next_observation"]).tanh() + smoothing).clamp(-1, 1)
            next_log_prob = 0.0
        value = policy.critics(columns["next_observation"], following).min(0).values - next_log_prob  # alpha is 1
        target = columns["return_"] + columns["discount"] * value
    q = policy.critics(observation, action)
    value_loss = (torch.from_numpy(weight).float() * (target - q).square().sum(0)).mean() / 2
    value_loss.backward()
    gradients = gradient_by_part_of(policy, "critics")
    policy.zero_grad()
    if run.algo == "sac":
        chosen, log_prob = drawn(observation, noise[:, 1])
        actor_loss = (log_prob - policy.critics(observation, chosen).min(0).values).mean()
        entropy = -float(log_prob.mean().detach())
        gradients["temperature"] = np.array([entropy + 2.0], np.float32)  # target entropy: -2
        losses = {"policy/entropy": entropy}
    else:
        actor_loss, losses = -policy.critics(observation, policy.actor(observation).tanh())[0].mean(), {}
    actor_loss.backward()
    losses |= {"loss/value": float(value_loss.detach()), "loss/policy": float(actor_loss.detach())}
    return losses | {"value/target": float(target.mean())}, gradients | gradient_by_part_of(policy, "actor")


def gradient_by_part_of(policy: torch.nn.Module, part: str) -> dict[str, np.ndarray]:
    gradients = [p.grad.flatten() for p in getattr(policy, part).parameters()]
    return {part: torch.cat(gradients).numpy().copy()}
