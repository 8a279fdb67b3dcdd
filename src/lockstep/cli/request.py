"""From the arguments of `lockstep train` to a run, or the run to resume, and its world."""

import argparse
import difflib
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import ConfigError
from lockstep.launch.flags import number

if TYPE_CHECKING:
    from lockstep.engines.ray.arguments import RayRequest
    from lockstep.envs.spec import EnvSpec
    from lockstep.launch.nodes import Nodes
    from lockstep.run import AnyRun, Run, SomeRun
    from lockstep.session.resume import Resumption
    from lockstep.world import World


def requested_run(args: argparse.Namespace, *, task_defaults: bool = True) -> "AnyRun":
    """The run that target and flags describe.

    Args:
        args: of the command line.
        task_defaults: whether a task alone has the default settings of its kind, for which one environment is made.
    """
    from lockstep import recipes
    from lockstep.cli.agent import has_agent
    from lockstep.run import check_setting_names, override

    target = args.target or args.task
    if target is None:
        task = set_values(args.set).get("task")
        what = "a task, a recipe or a config: lockstep train cartpole" if task is None else f"the task by --task {task}"
        raise ConfigError(f"nothing to train; name {what}")
    run = recipes.named(target)
    changes = changes_of(args, task=args.task if args.target else None)
    if run.task == target and (other := changes.get("task", target)) != target:
        raise ConfigError(f"two tasks, {target} and {other}; give one")
    check_setting_names(run, changes)
    if task_defaults or has_agent(target, args.agent):
        run = _with_defaults(args, run, target, changes)
    run = override(run, changes)
    return override(run, {"total_steps": _steps_of(args, run)}) if args.max_iterations is not None else run


def _with_defaults(args: argparse.Namespace, run: "AnyRun", target: str, changes: dict[str, str]) -> "AnyRun":
    """The run of a task alone with the settings it begins with; a recipe or a file is complete and does not change."""
    from lockstep.cli.agent import with_agent
    from lockstep.run import Run

    if not isinstance(run, Run) or run.task != target:
        if args.agent is not None:
            raise ConfigError(f"--agent {args.agent} goes with a task, and {target} has settings of its own")
        return run
    with _suggest_recipes(target):
        return with_agent(run, args.agent, changes)


def has_task_defaults(args: argparse.Namespace, run: "Run") -> bool:
    """Whether the run is that of a task alone, with the default settings of its kind."""
    from lockstep.cli.agent import has_agent

    return not _is_resumed(args) and run.task == (args.target or args.task) and not has_agent(run.task, args.agent)


def _is_resumed(args: argparse.Namespace) -> bool:
    """Whether the run continues; not every command has `--resume`."""
    return getattr(args, "resume", None) is not None


@contextmanager
def _suggest_recipes(task: str) -> Generator[None]:
    """Add recipes of similar names to the error that this task is unknown."""
    from lockstep import recipes

    try:
        yield
    except ConfigError as error:
        near: list[str] = difflib.get_close_matches(task.lower().replace("-", "_"), recipes.names(), 2, 0.7)
        if not near or not str(error).startswith(f"task={task} is unknown"):
            raise
        raise ConfigError(f"{error}; recipes: {', '.join(near)}") from error


def resumption(args: argparse.Namespace) -> "Resumption":
    """The run that `--resume` continues, with the changes of the other flags."""
    from lockstep.session.resume import prepare

    contradicting = (
        (args.target, args.target),
        ("--run-dir", args.run_dir),
        ("--init-from", args.init_from),
        ("--agent", args.agent),
    )
    for name, given in contradicting:
        if given is not None:
            raise ConfigError(
                f"--resume {args.resume} continues that run, its task and its directory; leave out {name}, "
                "or leave out --resume to start a new run"
            )
    changes = changes_of(args, task=args.task)
    found = prepare(Path(args.resume), changes)
    if args.max_iterations is None:
        return found
    return prepare(Path(args.resume), {**changes, "total_steps": _steps_of(args, found.run)})


def sets_total_steps(args: argparse.Namespace) -> bool:
    """Whether the arguments set the length of the training."""
    return args.max_iterations is not None or "total_steps" in changes_of(args, task=None)


