"""A script for `lockstep launch`: rank 1 opens the Comm and does not come to the first collective."""

import time

import torch

from lockstep import World
from lockstep.torch.comm import Comm

with Comm(World.from_environment(), device="cpu", timeout_s=1) as comm:
    if comm.world.rank == 1:
        time.sleep(60)
    comm.broadcast_(torch.nn.Linear(4, 2))
