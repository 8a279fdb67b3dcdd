"""What a rank that torchrun started does and checks before its rendezvous."""

import contextlib
import json
import os
import shlex

from lockstep.distributed.network.routes import several_hosts
from lockstep.distributed.network.torchrun import (
    address_of_this_node,
    is_main_node,
    loopback_error,
    means_this_host,
    torchrun_command,
)
from lockstep.errors import ConfigError
from lockstep.launch.child import die_with_launcher
from lockstep.launch.nodes import check_shards
from lockstep.world import World

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def end_with_agent(world: World) -> None:
    """Tie a rank of a script to torchrun's agent, which does not end its ranks when it is killed."""
    if world.launcher == "torchrun":
        die_with_launcher()


def check_torchrun(world: World) -> None:
    """Refuse `localhost` as the rendezvous address that torchrun gave ranks of several hosts; print the right command.

    Only a node that has connected to the main node from another host knows at once that there are several; it leaves a
    note for the main node's ranks, which then report the same error.
    """
    if not several_hosts(world) or "TORCHELASTIC_RUN_ID" not in os.environ or not means_this_host(world.address):
        return
    command = torchrun_command()
    if command is None or command.endpoint is None or is_main_node(command):
        return
    from lockstep.distributed.network.rank_zero import leave_loopback_note
    from lockstep.torch.collectives.stores import TorchStoreBackend

    with contextlib.suppress(OSError, RuntimeError):  # by all ranks: torchrun ends them when the first has failed
        node = command.flags.get("--node-rank", str(world.node_rank))
        leave_loopback_note(TorchStoreBackend(), command, json.dumps([node, address_of_this_node(command)]))
    raise loopback_error(world)


def check_growth(world: World, num_shards: int | None) -> None:
    """Refuse a torchrun with a variable number of nodes if nodes could not join with this config's `num_shards`."""
    command = torchrun_command() if "TORCHELASTIC_RUN_ID" in os.environ else None
    nodes = command.flags.get("--nnodes", "") if command is not None else ""
    least, _, most = nodes.partition(":")
    if command is None or not most.isdecimal() or least == most:
        return
    if os.environ.get(_OWN_STORE) != "1":
        # Agents keep the first address: a node that joins later does not get the new one, and when rank 0's node
        # leaves, the others look for it without end.
        raise ConfigError(
            f"torchrun --nnodes={nodes} does not tell nodes that come later where to meet, unless {_OWN_STORE}=1 is "
            f"set; start it so on every node: {_OWN_STORE}=1 {shlex.join(command.words)}"
        )
    check_shards(f"--nnodes={nodes}", int(most) * world.local_size, num_shards)