def changes_of(args: argparse.Namespace, task: str | None) -> dict[str, str]:
    """The settings that flags and `--set` change, by name; raises `ConfigError` if both change one, to other values."""
    from lockstep.config.settings import parse

    flags: dict[str, str | None] = {
        "algo": args.algo,
        "ml_framework": args.ml_framework,
        "seed": args.seed,
        "num_envs": args.num_envs,
        "device": args.device,
        "task": task,
        "evaluate_video": "true" if args.video else None,
    }
    given, values = {name: value for name, value in flags.items() if value is not None}, set_values(args.set)
    for name in [name for name in given if name in values]:
        if parse(given[name], f"{name}={given[name]}") != parse(values[name], f"{name}={values[name]}"):
            flag = "--video" if name == "evaluate_video" else f"--{name.replace('_', '-')} {given[name]}"
            raise ConfigError(f"{flag} and --set {name}={values[name]} are two values of one setting; give one")
    changes = given | values
    if "total_steps" in changes and args.max_iterations is not None:
        raise ConfigError("--max-iterations and --set total_steps both say how long to train; give one")
    return changes


def set_values(pairs: list[str]) -> dict[str, str]:
    """The values of `--set NAME=VALUE` by name; of a name that is given twice, the last one."""
    from lockstep.config.settings import setting_name

    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            name, _, value = pair.partition(":")
            raise ConfigError(f"--set {pair} has no value; write --set {name}={value or 'VALUE'}")
        if not name:
            raise ConfigError(f"--set {pair} names no setting; write --set NAME=VALUE")
        values[setting_name(name.strip())] = value
    return values


def _steps_of(args: argparse.Namespace, run: "AnyRun") -> int:
    run = online_run(run, f"--max-iterations {args.max_iterations}")
    return number(args.max_iterations, "--max-iterations") * run.num_envs * run.algorithm.num_steps


def online_run(run: "AnyRun", what: str) -> "Run":
    """The same run; raises `ConfigError`, which names `what` needs it, if it learns from logged data."""
    from lockstep.run import Run

    if not isinstance(run, Run):
        raise ConfigError(f"{what} is for runs that learn from environments, and this one learns from {run.data}")
    return run


def checked(args: argparse.Namespace, run: "SomeRun") -> "SomeRun":
    """Check the framework, the task and the data of a run; returns it with absolute paths."""
    return checked_with_notes(args, run)[0]


def checked_with_notes(args: argparse.Namespace, run: "SomeRun") -> "tuple[SomeRun, list[str]]":
    """`checked`, and what the user should know about the run before it starts."""
    from lockstep.preflight.setting_paths import with_absolute_paths
    from lockstep.run import Run
    from lockstep.session.run_checks import check_run
    from lockstep.session.start_notes import start_notes

    if not isinstance(run, Run):
        notes = start_notes(run, check_run(run), task_alone=False)
        return with_absolute_paths(run), notes
    run = _with_current_task(run)
    with _suggest_recipes(run.task) if run.task == (args.target or args.task) else nullcontext():
        spec = check_run(run)
    notes = start_notes(run, spec, task_alone=has_task_defaults(args, run), resumed=_is_resumed(args))
    return with_absolute_paths(run), [*_incomplete_file_notes(args, run, spec), *notes]


def _incomplete_file_notes(args: argparse.Namespace, run: "Run", spec: "EnvSpec | None") -> list[str]:
    """That a file without settings of its algorithm has other defaults than its task alone."""
    from lockstep.cli.agent import has_agent
    from lockstep.config.settings import parse, value_of
    from lockstep.session.task_defaults import defaults_note
    from lockstep.system.files import read_text

    file = args.target or args.task or ""
    if _is_resumed(args) or Path(file).suffix not in (".yaml", ".yml", ".json") or has_agent(run.task, None):
        return []
    defaults = None if spec is None else defaults_note(run, spec)
    if defaults is None or value_of(parse(read_text(Path(file)), file), "algorithm"):
        return []
    return [
        f"{file} sets nothing below algorithm, so that the defaults of docs/settings.md apply, not the "
        f"{defaults.partition(' (')[0]}; lockstep train {shlex.quote(run.task)} --set NAME=VALUE begins with these, "
        "and its run.yaml has them all"
    ]


def _with_current_task(run: "Run") -> "Run":
    """The run with the present id of a task that Isaac Lab has renamed; rank 0 prints the new id."""
    from lockstep.envs import isaac
    from lockstep.world import World

    if not isaac.is_isaac(run.task):
        return run
    task, note = isaac.current_id(run.task)
    if note and World.from_environment().rank == 0:
        print(f"lockstep: note: {note}", file=sys.stderr)
    return replace(run, task=task)


