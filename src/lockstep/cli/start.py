"""From the arguments of a training to ranks that train: here, by our own launcher, or as one rank of another's."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from lockstep.cli.request import checked, requested_nodes, requested_world, resumption
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, policy_source
from lockstep.launch.train_ranks import PROGRAM
from lockstep.launch.world_checks import check_output, check_world

if TYPE_CHECKING:
    from lockstep.launch.nodes import Nodes
    from lockstep.run import AnyRun
    from lockstep.world import World


def start(args: argparse.Namespace, run: "AnyRun") -> int:
    """Train a new run on the ranks that the arguments ask for; returns the exit code."""
    from lockstep.run import Run
    from lockstep.session.env_checks.first import check_first

    nodes = requested_nodes(args, run.num_shards)
    world = requested_world(args, default_ranks=1, nodes=nodes)
    check_world(run, world)
    if isinstance(run, Run) and not args.joined:
        check_first(run, tell=world.rank == 0)
    if several(nodes):
        return start_on_nodes(args, run, nodes)
    check_output(run, world)
    run_dir = Path(args.run_dir) if args.run_dir else None
    init_from = policy_source(args.init_from)
    max_restarts = _max_restarts(args, world)
    if world.launcher == "none" and (world.size > 1 or max_restarts):
        from lockstep.launch.startup_line import first_line
        from lockstep.launch.train_ranks import launch_training
        from lockstep.record.run_dir import RunDir

        path = RunDir.create(run_dir, run).path
        _say_first(first_line(run, world, path))
        return launch_training(path, world.size, init_from=init_from, debug=args.debug, max_restarts=max_restarts)

    from lockstep.launch.train import exit_code, train

    return exit_code(train(run, run_dir=run_dir, init_from=init_from, world=world, joined=args.joined))


def several(nodes: "Nodes | None") -> "TypeGuard[Nodes]":
    """Whether the arguments ask for more machines than this one."""
    return nodes is not None and nodes.maximum > 1


def start_on_nodes(args: argparse.Namespace, run: "AnyRun", nodes: "Nodes", program: Sequence[str] = PROGRAM) -> int:
    """Let `program` train with the arguments as typed, once per rank of every machine; returns the exit code."""
    from lockstep.launch.commands import train_on_nodes

    return train_on_nodes(args, run, nodes, args.words, program)


def go_on(args: argparse.Namespace) -> int:
    """`lockstep train --resume`: go on with a run, on as many ranks as before unless told otherwise."""
    from lockstep.session.resume import nothing_left
    from lockstep.world import World

    going_on = resumption(args)
    if not args.joined and (message := nothing_left(going_on)) is not None:
        if World.from_environment().rank == 0:
            _say_first(message)
        return 0
    run, run_dir = checked(args, going_on.run), going_on.run_dir
    nodes = requested_nodes(args, going_on.num_shards or run.num_shards)
    world = requested_world(args, default_ranks=going_on.world_size, nodes=nodes)
    if going_on.num_shards is not None and world.size > going_on.num_shards:
        raise ConfigError(
            f"--ranks {world.size} is more than num_shards={going_on.num_shards} of the checkpoint; "
            f"use at most --ranks {going_on.num_shards}"
        )
    check_world(run, world, going_on.num_shards)
    if several(nodes):
        return start_on_nodes(args, run, nodes)
    check_output(run, world)
    max_restarts = _max_restarts(args, world)
    if world.rank == 0 and not args.joined:
        for note in going_on.notes:
            print(f"lockstep: note: {note}", file=sys.stderr)
    if world.launcher == "none" and (world.size > 1 or max_restarts):
        from lockstep.launch.startup_line import first_line
        from lockstep.launch.train_ranks import launch_training

        _say_first(first_line(run, world, run_dir, num_shards=going_on.num_shards, step=going_on.step))
        return launch_training(
            run_dir, world.size, config=run, resume=Path(args.resume), debug=args.debug, max_restarts=max_restarts
        )

    from lockstep.launch.train import exit_code, train

    return exit_code(train(run, run_dir=run_dir, resume=Path(args.resume), world=world, joined=args.joined))


def _say_first(line: str) -> None:
    """Show the first line; a reader that went away (`| head`) ends no run."""
    from lockstep.record.console import Console

    Console().line(line)


def _max_restarts(args: argparse.Namespace, world: "World") -> int:
    """How often our own launcher may start all ranks anew."""
    restarts = number(args.max_restarts or "0", "--max-restarts", least=0)
    if restarts and world.launcher == "torchrun":
        raise ConfigError(f"--max-restarts {restarts}: torchrun restarts its own ranks: use its --max-restarts")
    if restarts and world.launcher != "none":
        raise ConfigError(
            f"--max-restarts {restarts}: {world.launcher} started these ranks and only it can restart them; "
            "leave --max-restarts out"
        )
    return restarts
