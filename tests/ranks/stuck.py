"""A rank that does not come back, called inside ranks by `test_collectives.py`."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from collectives import here

from lockstep.distributed import stacks
from lockstep.distributed.network.slots import Slots
from lockstep.distributed.timers import ENV, LEARN, Timers
from lockstep.distributed.watch import Observed, Watch
from lockstep.torch.comm import Comm


def gets_stuck(rank: int, port: int, folder: str, how: str, way: str) -> None:
    """Rank 1 does not come to the second collective; whose watch reports first writes down what it said."""
    logs = Path(folder, "logs")

    def tell(culprit: Observed, text: str) -> None:
        with Path(folder, "told").open("a") as file:
            file.write(f"{culprit.rank} {culprit.state}\n{text}\n")

    timers = Timers()
    world = here(rank, port).with_shards(2)
    with (
        stacks.dumps_on_request(logs, rank),
        Comm(world, device="cpu", timeout_s=2, timers=timers, shared_memory=way == "memory") as comm,
    ):
        watch = Watch(comm.observe, tell, lambda: None, timeout_s=2, startup_timeout_s=20, logs=logs)
        if how == "stopped":  # the first exchange needs all ranks to make the slots; later ones can run ahead by one
            comm.sum_shards(torch.ones(1, 2), "config")
        timers.updated(1)
        timers.enter(ENV)
        if rank == 1:
            stick(how)
        elif how == "stopped":
            time.sleep(1.0)  # rank 1 is stopped while it waits for this one
        comm.sum_shards(torch.ones(1, 2), "moments")
        timers.enter(LEARN)
        comm.sum_shards(torch.ones(1, 2), "average_gradients")
        watch.close()


def stick(how: str) -> None:
    if how == "python":
        time.sleep(60)
    elif how == "holding the interpreter's lock":
        ctypes.PyDLL(None).sleep(60)
    elif how == "stopped":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    elif how == "inside a collective":
        wait_for_all = Slots.wait_for_all

        def slow(*args: Any) -> Any:
            if args[1] == "average_gradients":
                time.sleep(60)
            return wait_for_all(*args)

        Slots.wait_for_all = slow  # pyright: ignore[reportAttributeAccessIssue]
