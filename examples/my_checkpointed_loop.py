"""A training loop of your own that can be killed at any time and resumed: REINFORCE on CartPole-v1 with checkpoints.

    python examples/my_checkpointed_loop.py --folder runs/mine                 start, or resume after a kill
    python examples/my_checkpointed_loop.py --folder runs/two --ranks 2
    lockstep launch --ranks 2 examples/my_checkpointed_loop.py --folder runs/two      resumes that of the line above

The calls for checkpoints are marked [1] to [4]. The same number of ranks resumes from the newest checkpoint. A run that
was killed and resumed ends with the parameters, bit for bit, of an uninterrupted one.
"""

import argparse

import gymnasium
import numpy as np
import torch
from torch import nn

from lockstep import CheckpointManager, Comm, World, fingerprint, spawn, stream, stream_seed

SEED, EPISODES, GAMMA = 0, 8, 0.99  # EPISODES per update, played by all ranks together


@torch.no_grad()
def play(env: gymnasium.Env, policy: nn.Module, generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """One episode: observations [N, 4], actions [N] and returns to go [N]."""
    observation, _ = env.reset(seed=int(generator.integers(2**31)))
    observations, actions, rewards, ended = [], [], [], False
    while not ended:
        logits = policy(torch.from_numpy(observation)).numpy()
        actions.append(int(np.argmax(logits + generator.gumbel(size=2))))
        observations.append(observation)
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        rewards.append(float(reward))
        ended = terminated or truncated
    for t in range(len(rewards) - 2, -1, -1):
        rewards[t] += GAMMA * rewards[t + 1]
    return torch.tensor(np.array(observations)), torch.tensor(actions), torch.tensor(rewards)


def train(rank: int, args: argparse.Namespace) -> str:
    """The whole training, run by every rank. Returns a fingerprint of the parameters at its end."""
    world = World.from_environment()
    with Comm(world, device="cpu") as comm, CheckpointManager(comm, args.folder) as checkpoints:
        torch.manual_seed(stream_seed(SEED, "init"))
        policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
        generator = stream(SEED, "draws", world.shards[0])  # one stream per shard, continued over all updates
        env, first = gymnasium.make("CartPole-v1"), 1
        share = world.shard_size(EPISODES, "EPISODES")  # of this rank

        saved = checkpoints.restore()  # [1] None at the first start
        if saved is not None:
            policy.load_state_dict(saved.shared["policy"])
            optimizer.load_state_dict(saved.shared["optimizer"])
            generator.bit_generator.state = saved.shards[world.shards[0]]["draws"]
            first = saved.step + 1
        comm.broadcast_(policy)

        for update in range(first, args.updates + 1):
            episodes = [play(env, policy, generator) for _ in range(share)]
            observation, action, returns = (torch.cat(part) for part in zip(*episodes, strict=True))
            _, mean, variance = comm.moments(returns)
            advantage = (returns - mean) / (variance.sqrt() + 1e-8)
            log_prob = policy(observation).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
            optimizer.zero_grad()
            (-(advantage * log_prob).mean()).backward()
            comm.average_gradients_(policy, weight=len(returns))
            optimizer.step()
            if update % args.every == 0 or update == args.updates:
                shared = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}  # [2] equal on all ranks
                own = {world.rank: {"draws": generator.bit_generator.state}}  # [3] of this rank only
                checkpoints.save(update, shared, own)  # [4] by all ranks together
            if world.rank == 0:
                print(f"update {update}: {len(returns) / share:.0f} steps per episode", flush=True)
        parameters = fingerprint({name: p.detach().numpy() for name, p in policy.named_parameters()})
        if world.rank == 0:
            print(f"parameters {parameters}", flush=True)
        return parameters


def main() -> None:
    """Start the requested ranks, or run as a rank that a launcher started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="runs/my_checkpointed_loop")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--every", type=int, default=5, help="updates from one checkpoint to the next")
    args = parser.parse_args()
    if args.ranks > 1:
        spawn(train, args.ranks, (args,))
    else:
        train(0, args)


if __name__ == "__main__":
    main()
