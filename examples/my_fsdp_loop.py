"""A network that is too large for one GPU, trained by `fully_shard` (FSDP2): behaviour cloning of a pole balancer.

    python examples/my_fsdp_loop.py                  one rank
    python examples/my_fsdp_loop.py --ranks 2        two, each with half of every parameter

`Comm` opens the process group, and FSDP2 gathers parameters and scatters gradients on it. Parameters are no longer
equal on all ranks, but parts of one: they are compared and saved whole. N rows of a batch, of all ranks together.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lockstep import Comm, ConfigError, World, fingerprint, spawn, stream, stream_seed

SEED, BATCH_SIZE = 0, 256


def examples(generator: np.random.Generator, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States [N, 4] of CartPole and the action [N] that a good controller takes in them."""
    state = generator.uniform(-1, 1, (rows, 4)).astype(np.float32)
    action = (state @ np.array([0.3, 0.6, 3.0, 1.0], np.float32) > 0).astype(np.int64)
    return torch.from_numpy(state), torch.from_numpy(action)


def train(rank: int, args: argparse.Namespace) -> dict:
    """The whole training, run by every rank."""
    world = World.from_environment()
    if BATCH_SIZE % world.size:  # FSDP2 weighs all ranks alike
        raise ConfigError(f"a batch of {BATCH_SIZE} rows does not divide among {world.size} ranks; use 1, 2, 4 or 8")
    with Comm(world, device=args.device) as comm:
        torch.manual_seed(stream_seed(SEED, "init"))
        blocks = [nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU()) for _ in range(2)]
        policy = nn.Sequential(nn.Linear(4, args.width), *blocks, nn.Linear(args.width, 2)).to(comm.device)
        comm.broadcast_(policy)  # before the parameters are cut: all ranks start from those of rank 0
        if world.size > 1:
            mesh = init_device_mesh(comm.device.type, (world.size,))
            for block in blocks:
                fully_shard(block, mesh=mesh)  # gathered when the block computes, and freed afterwards
            fully_shard(policy, mesh=mesh)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)  # its state is cut like the parameters
        mine = slice(world.rank, None, world.size)  # this rank's rows of the global batch
        for update in range(1, args.updates + 1):
            batch = examples(stream(SEED, "examples", update), BATCH_SIZE)
            state, action = (rows[mine].to(comm.device) for rows in batch)
            loss = nn.functional.cross_entropy(policy(state), action)
            optimizer.zero_grad()
            loss.backward()  # FSDP2 averages gradients: right, as every rank has the same number of rows
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)  # of the whole gradient, not of this rank's part
            optimizer.step()
            if update % 20 == 0 or update == args.updates:
                mean = float(comm.mean(loss.detach()))
                if world.rank == 0:
                    print(f"update {update}: loss {mean:.3f}", flush=True)
        held = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in policy.parameters())
        whole = get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if world.rank == 0:  # only rank 0 has the whole parameters
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
            torch.save(whole, args.out)
        digest = fingerprint({name: p.numpy() for name, p in whole.items()}) if world.rank == 0 else None
        return {"loss": mean, "numbers_held": held, "parameters": comm.broadcast_object(digest)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4, 8, 16))
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="runs/my_fsdp_loop.pt")
    args = parser.parse_args()
    print(*(spawn(train, args.ranks, (args,)) if args.ranks > 1 else [train(0, args)]), sep="\n")
