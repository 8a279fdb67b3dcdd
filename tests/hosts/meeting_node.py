"""A node that meets others and stays until it is signalled: `meeting_node.py '{"node_rank": 0, ...}'`."""

import json
import socket
import sys
import time

from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import meet
from lockstep.launch.signals import caught_signals

nodes = Nodes(**json.loads(sys.argv[1]))
with caught_signals() as caught:
    try:
        with meet(nodes, {}, cancelled=lambda: bool(caught)) as met:
            if not met.main:
                socket.create_connection((met.main_address, met.store_port), 5).close()
            print(f"met as {met.address} ({met.interface}), main node at {met.main_address}", flush=True)
            while not caught:
                time.sleep(0.05)
    except (ConfigError, RunError) as error:
        print(f"refused: {error}", flush=True)
        sys.exit(error.exit_code)
