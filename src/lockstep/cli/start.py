"""Start the ranks of a training: with our own launcher, on several nodes, or as one rank of another launcher."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from lockstep.cli.request import checked_with_notes, requested_nodes, requested_on_ray, requested_world, resumption
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, policy_source
from lockstep.launch.node_flags import ELASTIC_RESTARTS, bounds_of
from lockstep.launch.supervise import Bounds
from lockstep.launch.world_checks import check_gpus, check_world
from lockstep.record.run_dir import RUN_FILE

if TYPE_CHECKING:
    from lockstep.engines.ray.arguments import RayRequest
    from lockstep.launch.nodes import Nodes
    from lockstep.run import AnyRun
    from lockstep.session.resume import Resumption
    from lockstep.world import World


def resume(args: argparse.Namespace) -> int:
    """`lockstep train --resume`: continue a run, by default on as many ranks as before; returns the exit code."""
    from lockstep.launch.train import is_complete
    from lockstep.world import World

    resumed = resumption(args)
    if not args.started_by_lockstep and is_complete(resumed, World.from_environment(), args.ranks):
        return 0
    return start(args, resumed.run, resumed)


def start(args: argparse.Namespace, run: "AnyRun", resumed: "Resumption | None" = None) -> int:
    """Check a run and train on the ranks that the arguments ask for, from `resumed` if given; returns the exit code."""
    from lockstep.run import OfflineRun, Run
    from lockstep.session.env_checks.before_run import check_before_run
    from lockstep.session.host_checks import check_model_path
    from lockstep.world import World

    run, notes = checked_with_notes(args, run)
    args.ml_framework = run.ml_framework  # the flags of ranks count the devices that it can use
    num_shards, default_ranks = (None, 1) if resumed is None else (resumed.num_shards, resumed.world_size)
    on_ray = requested_on_ray(args, default_ranks, num_shards or run.num_shards)
    nodes = None if on_ray else requested_nodes(args, num_shards or run.num_shards)
    world = World(size=on_ray.ranks, launcher="ray") if on_ray else requested_world(args, default_ranks, nodes)
    if several(nodes):  # the others may have other numbers of ranks: the ranks check what depends on their sum
        check_gpus(run, world)
    else:
        _check_shards(world, num_shards)
        check_world(run, world, num_shards)
    if resumed is None and isinstance(run, Run) and not args.started_by_lockstep:
        check_before_run(run, tell=world.rank == 0)
    init_from = _start_policy(args, run, resumed)
    if several(nodes):
        from lockstep.launch.commands import train_on_nodes

        return train_on_nodes(args, run, nodes)
    if isinstance(run, OfflineRun) and world.rank == 0:
        check_model_path(run)
    bounds = _bounds(args, world)
    max_restarts = _max_restarts(args, world, elastic=on_ray is not None and on_ray.elastic)
    profile = _profiled_updates(args, run, resumed)
    if world.rank == 0:
        _print_notes(args, resumed, notes)
    given = Path(args.run_dir) if args.run_dir else None
    run_dir = given if resumed is None else resumed.run_dir
    supervised = world.size > 1 or max_restarts > 0 or args.grace_s is not None  # only a launcher kills a rank
    if on_ray is not None or (world.launcher == "none" and supervised):
        return _launch(
            run,
            world.size,
            on_ray,
            run_dir=run_dir,
            resumption=resumed,
            init_from=init_from,
            debug=args.debug,
            bounds=bounds,
            max_restarts=max_restarts,
            profile=profile,
        )
    from lockstep.launch.train import exit_code, train_checked

    summary = train_checked(
        run,
        run_dir=run_dir,
        init_from=init_from,
        resume=None if resumed is None else Path(args.resume),
        world=world,
        started_by_lockstep=args.started_by_lockstep,
        profile=profile,
    )
    return exit_code(summary)


def _check_shards(world: "World", num_shards: int | None) -> None:
    """Raise `ConfigError` for more ranks than a checkpoint has shards."""
    if num_shards is not None and world.size > num_shards:
        raise ConfigError(
            f"--ranks {world.size} is more than num_shards={num_shards} of the checkpoint; "
            f"use at most --ranks {num_shards}"
        )


def _start_policy(args: argparse.Namespace, run: "AnyRun", resumed: "Resumption | None") -> Path | None:
    """The path of `--init-from`, which the run can start from."""
    path = policy_source(args.init_from)
    if path is not None and resumed is None and not args.started_by_lockstep:
        from lockstep.session.start_policy import check_start_policy

        check_start_policy(path, run)
    return path


def _print_notes(args: argparse.Namespace, resumed: "Resumption | None", notes: list[str]) -> None:
    if args.started_by_lockstep:  # the launcher has printed them
        return
    for note in [*(_run_directory_notes(args) if resumed is None else resumed.notes), *notes]:
        print(f"lockstep: note: {note}", file=sys.stderr)


def _run_directory_notes(args: argparse.Namespace) -> list[str]:
    """That a run directory is not resumed, where one is named as what to train."""
    if args.target is None or not (Path(args.target) / RUN_FILE).is_file():  # another directory holds prepared data
        return []
    shown = shlex.quote(args.target)
    return [f"a new run with the settings of {shown}; --resume {shown} continues that run"]


def _launch(run: "AnyRun", ranks: int, on_ray: "RayRequest | None", **options: Any) -> int:
    """Start the ranks here or on a Ray cluster; options and exit code as `launch_training`."""
    if on_ray is not None:
        from lockstep.engines.ray.train import train_on_ray

        return train_on_ray(run, on_ray, **options)
    from lockstep.launch.train_ranks import launch_training

    return launch_training(run, ranks, **options)[0]


def several(nodes: "Nodes | None") -> "TypeGuard[Nodes]":
    """Whether the arguments ask for more than one node."""
    return nodes is not None and nodes.maximum > 1


def _profiled_updates(args: argparse.Namespace, run: "AnyRun", resumed: "Resumption | None") -> int | None:
    """`--profile`, if the run is long enough for it; a restart by our launcher may have fewer updates left."""
    if args.profile is None:
        return None
    from lockstep.session.profile import check_profile

    profile = number(args.profile, "--profile")
    if not args.started_by_lockstep:
        check_profile(profile, run, 0 if resumed is None else resumed.step or 0)
    return profile


def _max_restarts(args: argparse.Namespace, world: "World", *, elastic: bool) -> int:
    """`--max-restarts`, which only launchers of ours take."""
    restarts = number(args.max_restarts or str(ELASTIC_RESTARTS if elastic else 0), "--max-restarts", least=0)
    if world.launcher == "ray":
        return restarts
    if restarts and world.launcher == "torchrun":
        raise ConfigError(f"--max-restarts {restarts}: torchrun restarts its own ranks: use its --max-restarts")
    if restarts and world.launcher != "none":
        raise ConfigError(
            f"--max-restarts {restarts}: {world.launcher} started these ranks and only it can restart them; "
            "leave --max-restarts out"
        )
    return restarts


def _bounds(args: argparse.Namespace, world: "World") -> Bounds:
    """How long ranks may take to end; `--grace-s` is for launchers of ours."""
    if args.grace_s is not None and world.launcher not in ("none", "ray"):
        raise ConfigError(
            f"--grace-s {args.grace_s}: {world.launcher} started these ranks and decides when it kills them; "
            "leave --grace-s out, and set its own limit"
        )
    return bounds_of(args)
