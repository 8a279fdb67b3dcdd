"""Convert the nodes and GPUs of a workflow file to flags of the launcher."""

import argparse
from collections.abc import Callable

from lockstep.cli.workflow_files.files import Workflow
from lockstep.errors import ConfigError
from lockstep.launch.gpus import visible_gpus
from lockstep.record.text import counted
from lockstep.world import World


def node_arguments(
    args: argparse.Namespace, workflow: Workflow, world: World | None = None, say: Callable[[str], None] = print
) -> None:
    """Set the flags of nodes and ranks that the command line leaves out; under a launcher nothing is changed."""
    world = world or World.from_environment()
    if world.launcher != "none":
        return
    index = args.node_rank if args.node_rank is not None else workflow.node_index
    if args.nnodes is None and not args.standalone and workflow.num_nodes > 1:
        args.nnodes = str(workflow.num_nodes)
    if args.nnodes in (None, "1"):
        if index not in (None, 0, "0"):
            raise ConfigError(f"--node-index {index}, but {workflow.path} has num_nodes=1; there is only node 0")
        args.node_rank = None if args.nnodes is None else args.node_rank
    else:
        args.node_rank = None if index is None else str(index)
        if (args.rdzv_endpoint, args.master_addr, args.init_file) == (None, None, None):
            args.init_file = None if workflow.init_file is None else str(workflow.init_file)
            args.rdzv_endpoint = workflow.endpoint
        if args.node_rank is None and args.init_file is not None and args.nnodes.isdecimal():
            raise ConfigError(
                f"{args.nnodes} nodes, and nothing says which of them this is; start each with its own --node-index, "
                f"from 0 to {int(args.nnodes) - 1}"
            )
    _ranks(args, workflow, say)


def _ranks(args: argparse.Namespace, workflow: Workflow, say: Callable[[str], None]) -> None:
    if args.ranks is not None or args.nproc_per_node is not None:
        return
    ranks = 1
    if workflow.all_gpus:
        ranks = max(1, found := visible_gpus(workflow.run.ml_framework))
        gpus = counted(found, "GPU") if found else "no GPU"
        where = "" if found else " on the CPU (--ranks N, or --nproc-per-node N, starts more)"
        say(f"use_all_avail_gpus: this machine has {gpus}: {counted(ranks, 'rank')}{where}")
    if args.nnodes is None:
        args.ranks = str(ranks)
    else:
        args.nproc_per_node = str(ranks)
