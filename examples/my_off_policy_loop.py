"""Your own off-policy loop, made data-parallel: Q-learning with replay on CartPole-v1. Changes: [1] to [6].

    python examples/my_off_policy_loop.py                        alone: the same code, no process group
    python examples/my_off_policy_loop.py --ranks 2              two ranks, started by lockstep.spawn
    lockstep launch --nproc-per-node 2 examples/my_off_policy_loop.py
    python -m torch.distributed.run --nproc_per_node=2 examples/my_off_policy_loop.py

Network, loss, optimizer and loop are in this file; Lockstep provides environments, replay, streams and `Comm`.
Every process fills and samples the replay of its own shards. All counts are global. A run cut into two shards takes
the same steps, up to the rounding of sums, on one rank and on two: `--num-shards 2`.
"""

import argparse
import copy

import numpy as np
import torch
from torch import Tensor, nn

from lockstep import Comm, EnvConfig, World, fingerprint, spawn, stream, stream_seed
from lockstep.envs import VectorEnv, make_vector_env
from lockstep.experience import Replay, Transitions

SEED, GAMMA, SOLVED = 0, 0.99, 475.0
NUM_ENVS, BATCH_SIZE, CAPACITY = 8, 128, 50_000  # of all ranks together
LEARNING_STARTS, EPSILON_STEPS, TARGET_EVERY = 1_000, 8_000, 50  # the first two in steps of all environments


class Shard:
    """Environments, replay and random streams of one shard. Nothing here is keyed by a rank."""

    def __init__(self, shard: int, num_envs: int, capacity: int) -> None:
        self.env: VectorEnv = make_vector_env("CartPole-v1", EnvConfig(), num_envs)
        first = shard * num_envs
        self.observation = self.env.reset([stream_seed(SEED, "env", first + i) for i in range(num_envs)]).copy()
        self.replay = Replay(self.env.spec, num_envs, capacity, n_step=3, gamma=GAMMA, prioritized=False)
        self.replay.begin(self.observation)
        self.actions, self.draws = stream(SEED, "action", shard), stream(SEED, "sample", shard)
        self.first_data = ""

    def step(self, q: nn.Module, epsilon: float) -> None:
        """One step of every environment; each explores independently."""
        greedy = greedy_action(q, self.observation)
        random = self.actions.integers(2, size=len(greedy))
        action = np.where(self.actions.random(len(greedy)) < epsilon, random, greedy)
        observation, reward, terminated, truncated, final = self.env.step(action)
        # The replay skips rows that only reset, and keeps the true last observation of a truncated episode.
        self.replay.add(action, reward, terminated, truncated, observation, final)
        self.observation = observation.copy()
        self.first_data = self.first_data or fingerprint({"observation": self.observation, "action": action})


@torch.no_grad()
def greedy_action(q: nn.Module, observation: np.ndarray) -> np.ndarray:
    """The actions [B] of highest value."""
    device = next(q.parameters()).device
    return q(torch.from_numpy(observation).to(device)).argmax(-1).cpu().numpy()


def loss(q: nn.Module, target: nn.Module, drawn: Transitions) -> Tensor:
    """Double Q-learning (van Hasselt et al., 2016), the mean over rows [N]; `drawn` holds returns of up to 3 steps."""
    device = next(q.parameters()).device
    observation, action, reward, after, discount = (
        torch.from_numpy(x).to(device)
        for x in (drawn.observation, drawn.action, drawn.return_, drawn.next_observation, drawn.discount)
    )
    with torch.no_grad():
        best = q(after).argmax(-1, keepdim=True)
        # `discount` is 0 where the episode terminated, elsewhere gamma to the number of steps that were really taken.
        wanted = reward + discount * target(after).gather(1, best).squeeze(1)
    value = q(observation).gather(1, action[:, None]).squeeze(1)
    return nn.functional.smooth_l1_loss(value, wanted)


def evaluate(q: nn.Module) -> float:
    """Mean return of 10 greedy episodes that no training episode shares a seed with."""
    env = make_vector_env("CartPole-v1", EnvConfig(), 10)
    observation = env.reset([stream_seed(SEED, "evaluate", i) for i in range(10)])
    total, running = np.zeros(10), np.ones(10, bool)
    while running.any():
        observation, reward, terminated, truncated, _ = env.step(greedy_action(q, observation))
        total += reward * running
        running &= ~(terminated | truncated)
    env.close()
    return float(total.mean())


def train(world: World, args: argparse.Namespace) -> list[dict]:
    """The whole training, run by every rank. Returns a summary of each rank."""
    world = world.with_shards(args.num_shards)
    num_envs, capacity = world.shard_size(NUM_ENVS, "NUM_ENVS"), world.shard_size(CAPACITY, "CAPACITY")
    rows = world.shard_size(BATCH_SIZE, "BATCH_SIZE")
    with Comm(world, device=args.device) as comm:  # [1] the collectives of all ranks
        torch.manual_seed(stream_seed(SEED, "init"))
        q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        q.to(comm.device)
        comm.broadcast_(q)  # [2] all ranks start from the parameters of rank 0; the target network is a copy
        target = copy.deepcopy(q)
        optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
        shards = [Shard(shard, num_envs, capacity) for shard in world.shards]  # [3] each shard has its own data
        steps, updates, score = 0, 0, 0.0
        while steps < args.total_steps and score < SOLVED:
            epsilon = max(0.05, 1.0 - steps / EPSILON_STEPS)  # [4] schedules follow global steps: equal on all ranks
            for shard in shards:
                shard.step(q, epsilon)
            steps += NUM_ENVS
            if steps < LEARNING_STARTS:  # a global count, so that all ranks start learning together
                continue
            optimizer.zero_grad()
            for shard in shards:  # each gives an equal part of the global batch
                (loss(q, target, shard.replay.sample(rows, shard.draws)) / len(shards)).backward()
            comm.average_gradients_(q.parameters(), weight=len(shards))  # [5] the mean of the global batch; clip after
            nn.utils.clip_grad_norm_(q.parameters(), 10.0)
            optimizer.step()
            updates += 1
            if updates % TARGET_EVERY == 0:
                target.load_state_dict(q.state_dict())
            if updates % 250 == 0:  # [6] a decision of rank 0, broadcast to all
                score = comm.broadcast_object(evaluate(q) if world.rank == 0 else None)
                if world.rank == 0:
                    print(f"{steps} steps, {updates} updates: mean return {score:.0f}", flush=True)
        comm.check_equal(q)
        comm.check_equal(target)
        parameters = fingerprint({name: p.detach().cpu().numpy() for name, p in q.named_parameters()})
        value = q(torch.zeros(1, 4, device=comm.device)).max().item()  # of the pole standing still
        mine = {"rank": world.rank, "params": parameters, "first_data": [shard.first_data for shard in shards]}
        mine |= {"steps": steps, "score": score, "value": value, "kept": [shard.replay.size for shard in shards]}
        ranks = comm.gather_object(mine)
        for shard in shards:
            shard.env.close()
        if world.rank == 0:
            print("\n".join("rank {rank}: parameters {params}, first data {first_data}".format(**r) for r in ranks))
    return ranks


def spawned(rank: int, args: argparse.Namespace) -> list[dict]:
    """A rank that lockstep.spawn started."""
    return train(World.from_environment(), args)


def main() -> None:
    """Start the requested ranks, or run as a rank that a launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--num-shards", type=int)
    parser.add_argument("--total-steps", type=int, default=60_000)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.ranks > 1:
        spawn(spawned, args.ranks, (args,))
    else:
        train(World.from_environment(), args)


if __name__ == "__main__":
    main()
