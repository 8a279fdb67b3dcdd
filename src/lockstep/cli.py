"""Arguments to calls. Imports what a command needs only when that command runs: `lockstep --help` answers at once."""

import argparse
import difflib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.arguments import did_you_mean, hyphenated, parser, unknown_argument
from lockstep.errors import ConfigError, RunError
from lockstep.request import (
    checked,
    number,
    policy_source,
    requested_nodes,
    requested_ranks,
    requested_run,
    requested_world,
    resumption,
    says_how_long,
)

if TYPE_CHECKING:
    from lockstep.run import Run
    from lockstep.world import World

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """The `lockstep` command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = words if words[:1] == ["launch"] else [hyphenated(word) for word in words]  # its script has its own flags
    try:
        return _run(given)
    except (ConfigError, RunError) as error:
        if "--debug" in given:
            traceback.print_exc()
        line, _, table = str(error).partition("\n\n")
        print(f"lockstep: error: {' '.join(line.split())}", file=sys.stderr)
        if table:
            print(table, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `lockstep recipe cartpole | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _run(given: list[str]) -> int:
    commands = {
        "train": train_command,
        "launch": launch_command,
        "evaluate": evaluate_command,
        "recipe": recipe_command,
        "chaos": chaos_command,
        "doctor": doctor_command,
        "report": report_command,
        "submit": submit_command,
    }
    top = parser(commands)
    args, unknown = top.parse_known_args(given)
    if unknown:
        raise ConfigError(unknown_argument(unknown[0], args.command or ""))
    if args.version:
        from importlib.metadata import version

        print(f"lockstep {version('lockstep-rl')}")
        return 0
    if args.command is None:
        top.print_help(sys.stderr)
        return 2
    if sys.platform != "linux" and args.command != "recipe":
        raise ConfigError(f"Lockstep runs on Linux, and this is {sys.platform}; use a Linux machine, container or WSL")
    args.words = given[1:]
    return args.call(args)


def train_command(args: argparse.Namespace) -> int:
    """`lockstep train`: arguments to a run, checked before a process starts or a byte is written."""
    if args.resume is not None:
        return _resume(args)
    run = checked(args, requested_run(args))
    nodes = requested_nodes(args, run.num_shards)
    world = requested_world(args, default_ranks=1, nodes=nodes)
    _check_world(run, world)
    if nodes is not None and nodes.maximum > 1:
        from lockstep.launch.commands import train_on_nodes

        return train_on_nodes(args, run, nodes, args.words)
    run_dir = Path(args.run_dir) if args.run_dir else None
    init_from = policy_source(args.init_from)
    max_restarts = _max_restarts(args, world)
    if world.launcher == "none" and (world.size > 1 or max_restarts):
        from lockstep.launch.training import launch_training
        from lockstep.record.run_dir import RunDir

        path = RunDir.create(run_dir, run).path
        return launch_training(path, world.size, init_from=init_from, debug=args.debug, max_restarts=max_restarts)

    from lockstep.train import exit_code, train

    return exit_code(train(run, run_dir=run_dir, init_from=init_from, world=world, joined=args.joined))


def _resume(args: argparse.Namespace) -> int:
    """`lockstep train --resume`: go on with a run, on as many ranks as before unless told otherwise."""
    going_on = resumption(args)
    run, run_dir = checked(args, going_on.run), going_on.run_dir
    nodes = requested_nodes(args, going_on.num_shards or run.num_shards)
    world = requested_world(args, default_ranks=going_on.world_size, nodes=nodes)
    if going_on.num_shards is not None and world.size > going_on.num_shards:
        raise ConfigError(
            f"--ranks {world.size} is more than num_shards={going_on.num_shards} of the checkpoint; "
            f"use at most --ranks {going_on.num_shards}"
        )
    _check_world(run, world, going_on.num_shards)
    if nodes is not None and nodes.maximum > 1:
        from lockstep.launch.commands import train_on_nodes

        return train_on_nodes(args, run, nodes, args.words)
    max_restarts = _max_restarts(args, world)
    if world.rank == 0 and not args.joined:
        for note in going_on.notes:
            print(f"lockstep: note: {note}", file=sys.stderr)
    if world.launcher == "none" and (world.size > 1 or max_restarts):
        from lockstep.launch.training import launch_training

        return launch_training(
            run_dir, world.size, config=run, resume=Path(args.resume), debug=args.debug, max_restarts=max_restarts
        )

    from lockstep.train import exit_code, train

    return exit_code(train(run, run_dir=run_dir, resume=Path(args.resume), world=world, joined=args.joined))


def launch_command(args: argparse.Namespace) -> int:
    """`lockstep launch`: any script, once per rank on every node."""
    from lockstep.launch import commands

    return commands.launch_command(args)


def evaluate_command(args: argparse.Namespace) -> int:
    """`lockstep evaluate`: the trained policy of a run, on episodes of its own."""
    path = Path(args.run)
    if not path.exists():
        raise ConfigError(f"run {path} does not exist; give a run directory, such as runs/NAME")
    if args.episodes < 1:
        raise ConfigError(f"--episodes {args.episodes} must be at least 1")
    from lockstep.torch.evaluate_policy import evaluate_run

    result = evaluate_run(path, episodes=args.episodes, greedy=not args.sampled, video=args.video)
    print(
        f"{result['task']}: return {result['eval_return_mean']:.2f} +- {result['eval_return_std']:.2f} "
        f"over {result['eval_episodes']} episodes"
    )
    if result["video"] is not None:
        print(f"video: {result['video']}")
    return 0


def recipe_command(args: argparse.Namespace) -> int:
    """`lockstep recipe`: the recipes, or one as a Python file to edit."""
    from lockstep import recipes

    if args.name is None:
        for name in recipes.names():
            print(f"{name:16} {recipes.description(name)}")
        return 0
    name = args.name.replace("-", "_")
    if name not in recipes.names():
        near = did_you_mean(difflib.get_close_matches(str(name), recipes.names(), n=3))
        raise ConfigError(f"unknown recipe {args.name}; {near or 'there are ' + ', '.join(recipes.names())}")
    print(recipes.source(name), end="")
    return 0


def chaos_command(args: argparse.Namespace) -> int:
    """`lockstep chaos`: faults put into a run of the user's, and a table of what survived."""
    from lockstep.chaos import chaos, chosen_faults
    from lockstep.world import World

    faults = chosen_faults(args.faults)
    launcher = World.from_environment().launcher
    if launcher != "none":
        raise ConfigError(f"lockstep chaos starts its own ranks, and {launcher} started this process; run it by itself")
    run, ranks = checked(args, requested_run(args)), requested_ranks(args.ranks, 2)
    _check_world(run, World(size=ranks))
    run_dir = Path(args.run_dir) if args.run_dir else None
    return chaos(run, ranks, faults, seed=run.seed, run_dir=run_dir, whole=says_how_long(args))


