"""A node that joins others and stays until it is signalled: `rendezvous_node.py '{"node_rank": 0, ...}'`."""

import json
import sys
import time

from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import rendezvous
from lockstep.launch.signals import caught_signals

nodes = Nodes(**json.loads(sys.argv[1]))
with caught_signals() as caught:
    try:
        with rendezvous(nodes, {}, cancelled=lambda: bool(caught)) as info:
            info.store.add("nodes", 1)
            print(f"joined as {info.address} ({info.interface}), main node at {info.main_address}", flush=True)
            while not caught:
                time.sleep(0.05)
    except (ConfigError, RunError) as error:
        print(f"refused: {error}", flush=True)
        sys.exit(error.exit_code)
