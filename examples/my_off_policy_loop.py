"""Your own off-policy loop, made data-parallel: Q-learning with replay on CartPole-v1. Changes: [1] to [6].

    python examples/my_off_policy_loop.py                 alone: the same code, no process group
    python examples/my_off_policy_loop.py --ranks 2       the same steps, up to the rounding of sums

All counts are of all ranks together. Every process fills and samples the replay of its own shards.
"""

import argparse
import copy

import numpy as np
import torch
from torch import nn

from lockstep import Comm, EnvConfig, World, spawn, stream, stream_seed
from lockstep.envs import VectorEnv, make_vector_env
from lockstep.experience import Replay, Transitions

SEED, GAMMA, SOLVED = 0, 0.99, 200.0  # SOLVED: mean length of the episodes of training, which explore
NUM_SHARDS, NUM_ENVS, BATCH_SIZE, CAPACITY = 2, 8, 128, 50_000
LEARNING_STARTS, EPSILON_STEPS, TARGET_EVERY, LOG_EVERY = 1_000, 8_000, 400, 2_000  # steps of all environments


class Shard:
    """Environments, replay and random streams of one shard. Nothing here is keyed by a rank."""

    def __init__(self, shard: int, num_envs: int, capacity: int) -> None:
        self.env: VectorEnv = make_vector_env("CartPole-v1", EnvConfig(), num_envs)
        seeds = [stream_seed(SEED, "env", shard * num_envs + i) for i in range(num_envs)]
        self.observation = self.env.reset(seeds).copy()
        self.replay = Replay(self.env.spec, num_envs, capacity, n_step=3, gamma=GAMMA, prioritized=False)
        self.replay.begin(self.observation)
        self.action_stream, self.sample_stream = stream(SEED, "action", shard), stream(SEED, "sample", shard)

    def step(self, q: nn.Module, epsilon: float) -> int:
        """One step of every environment; each explores independently. Returns how many episodes have ended."""
        with torch.no_grad():
            greedy = q(torch.from_numpy(self.observation)).argmax(-1).numpy()
        random = self.action_stream.integers(2, size=len(greedy))
        action = np.where(self.action_stream.random(len(greedy)) < epsilon, random, greedy)
        observation, reward, terminated, truncated, final = self.env.step(action)
        # The replay skips rows that only reset, and keeps the true last observation of a truncated episode.
        self.replay.add(action, reward, terminated, truncated, observation, final)
        self.observation = observation.copy()
        return int((terminated | truncated).sum())


def loss(q: nn.Module, target: nn.Module, batch: Transitions) -> torch.Tensor:
    """Double Q-learning (van Hasselt et al., 2016), the mean over rows [N]; `batch` holds returns of up to 3 steps."""
    arrays = (batch.observation, batch.action, batch.return_, batch.next_observation, batch.discount)
    observation, action, reward, next_observation, discount = map(torch.from_numpy, arrays)
    with torch.no_grad():  # `discount` is 0 where the episode terminated, else gamma to the number of steps
        best_action = q(next_observation).argmax(-1, keepdim=True)
        td_target = reward + discount * target(next_observation).gather(1, best_action).squeeze(1)
    return nn.functional.smooth_l1_loss(q(observation).gather(1, action[:, None]).squeeze(1), td_target)


def train(rank: int, args: argparse.Namespace) -> dict:
    """The whole training, run by every rank."""
    world = World.from_environment().with_shards(NUM_SHARDS)
    num_envs, capacity, rows = (count // NUM_SHARDS for count in (NUM_ENVS, CAPACITY, BATCH_SIZE))
    with Comm(world, device="cpu") as comm:  # [1] the collectives of all ranks
        torch.manual_seed(stream_seed(SEED, "init"))
        q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        comm.broadcast_(q)  # [2] all ranks start from the parameters of rank 0; the target network is a copy
        target = copy.deepcopy(q)
        optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
        shards = [Shard(shard, num_envs, capacity) for shard in world.shards]  # [3] each shard has its own data
        length, ended = 0.0, 0
        for steps in range(NUM_ENVS, args.total_steps + 1, NUM_ENVS):
            epsilon = max(0.02, 1.0 - steps / EPSILON_STEPS)  # [4] schedules follow global steps: equal on all ranks
            ended += sum(shard.step(q, epsilon) for shard in shards)
            if steps >= LEARNING_STARTS:  # a global count, so that all ranks start learning together
                optimizer.zero_grad()
                for shard in shards:  # each gives an equal part of the global batch
                    (loss(q, target, shard.replay.sample(rows, shard.sample_stream)) / len(shards)).backward()
                comm.average_gradients_(q, weight=len(shards))  # [5] the mean of the global batch; clip after
                nn.utils.clip_grad_norm_(q.parameters(), 10.0)
                optimizer.step()
            if steps % TARGET_EVERY == 0:
                target.load_state_dict(q.state_dict())
            if steps % LOG_EVERY == 0:  # [6] a decision from a number of all ranks
                length, ended = LOG_EVERY / max(1.0, comm.sum(torch.tensor(float(ended))).item()), 0
                if world.rank == 0:
                    print(f"{steps} steps: mean length of an episode {length:.0f}", flush=True)
                if length >= SOLVED:
                    break
        comm.check_equal(q)
        kept = [shard.replay.size for shard in shards]
        return {"length": length, "kept": kept, "parameters": q.state_dict()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=range(1, NUM_SHARDS + 1))
    parser.add_argument("--total-steps", type=int, default=60_000)
    args = parser.parse_args()
    spawn(train, args.ranks, (args,)) if args.ranks > 1 else train(0, args)