def doctor_command(args: argparse.Namespace) -> int:
    """`lockstep doctor`: what this machine can do."""
    from lockstep import doctor
    from lockstep.launch.flags import asks_for_nodes

    if asks_for_nodes(args):
        from lockstep.launch.commands import doctor_on_nodes

        return doctor_on_nodes(args)
    return doctor.examine(number(args.ranks, "--ranks"))


def report_command(args: argparse.Namespace) -> int:
    """`lockstep report`: what runs tell together."""
    from lockstep import report

    return report.report_command(args)


def submit_command(args: argparse.Namespace) -> int:
    """`lockstep submit`: what a cluster starts a training with."""
    from lockstep import submit

    return submit.submit_command(args)


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


def _check_world(run: "Run", world: "World", num_shards: int | None = None) -> None:
    """Refuse counts that do not divide among shards (a checkpoint's, if any), what takes too much, too many ranks."""
    from lockstep.elastic import restarts_ranks

    if restarts_ranks(world):
        return  # a run that goes on has the shards of its checkpoint, and a launcher says too late what it will start
    shards = world.with_shards(run.num_shards or num_shards)
    run.algorithm.minibatch_rows(shards.shard_size(run.num_envs, "num_envs"), shards.num_shards)
    if run.algo == "dqn":
        from lockstep.demands import check_host
        from lockstep.envs.vector import env_spec

        check_host(run, env_spec(run.task, run.env), shards)
    if run.device == "cpu" or world.launcher != "none":
        return  # under a launcher every rank asks for its own device
    from lockstep.doctor import nvidia_gpu_present, visible_gpus

    gpus = visible_gpus() if nvidia_gpu_present() else 0
    if run.device == "cuda" or run.backend == "nccl":
        wanted = "device=cuda" if run.device == "cuda" else "backend=nccl"
        if gpus == 0:
            raise ConfigError(f"{wanted}, but there is no GPU that torch can use; `lockstep doctor` says why")
    if gpus and world.size > gpus:
        raise ConfigError(f"--ranks {world.size} is more than the {gpus} GPUs; use --ranks {gpus} or --set device=cpu")


if __name__ == "__main__":
    sys.exit(main())
