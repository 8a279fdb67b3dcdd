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
    before = mean + normal.stddev * torch.from_numpy(noise.standard_normal(mean.shape, np.float32))
    log_slope = 2 * (np.log(2) - before - nn.functional.softplus(-2 * before))  # log(1 - tanh^2), stable for large x
    return before.tanh(), (normal.log_prob(before) - log_slope).sum(-1)


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
            action = draw(actor, torch.from_numpy(observed), noise)[0].detach() * scale
            observation, reward, terminated, truncated, final = env.step(action.numpy())
            replay.add(action.numpy(), reward, terminated, truncated, observation, final)
            observed, returns = observation.copy(), returns + reward.sum() / num_envs
            if step >= LEARNING_STARTS:
                drawn = replay.sample(rows, noise)
                arrays = (drawn.observation, drawn.action, drawn.return_, drawn.next_observation, drawn.discount)
                now, taken, gained, after, discount = map(torch.from_numpy, arrays)
                with torch.no_grad():  # y = r + gamma (min Q'(s', a') - alpha log pi(a'|s'))
                    following, log_prob = draw(actor, after, noise)
                    soft_value = values(target, after, following).amin(0) - log_alpha.exp() * log_prob
                critic_adam.zero_grad()
                wanted = (gained + discount * soft_value).expand(2, -1)
                nn.functional.mse_loss(values(critics, now, taken / scale), wanted).backward()
                comm.average_gradients_(critics)  # the mean of the global batch: parameters stay equal on all ranks
                critic_adam.step()
                actor_adam.zero_grad()
                proposed, log_prob = draw(actor, now, noise)
                policy_loss = (log_alpha.exp().detach() * log_prob - values(critics, now, proposed).amin(0)).mean()
                (policy_loss - log_alpha * (log_prob.detach() - dimensions).mean()).backward()  # entropy target -D
                comm.average_gradients_(actor_side)
                actor_adam.step()
                for mine, other in zip(target.parameters(), critics.parameters(), strict=True):
                    mine.data.lerp_(other.data, TAU)
            if step % 4_000 == 0:
                mean, returns = float(comm.mean(torch.tensor(returns))) * NUM_ENVS / 20, 0.0  # 20 episodes of 200 steps
                if world.rank == 0:
                    print(f"{step} steps: mean return {mean:.0f}", flush=True)
        comm.check_equal(actor)
        return {"parameters": fingerprint({k: v.numpy() for k, v in actor.state_dict().items()}), "kept": replay.size}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=40_000)
    given = parser.parse_args()
    print(*(spawn(train, given.ranks, (given,)) if given.ranks > 1 else [train(0, given)]), sep="\n")