def requested_on_ray(args: argparse.Namespace, default_ranks: int, num_shards: int | None) -> "RayRequest | None":
    """The ranks to place on a Ray cluster; None without `--on ray`."""
    from lockstep.engines.ray.arguments import ray_request
    from lockstep.engines.ray.cluster import check_ray
    from lockstep.launch.nodes import check_shards
    from lockstep.launch.rank_environment import check_no_rank

    request = ray_request(args, default_ranks)
    if request is not None:
        check_ray()
        check_no_rank("lockstep train --on ray")
        if request.elastic:
            typed = f"--nnodes {args.nnodes}" if args.nnodes else f"--ranks {args.ranks}"
            check_shards(typed, request.ranks, num_shards)
    return request


def requested_nodes(args: argparse.Namespace, num_shards: int | None) -> "Nodes | None":
    """The nodes that the flags describe; None without such flags."""
    from lockstep.launch.node_flags import asks_for_nodes, nodes_of

    if not asks_for_nodes(args):
        return None
    from lockstep.launch.commands import check_not_elsewhere
    from lockstep.launch.nodes import check_shards

    nodes = nodes_of(args)
    if args.ranks is not None:
        raise ConfigError(
            f"--ranks {args.ranks} counts the ranks of one machine's run; with --nnodes say --nproc-per-node K"
        )
    check_not_elsewhere(nodes)
    if nodes.elastic:
        check_shards(f"--nnodes {args.nnodes}", nodes.maximum * nodes.nproc, num_shards)
    return nodes


def requested_world(args: argparse.Namespace, default_ranks: int, nodes: "Nodes | None" = None) -> "World":
    """The world: the ranks that a launcher started, else as many as the flags ask for."""
    from lockstep.world import World

    if nodes is not None:
        return World(size=nodes.maximum * nodes.nproc, local_size=nodes.nproc)
    world = World.from_environment()
    if world.launcher == "none":
        if args.distributed and args.ranks is None and args.nproc_per_node is None:
            launcher = "lockstep.launch.jax" if args.ml_framework == "jax" else "torch.distributed.run"
            raise ConfigError(
                f"--distributed, but no launcher started this process; start it with `python -m {launcher} "
                "--nproc_per_node=2 -m lockstep.train ...`, or let Lockstep start its own ranks with --ranks 2"
            )
        return World(size=_local_ranks(args, default_ranks))
    if args.ranks not in (None, "auto", str(world.size)):
        processes = "1 process" if world.size == 1 else f"{world.size} processes"
        raise ConfigError(f"--ranks {args.ranks}, but {world.launcher} started {processes}; leave --ranks out")
    if args.nproc_per_node is not None:
        raise ConfigError(
            f"--nproc-per-node {args.nproc_per_node}, but {world.launcher} started this process as a rank; leave it out"
        )
    if (args.master_addr, args.master_port, args.init_file) == (None, None, None):
        return world
    from lockstep.distributed.network.rendezvous_address import with_rendezvous_flags

    return with_rendezvous_flags(
        world, master_addr=args.master_addr, master_port=args.master_port, init_file=args.init_file
    )


def requested_ranks(text: str | None, default: int, framework: str = "torch") -> int:
    """The number of ranks that `--ranks` asks for; `auto`: one for each GPU that the framework can use."""
    if text == "auto":
        from lockstep.launch.gpus import visible_gpus

        return max(visible_gpus(framework), 1)
    return default if text is None else number(text, "--ranks", "a number or auto")


def _local_ranks(args: argparse.Namespace, default: int) -> int:
    if args.ranks is not None and args.nproc_per_node is not None:
        raise ConfigError("--ranks and --nproc-per-node both count the ranks of this machine; give one")
    places = {"--master-addr": args.master_addr, "--master-port": args.master_port, "--init-file": args.init_file}
    for flag, given in places.items():
        if given is not None:
            raise ConfigError(f"{flag} {given} is where the ranks of several machines meet; add --nnodes N")
    if args.nproc_per_node is None:
        return requested_ranks(args.ranks, default, args.ml_framework or "torch")
    from lockstep.launch.node_flags import nodes_of

    return nodes_of(args).nproc
