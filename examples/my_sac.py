"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905) from Lockstep's parts, on Pendulum-v1.

    python examples/my_sac.py               one rank
    python examples/my_sac.py --ranks 2     two, each with half of the environments and of the replay

Counts are of all ranks together. N rows, O observation, D dimensions of the action.
"""

import argparse
import copy

import numpy as np
import torch
from torch import Tensor, nn

from lockstep import Comm, ConfigError, EnvConfig, World, fingerprint, spawn, stream, stream_seed
from lockstep.envs import make_vector_env
from lockstep.experience import Replay

SEED, GAMMA, TAU, RATE = 0, 0.99, 0.005, 1e-3
NUM_ENVS, BATCH_SIZE, CAPACITY, LEARNING_STARTS = 4, 256, 100_000, 1_000


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def values(critics: nn.ModuleList, observation: Tensor, action: Tensor) -> Tensor:
    """The estimates of all critics [2, N] for observations [N, O] and actions [N, D]."""
    return torch.stack([critic(torch.cat([observation, action], -1)).squeeze(-1) for critic in critics])


def draw(actor: nn.Module, observation: Tensor, noise: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Actions in (-1, 1) [N, D] of a squashed Gaussian, and log pi(a|s) [N] (appendix C of the paper)."""
    mean, log_std = actor(observation).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    pre_tanh = mean + normal.stddev * torch.from_numpy(noise.standard_normal(mean.shape, np.float32))
    log_slope = 2 * (np.log(2) - pre_tanh - nn.functional.softplus(-2 * pre_tanh))  # a stable log(1 - tanh^2)
    return pre_tanh.tanh(), (normal.log_prob(pre_tanh) - log_slope).sum(-1)


def train(rank: int, args: argparse.Namespace) -> dict:
    """The whole training, run by every rank."""
    world = World.from_environment()
    if NUM_ENVS % world.size:
        raise ConfigError(f"{NUM_ENVS} environments do not divide among {world.size} ranks; use 1, 2 or 4 ranks")
    num_envs, rows, returns = NUM_ENVS // world.size, BATCH_SIZE // world.size, 0.0
    env = make_vector_env("Pendulum-v1", EnvConfig(), num_envs)
    observed = env.reset([stream_seed(SEED, "env", world.rank * num_envs + i) for i in range(num_envs)]).copy()
    replay = Replay(env.spec, num_envs, CAPACITY // world.size, n_step=1, gamma=GAMMA, prioritized=False)
    replay.begin(observed)
    noise = stream(SEED, "noise", world.rank)  # each rank explores and samples by itself
    torch.manual_seed(stream_seed(SEED, "init"))
    size, dimensions, scale = env.spec.observation_size, env.spec.action.width, torch.tensor(env.spec.action.high)
    actor, critics = mlp(size, 2 * dimensions), nn.ModuleList(mlp(size + dimensions, 1) for _ in range(2))
    log_alpha, target = nn.Parameter(torch.zeros(())), copy.deepcopy(critics)
    actor_side = [*actor.parameters(), log_alpha]
    actor_adam, critic_adam = torch.optim.Adam(actor_side, RATE), torch.optim.Adam(critics.parameters(), RATE)
    with Comm(world, device="cpu") as comm:
        comm.broadcast_(nn.ModuleList([actor, critics, target]))  # all ranks start from the parameters of rank 0
        for step in range(NUM_ENVS, args.total_steps + 1, NUM_ENVS):
            env_action = (draw(actor, torch.from_numpy(observed), noise)[0].detach() * scale).numpy()
            env_observation, env_reward, terminated, truncated, final = env.step(env_action)
            replay.add(env_action, env_reward, terminated, truncated, env_observation, final)
            observed, returns = env_observation.copy(), returns + env_reward.sum() / num_envs
            if step >= LEARNING_STARTS:
                batch, alpha = replay.sample(rows, noise), log_alpha.exp().detach()
                arrays = (batch.observation, batch.action, batch.return_, batch.next_observation, batch.discount)
                observation, action, reward, next_observation, discount = map(torch.from_numpy, arrays)
                with torch.no_grad():  # y = r + gamma (min Q'(s', a') - alpha log pi(a'|s'))
                    next_action, log_prob = draw(actor, next_observation, noise)
                    soft_value = values(target, next_observation, next_action).amin(0) - alpha * log_prob
                critic_adam.zero_grad()
                target_q = (reward + discount * soft_value).expand(2, -1)
                nn.functional.mse_loss(values(critics, observation, action / scale), target_q).backward()
                comm.average_gradients_(critics)  # the mean of the global batch: parameters stay equal on all ranks
                critic_adam.step()
                actor_adam.zero_grad()
                policy_action, log_prob = draw(actor, observation, noise)
                policy_loss = (alpha * log_prob - values(critics, observation, policy_action).amin(0)).mean()
                (policy_loss - log_alpha * (log_prob.detach() - dimensions).mean()).backward()  # entropy target -D
                comm.average_gradients_(actor_side)
                actor_adam.step()
                for target_parameter, parameter in zip(target.parameters(), critics.parameters(), strict=True):
                    target_parameter.data.lerp_(parameter.data, TAU)
            if step % 4_000 == 0:
                mean, returns = float(comm.mean(torch.tensor(returns))) * NUM_ENVS / 20, 0.0  # 20 episodes of 200 steps
                if world.rank == 0:
                    print(f"{step} steps: mean return {mean:.0f}", flush=True)
        comm.check_equal(actor)
        return {"parameters": fingerprint({k: v.numpy() for k, v in actor.state_dict().items()}), "kept": replay.size}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4))
    parser.add_argument("--total-steps", type=int, default=40_000)
    args = parser.parse_args()
    print(*(spawn(train, args.ranks, (args,)) if args.ranks > 1 else [train(0, args)]), sep="\n")
