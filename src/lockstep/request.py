"""What the arguments of `lockstep train` ask for: a new run, or one to go on with."""

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.resume import Resumption
    from lockstep.run import Run


def requested_run(args: argparse.Namespace) -> "Run":
    """The run that target and flags describe."""
    from lockstep.run import override

    target = args.target or args.task
    if target is None:
        raise ConfigError("nothing to train; name a task, a recipe or a config: lockstep train cartpole")
    run = _from_target(target)
    if args.task not in (None, run.task) and run.task == target:
        raise ConfigError(f"two tasks, {target} and --task={args.task}; give one")
    changes = _changes(args, task=args.task if args.target else None)
    run = override(run, changes)
    return override(run, {"total_steps": _steps_of(args, run)}) if args.max_iterations is not None else run


def resumption(args: argparse.Namespace) -> "Resumption":
    """What `--resume` and the flags beside it describe."""
    from lockstep.resume import prepare

    contradicting = ((args.target, args.target), ("--run-dir", args.run_dir), ("--init-from", args.init_from))
    for name, given in contradicting:
        if given is not None:
            raise ConfigError(
                f"--resume {args.resume} goes on with that run, its task and its directory; leave out {name}, "
                "or leave out --resume to start a new run"
            )
    changes = _changes(args, task=args.task)
    found = prepare(Path(args.resume), changes)
    if args.max_iterations is None:
        return found
    return prepare(Path(args.resume), {**changes, "total_steps": _steps_of(args, found.run)})


def says_how_long(args: argparse.Namespace) -> bool:
    """Whether the arguments themselves say how long to train."""
    return args.max_iterations is not None or "total_steps" in _changes(args, task=None)


def _changes(args: argparse.Namespace, task: str | None) -> dict[str, str]:
    """The settings that flags and `--set` name."""
    flags: dict[str, str | None] = {
        "algo": args.algo,
        "ml_framework": args.ml_framework,
        "seed": args.seed,
        "num_envs": args.num_envs,
        "device": args.device,
        "task": task,
    }
    changes = {name: value for name, value in flags.items() if value is not None}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair} has no value; write --set {name}=VALUE")
        changes[name.strip().replace("-", "_")] = value
    if "total_steps" in changes and args.max_iterations is not None:
        raise ConfigError("--max-iterations and --set total_steps both say how long to train; give one")
    return changes


def _steps_of(args: argparse.Namespace, run: "Run") -> int:
    """Environment steps of `--max-iterations` rollouts."""
    return number(args.max_iterations, "--max-iterations") * run.num_envs * run.algorithm.num_steps


def _from_target(target: str) -> "Run":
    """A recipe's name wins over a config file, a file's function, and a task, in this order."""
    from lockstep import recipes
    from lockstep.run import Run, load

    if target.replace("-", "_") in recipes.names():
        return recipes.load(target.replace("-", "_"))
    if Path(target).suffix in (".yaml", ".yml", ".json"):
        return load(Path(target))
    if Path(target).is_dir() and (Path(target) / "run.yaml").exists():
        return load(Path(target) / "run.yaml")
    if target.endswith(".py") or ".py:" in target:
        return recipes.load_file(target)
    return Run(task=target)


def checked(args: argparse.Namespace, run: "Run") -> "Run":
    """Refuse a framework that does not exist yet and a task that cannot be made."""
    if run.ml_framework == "jax":
        raise ConfigError("ml_framework=jax: training on JAX is not there yet; use --ml-framework torch")
    from lockstep import recipes
    from lockstep.envs.vector import env_spec

    try:
        env_spec(run.task, run.env)
    except ConfigError as error:
        near: list[str] = difflib.get_close_matches(run.task.lower().replace("-", "_"), recipes.names(), 2, 0.7)
        if run.task != (args.target or args.task) or not near:
            raise
        raise ConfigError(f"{error}; recipes: {', '.join(near)}") from error
    return run


def number(text: str, flag: str, expected: str = "a number", least: int = 1) -> int:
    """The number behind a flag; `ConfigError` for what is none."""
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{flag} {text} must be {expected}, at least {least}")
    return int(text)


def policy_source(given: str | None) -> Path | None:
    """Where `--init-from` points; `ConfigError` if nothing is there."""
    if given is None:
        return None
    if not Path(given).exists():
        raise ConfigError(f"--init-from {given} does not exist; give a run directory or a policy file")
    return Path(given)
