"""What a rank that torchrun started looks at before anything else."""

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
from lockstep.launch.nodes import check_shards
from lockstep.world import World

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def check_torchrun(world: World) -> None:
    """Refuse to start where torchrun gave ranks of several hosts `localhost` to meet at, and print the cure.

    Only a node that came to the main node from another host can know at once that there are several; its note lets the
    main node's ranks, who wait for it, tell their user as well.
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
    """Refuse a torchrun to and from which nodes may come and go, where that could not work.

    Args:
        world: who takes part.
        num_shards: what the config says; None: as many as there are ranks at first.
    """
    command = torchrun_command() if "TORCHELASTIC_RUN_ID" in os.environ else None
    nodes = command.flags.get("--nnodes", "") if command is not None else ""
    least, _, most = nodes.partition(":")
    if command is None or not most.isdecimal() or least == most:
        return
    if os.environ.get(_OWN_STORE) != "1":
        # Agents keep where they met first: a node that comes later is not told, and where rank 0's node goes the others
        # look for it for ever.
        raise ConfigError(
            f"torchrun --nnodes={nodes} does not tell nodes that come later where to meet, unless {_OWN_STORE}=1 is "
            f"set; start it so on every node: {_OWN_STORE}=1 {shlex.join(command.words)}"
        )
    check_shards(f"--nnodes={nodes}", int(most) * world.local_size, num_shards)
