"""A program for the tests of this folder: a rank that joins the others and prints the result as one line of JSON.

python rendezvous_rank.py ['{"rank": 0, "size": 2, "port": 29500}' [TIMEOUT_S]]  # default: from the launcher
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from lockstep.distributed.network.rendezvous_address import with_rendezvous_flags
from lockstep.errors import ConfigError, RunError
from lockstep.torch.collectives.rendezvous import connect
from lockstep.world import World


def main() -> int:
    flags = {"master_addr": None, "master_port": None, "init_file": None}
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    flags |= {name: given.pop(name) for name in flags if name in given and "rank" not in given}
    world = with_rendezvous_flags(World.from_environment(), **flags) if "rank" not in given else World(**given)
    began, code = time.monotonic(), 0
    result = {"rank": world.rank, "local_rank": world.local_rank, "node": world.node_rank, "launcher": world.launcher}
    try:
        connect(world, "gloo", 20.0, float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
        total = torch.full((1,), 10.0**world.rank)
        dist.all_reduce(total)
        result |= {"sum": total.item(), "interface": os.environ.get("GLOO_SOCKET_IFNAME", "")}
    except (ConfigError, RunError) as error:
        result |= {"error": str(error), "kind": type(error).__name__}
        code = error.exit_code
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    sys.stdout.write(json.dumps(result | {"start": int(start), "seconds": time.monotonic() - began}) + "\n")
    sys.stdout.flush()
    if int(start) < int(os.environ.get("DIES", "0")):  # in turn, until it has been started so often
        if world.rank == int(start) % world.size:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if "STAYS" in os.environ:
        time.sleep(60)
    return code


if __name__ == "__main__":
    os._exit(main())
