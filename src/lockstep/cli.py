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

if TYPE_CHECKING:
    from lockstep.run import Run
    from lockstep.world import World

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """The `lockstep` command; returns the exit code."""
    given = [hyphenated(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    try:
        return _run(given)
    except (ConfigError, RunError) as error:
        if "--debug" in given:
            traceback.print_exc()
        print(f"lockstep: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `lockstep recipe cartpole | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _run(given: list[str]) -> int:
    commands = {
        "train": train_command,
        "evaluate": evaluate_command,
        "recipe": recipe_command,
        "doctor": doctor_command,
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
    return args.call(args)


def train_command(args: argparse.Namespace) -> int:
    """`lockstep train`: arguments to a run, checked before a process starts or a byte is written."""
    from lockstep.world import World

    run = _checked(args, _requested_run(args))
    world = World.from_environment()
    if world.launcher == "none":
        if args.distributed and args.ranks is None:
            raise ConfigError(
                "--distributed, but no launcher started this process; start it with `python -m torch.distributed.run "
                "--nproc_per_node=2 -m lockstep.train ...`, or let Lockstep start its own ranks with --ranks 2"
            )
        world = World(size=_ranks(args.ranks))
    elif args.ranks not in (None, "auto", str(world.size)):
        raise ConfigError(
            f"--ranks {args.ranks}, but {world.launcher} started {world.size} processes; leave --ranks out"
        )
    _check_world(run, world)
    run_dir = Path(args.run_dir) if args.run_dir else None
    init_from = _policy_source(args.init_from)
    if world.launcher == "none" and world.size > 1:
        return _launch(run, world.size, run_dir, init_from, debug=args.debug)

    from lockstep.train import exit_code, train

    return exit_code(train(run, run_dir=run_dir, init_from=init_from, joined=args.joined))


def evaluate_command(args: argparse.Namespace) -> int:
    """`lockstep evaluate`: the trained policy of a run, on episodes of its own."""
    path = Path(args.run)
    if not path.exists():
        raise ConfigError(f"run {path} does not exist; give a run directory, such as runs/NAME")
    if args.episodes < 1:
        raise ConfigError(f"--episodes {args.episodes} must be at least 1")
    from lockstep.torch.evaluate_policy import evaluate_run

    result = evaluate_run(path, episodes=args.episodes, greedy=not args.sampled)
    print(
        f"{result['task']}: return {result['eval_return_mean']:.2f} +- {result['eval_return_std']:.2f} "
        f"over {result['eval_episodes']} episodes"
    )
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


def doctor_command(args: argparse.Namespace) -> int:
    """`lockstep doctor`: what this machine can do."""
    from lockstep import doctor

    return doctor.examine(_number(args.ranks, "--ranks"))


def _requested_run(args: argparse.Namespace) -> "Run":
    """The run that target and flags describe."""
    from lockstep.run import override

    target = args.target or args.task
    if target is None:
        raise ConfigError("nothing to train; name a task, a recipe or a config: lockstep train cartpole")
    run = _from_target(target)
    if args.task not in (None, run.task) and run.task == target:
        raise ConfigError(f"two tasks, {target} and --task={args.task}; give one")
    flags: dict[str, str | None] = {
        "algo": args.algo,
        "ml_framework": args.ml_framework,
        "seed": args.seed,
        "num_envs": args.num_envs,
    }
    flags |= {"device": args.device, "task": args.task if args.target else None}
    changes = {name: value for name, value in flags.items() if value is not None}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair} has no value; write --set {name}=VALUE")
        changes[name.strip().replace("-", "_")] = value
    if "total_steps" in changes and args.max_iterations is not None:
        raise ConfigError("--max-iterations and --set total_steps both say how long to train; give one")
    run = override(run, changes)
    if args.max_iterations is not None:
        rollout = run.num_envs * run.algorithm.num_steps
        run = override(run, {"total_steps": _number(args.max_iterations, "--max-iterations") * rollout})
    return run


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


def _checked(args: argparse.Namespace, run: "Run") -> "Run":
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


def _check_world(run: "Run", world: "World") -> None:
    """Refuse counts that do not divide among ranks and more ranks than GPUs."""
    shards = world.with_shards(run.num_shards)
    run.algorithm.minibatch_rows(shards.shard_size(run.num_envs, "num_envs"))
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


def _launch(run: "Run", ranks: int, run_dir: Path | None, init_from: Path | None, *, debug: bool) -> int:
    """Start one process per rank; each reads the same `run.yaml`."""
    from lockstep.launch.local import launch
    from lockstep.record.run_dir import RunDir

    path = RunDir.create(run_dir, run).path
    command = [sys.executable, "-m", "lockstep.train", str(path / "run.yaml"), "--run-dir", str(path), "--joined"]
    command += ["--init-from", str(init_from)] if init_from else []
    command += ["--debug"] if debug else []
    # The ranks import what this process could: modules beside a recipe script, and in the working directory.
    search = dict.fromkeys([os.getcwd(), *(entry for entry in sys.path if entry), *_python_path()])
    return launch(command, ranks=ranks, run_dir=path, environment=os.environ | {"PYTHONPATH": os.pathsep.join(search)})


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _ranks(requested: str | None) -> int:
    if requested == "auto":
        from lockstep.doctor import visible_gpus

        return max(visible_gpus(), 1)
    return _number(requested or "1", "--ranks", "a number or auto")


def _number(text: str, flag: str, expected: str = "a number") -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} {text} must be {expected}, at least 1")
    return int(text)


def _policy_source(given: str | None) -> Path | None:
    if given is None:
        return None
    if not Path(given).exists():
        raise ConfigError(f"--init-from {given} does not exist; give a run directory or a policy file")
    return Path(given)


if __name__ == "__main__":
    sys.exit(main())
