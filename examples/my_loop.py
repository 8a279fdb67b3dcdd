"""Your own training loop, made data-parallel: REINFORCE on CartPole-v1. What Lockstep adds is marked [1] to [6].

    python examples/my_loop.py                        alone: the same code, no process group
    python examples/my_loop.py --ranks 2              two ranks, started by lockstep.spawn
    python examples/my_loop.py --ranks 2 --ddp        gradients averaged by DistributedDataParallel
    python -m torch.distributed.run --nproc_per_node=2 examples/my_loop.py

All of them play the same episodes and take the same steps, up to the rounding of sums. Results go to runs/my_loop-TIME.
"""

import argparse
import contextlib
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep import Comm, RunDir, World, spawn, stream, stream_seed

SEED, EPISODES, GAMMA, SOLVED = 0, 16, 0.99, 475.0  # EPISODES per update, played by all ranks together


@torch.no_grad()
def play(env: gymnasium.Env, policy: nn.Module, seed: int, noise: np.random.Generator | None = None) -> list:
    """One episode: observations [N, 4], actions [N] and returns to go [N]. Greedy without `noise`."""
    device = next(policy.parameters()).device
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, ended = [], [], [], False
    while not ended:
        logits = policy(torch.from_numpy(observation).to(device)).cpu().numpy()
        actions.append(int(np.argmax(logits if noise is None else logits + noise.gumbel(size=2))))  # Gumbel-max trick
        observations.append(observation)
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        rewards.append(float(reward))
        ended = terminated or truncated
    for t in range(len(rewards) - 2, -1, -1):
        rewards[t] += GAMMA * rewards[t + 1]
    return [torch.tensor(np.array(observations)), torch.tensor(actions), torch.tensor(rewards)]


def evaluate(env: gymnasium.Env, policy: nn.Module) -> float:
    """Mean return of 20 greedy episodes that no training episode shares a seed with."""
    return float(np.mean([len(play(env, policy, stream_seed(SEED, "evaluate", i))[2]) for i in range(20)]))


def train(rank: int, args: argparse.Namespace) -> None:
    """The whole training, run by every rank."""
    torch.manual_seed(stream_seed(SEED, "init"))
    env, world, started, steps = gymnasium.make("CartPole-v1"), World.from_environment(), time.monotonic(), 0
    assert world.size <= EPISODES, f"{EPISODES} episodes are too few for {world.size} ranks"
    with contextlib.ExitStack() as stack:
        comm = stack.enter_context(Comm(world, device="cpu"))  # [1] the way to the others; "auto": a GPU per rank
        policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).to(comm.device)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
        comm.broadcast_(policy)  # [2] all start from the parameters of rank 0
        model = DistributedDataParallel(policy) if args.ddp and world.size > 1 else policy
        # [3] one writer for what is shared
        record = stack.enter_context(RunDir.create(None, vars(args), "my_loop")) if world.rank == 0 else None
        for update in range(1, args.updates + 1):
            # [4] data: each rank plays its part of the episodes. Randomness belongs to the episode, not to the rank.
            mine = range(update * EPISODES, (update + 1) * EPISODES)[world.rank :: world.size]
            episodes = [play(env, policy, stream_seed(SEED, "env", i), stream(SEED, "action", i)) for i in mine]
            observation, action, returns = (torch.cat(part).to(comm.device) for part in zip(*episodes, strict=True))
            # [5] anything computed from the batch is computed from the *global* batch: statistics and gradients
            rows, mean, variance = comm.moments(returns)
            advantage = (returns - mean) / (variance.sqrt() + 1e-8)
            log_prob = model(observation).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
            optimizer.zero_grad()
            if args.ddp:  # DDP gives every rank the same weight, so the loss must hold how many rows a rank has
                (-(advantage * log_prob).sum() * world.size / rows).backward()
            else:
                (-(advantage * log_prob).mean()).backward()
                comm.average_gradients_(policy.parameters(), weight=len(returns))
            optimizer.step()
            steps += int(rows)
            if record:
                record.write_metrics(steps, time.monotonic() - started, {"episode/return_mean": int(rows) / EPISODES})
            if update % 10 == 0:  # [6] a decision that one rank takes and all follow, or the others would wait for it
                score = evaluate(env, policy) if world.rank == 0 else None
                if comm.broadcast_object(score) >= SOLVED:
                    break
        del model  # DDP goes before the process group that it works on
        comm.check_equal(policy)
        if record:
            summary = {"status": "finished", "task": "CartPole-v1", "algo": "reinforce", "world_size": world.size}
            record.write_summary({**summary, "env_steps": steps, "updates": update})  # `lockstep runs` lists it
            torch.save(policy.state_dict(), record.path / "policy.pt")
            print(f"{update} updates, {steps} steps, equal parameters on {world.size} ranks: {record.path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=range(1, EPISODES + 1))
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--ddp", action="store_true")
    args = parser.parse_args()
    spawn(train, args.ranks, (args,)) if args.ranks > 1 else train(0, args)
