"""The commands. Each imports its dependencies when it runs: `lockstep --help` is quick, and Ctrl-C one line of text."""

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lockstep.errors import ConfigError, RunError, exit_code_of, exits_are_errors

_ELSEWHERE = {
    "launch": "lockstep.launch.commands:launch_command",
    "check": "lockstep.cli.check:check_command",
    "report": "lockstep.cli.report:report_command",
    "runs": "lockstep.cli.runs:runs_command",
    "watch": "lockstep.cli.watch.command:watch_command",
    "sweep": "lockstep.cli.sweep.command:run_sweep_command",
    "bench": "lockstep.cli.bench.command:bench_command",
    "scale": "lockstep.cli.scale.command:scale_command",
    "submit": "lockstep.cli.submit:submit_command",
    "tasks": "lockstep.cli.tasks:tasks_command",
    "completion": "lockstep.cli.completion:completion_command",
}
"""Commands that other modules define."""
_DOCTOR_NODE_FLAGS = ("nproc_per_node", "init_file", "master_addr", "master_port", "max_restarts", "grace_s")
"""Flags that `lockstep doctor` has for several machines only."""
_AFTER_A_FULL_DISK = {
    "train": "; free its disk, then start it again, or continue with --resume",
    "sweep": "; free its disk, then give lockstep sweep the directory of the sweep to continue it",
}
"""By command: how the user continues."""


def main(arguments: list[str] | None = None) -> int:
    """The `lockstep` command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows another
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    asked = argparse.Namespace(debug="--debug" in words)  # until the words are parsed: a script may have the flag, too
    return exit_code_of(lambda: _with_output(words, asked), debug=lambda: asked.debug)


def _with_output(words: list[str], asked: argparse.Namespace) -> int:
    """Run a command whose output has to reach the terminal or the disk.

    Raises:
        RunError: the disk is full; names the file. That of the output of `train` and `launch` may be: their results are
            in the run directory.
    """
    output = words[:1] not in (["train"], ["launch"])
    try:
        code = _run(words, asked)
        if output:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        what = error.filename or ("the output" if output else "a file of the run")
        way_out = _AFTER_A_FULL_DISK.get(words[0], "") if words else ""
        raise RunError(f"{what} could not be written: {error.strerror}{way_out}") from error
    return code


def console() -> NoReturn:
    """The `lockstep` command as a program, which ends although an environment may have left threads."""
    from lockstep.launch.child import die_with_launcher, exit_process

    die_with_launcher()
    code = main()
    exit_process(code)


def _run(words: list[str], asked: argparse.Namespace) -> int:
    from lockstep.cli.parser import hyphenated, parser

    given = words if words[:1] == ["launch"] else [hyphenated(word) for word in words]  # its script has its own flags
    commands = (train, evaluate, recipe, chaos, doctor)
    top = parser(
        {command.__name__: command for command in commands}
        | {"play": evaluate}
        | {name: _imported(name) for name in _ELSEWHERE}
    )
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could be typed
        from lockstep.cli.completion import complete

        complete(top)
    args, unknown = top.parse_known_args(given)
    asked.debug = getattr(args, "debug", False)
    if unknown:
        from lockstep.cli.unknown_arguments import unknown_argument

        raise ConfigError(unknown_argument(unknown[0], given, top, words))
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
    with exits_are_errors(f"lockstep {args.command}"):
        return args.call(args)


def _imported(name: str) -> Callable[[argparse.Namespace], int]:
    """A command that imports its module when it is called."""

    def call(args: argparse.Namespace) -> int:
        from pkgutil import resolve_name

        return resolve_name(_ELSEWHERE[name])(args)

    return call


def train(args: argparse.Namespace) -> int:
    """`lockstep train`: train one run, or several with `--seeds`."""
    from lockstep.cli.request import requested_run
    from lockstep.cli.start import resume, start

    if args.seeds is not None and args.resume is None:
        from lockstep.cli.sweep.command import train_seeds

        return train_seeds(args)
    if args.resume is not None and _is_sweep(Path(args.resume)):
        from lockstep.cli.sweep.command import resume_sweep

        return resume_sweep(args)
    if args.seeds is not None:
        raise ConfigError(
            f"--resume {args.resume} continues one run, and --seeds {args.seeds} starts new ones; leave one of them out"
        )
    if args.jobs is not None:
        raise ConfigError(f"--jobs {args.jobs} is for several runs; add --seeds A:B, or leave it out")
    if args.resume is not None:
        return resume(args)
    return start(args, requested_run(args))


def _is_sweep(path: Path) -> bool:
    """Whether a directory is that of several runs."""
    from lockstep.record.run_dir import RUN_FILE, SWEEP_FILE

    return (path / SWEEP_FILE).is_file() and not (path / RUN_FILE).exists()


def evaluate(args: argparse.Namespace) -> int:
    """`lockstep evaluate`: play new episodes with a trained policy."""
    from lockstep.cli.request import requested_ranks
    from lockstep.launch.flags import number

    episodes = number(args.episodes, "--episodes")
    seed = None if args.seed is None else number(args.seed, "--seed", least=0)
    ranks = requested_ranks(args.ranks, 1)
    from lockstep.cli.evaluate import evaluate_run
    from lockstep.record.text import counted, significant

    result = evaluate_run(
        Path(args.run),
        episodes=episodes,
        greedy=not args.sampled,
        seed=seed,
        video=args.video,
        ml_framework=args.ml_framework,
        ranks=ranks,
        best=args.best,
        last=args.last,
        step=args.checkpoint,
    )
    if result["rank"] != 0:
        return 0
    mean, deviation = significant(result["eval_return_mean"]), significant(result["eval_return_std"])
    print(
        f"{result['task']}: return {mean} +- {deviation} over {counted(result['eval_episodes'], 'episode')}, "
        f"played by {result['policy']}"
    )
    if result["video"] is not None:
        print(f"video: {result['video']}")
    return 0


def recipe(args: argparse.Namespace) -> int:
    """`lockstep recipe`: list the recipes, or print one as a Python file."""
    from lockstep import recipes
    from lockstep.cli.parser import did_you_mean

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


def chaos(args: argparse.Namespace) -> int:
    """`lockstep chaos`: inject faults into a run, and report which ones it survives."""
    from lockstep.cli.chaos.command import chosen_faults, run_chaos
    from lockstep.cli.request import checked, online_run, requested_ranks, requested_run, sets_total_steps
    from lockstep.launch.world_checks import check_no_launcher, check_world
    from lockstep.world import World

    check_no_launcher("lockstep chaos")
    run = online_run(checked(args, requested_run(args)), "lockstep chaos")
    ranks = requested_ranks(args.ranks, 2, run.ml_framework)
    faults = chosen_faults(args.faults, ranks)
    check_world(run, World(size=ranks))
    run_dir = Path(args.run_dir) if args.run_dir else None
    return run_chaos(run, ranks, faults, seed=run.seed, run_dir=run_dir, whole=sets_total_steps(args))


def doctor(args: argparse.Namespace) -> int:
    """`lockstep doctor`: report the devices, packages and network of this machine or of several nodes."""
    from lockstep.cli.doctor import examine
    from lockstep.launch.flags import number
    from lockstep.launch.node_flags import asks_for_nodes

    if asks_for_nodes(args, *_DOCTOR_NODE_FLAGS):
        if args.ranks is not None:
            raise ConfigError(
                f"--ranks {args.ranks} is for this machine, without a launcher; with --nnodes say --nproc-per-node K"
            )
        from lockstep.launch.commands import doctor_on_nodes

        return doctor_on_nodes(args)
    return examine(number(args.ranks or "2", "--ranks"))
