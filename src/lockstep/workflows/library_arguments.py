"""The command line of the workflows that train with another library: its names, as users of robot suites type them."""

import argparse
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from lockstep.config import settings
from lockstep.envs import isaac
from lockstep.errors import ConfigError
from lockstep.launch.flags import OneLineParser, without_flags
from lockstep.system.files import read_text
from lockstep.world import World

ENTRY_POINTS = {
    "skrl": "skrl_cfg_entry_point",
    "rl_games": "rl_games_cfg_entry_point",
    "rsl_rl": "rsl_rl_cfg_entry_point",
}
"""The config that Isaac Lab's tasks publish for each library."""
DISTRIBUTIONS = {"skrl": "skrl", "rl_games": "rl-games", "rsl_rl": "rsl-rl-lib"}
_ALSO_NEEDED = {"skrl": (), "rl_games": ("gym",), "rsl_rl": ("tensordict",)}
_DEFAULT_NUM_ENVS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRequest:
    """What the command line asks for."""

    library: str
    task: str
    """The id in the installed version of its suite."""
    agent: str
    """A YAML file of the library's own settings, or the name of an entry point of an Isaac Lab task."""
    ml_framework: str
    num_envs: int | None
    """Environments of each rank, as in the library's own scripts. None: as the task's config says."""
    seed: int | None
    """None: as the library's config says."""
    max_iterations: int | None
    device: str
    run_dir: Path | None
    started_by_lockstep: bool
    """Whether the launcher made the run directory."""
    overrides: tuple[str, ...]
    """Settings and presets of Isaac Lab's own command line (`env.decimation=4`)."""
    notes: tuple[str, ...]
    """Lines for the user about translated arguments."""


def parse(library: str, words: list[str]) -> tuple[LibraryRequest, int]:
    """Check the command line.

    Returns:
        The request, and the number of ranks that this process is to start; 0: it trains itself.

    Raises:
        ConfigError: it cannot work.
    """
    args = _parser(library).parse_args(words)
    world = World.from_environment()
    ranks = _ranks_to_start(library, args, world)
    if not args.task:
        raise ConfigError(
            f"nothing to train; name a task: python -m lockstep.workflows.{library} --task=Isaac-Cartpole"
        )
    if library != "skrl" and args.ml_framework == "jax":
        raise ConfigError(f"--ml_framework jax: {library} trains with torch; use --ml_framework torch, or skrl")
    task, notes = args.task, []
    if isaac.is_isaac(task):
        task, line = isaac.current_id(task)
        notes = [line] if line else []
    elif args.overrides:
        raise ConfigError(f"{args.overrides[0]}: only tasks of Isaac Lab have such settings, and {task} is none")
    _check_installed(library, args.ml_framework)
    request = LibraryRequest(
        library=library,
        task=task,
        agent=_agent(library, args, task),
        ml_framework=args.ml_framework,
        num_envs=args.num_envs if args.num_envs is not None or isaac.is_isaac(task) else _DEFAULT_NUM_ENVS,
        seed=args.seed,
        max_iterations=args.max_iterations,
        device=args.device,
        run_dir=None if args.run_dir is None else Path(args.run_dir),
        started_by_lockstep=args.started_by_lockstep,
        overrides=tuple(args.overrides),
        notes=tuple(notes),
    )
    return request, ranks


def without_ranks(words: list[str]) -> list[str]:
    """The command line of a rank that we start: without `--ranks`, `--distributed` and `--run_dir`."""
    return without_flags(words, "--ranks", "--run_dir", "--run-dir", switches=["--distributed"])


def _parser(library: str) -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=f"python -m lockstep.workflows.{library}",
        description=f"Train with {library} itself on any number of ranks.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--task", metavar="ID", help="a task of Isaac Lab or Gymnasium, or a built-in one (lockstep/Cartpole-v0)")
    add("--agent", metavar="FILE|NAME", help="YAML file of the library's settings, or an entry point of the task")
    add("--num_envs", "--num-envs", metavar="N", type=_integer, help="environments of each rank")
    add("--seed", metavar="S", type=partial(_integer, least=0), help="rank 0 uses S, other ranks seeds made from it")
    add("--max_iterations", "--max-iterations", metavar="N", type=_integer, help="rollouts, each with its updates")
    add("--ml_framework", "--ml-framework", choices=("torch", "jax"), default="torch", help="jax: skrl only")
    add("--device", metavar="auto|cpu|cuda", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    add("--ranks", metavar="N", type=_integer, help="processes to start on this machine")
    add("--distributed", action="store_true", help="fail unless a launcher started this process")
    add("--headless", action="store_true", help="changes nothing: nothing is rendered")
    add("--run_dir", "--run-dir", metavar="DIR", help="where results go (default: runs/TASK-LIBRARY-TIME)")
    add("--local-rank", "--local_rank", help=argparse.SUPPRESS)  # added by torch.distributed.launch
    add("--started-by-lockstep", action="store_true", help=argparse.SUPPRESS)  # set by our own launcher
    add("overrides", metavar="KEY=VALUE", nargs="*", help="settings and presets of Isaac Lab's own command line")
    return parser


def _ranks_to_start(library: str, args: argparse.Namespace, world: World) -> int:
    if world.launcher != "none":
        if args.ranks not in (None, world.size):
            raise ConfigError(
                f"--ranks {args.ranks}, but {world.launcher} started {world.size} processes; leave --ranks out"
            )
        return 0
    if args.distributed and args.ranks is None:
        raise ConfigError(
            "--distributed, but no launcher started this process; start it with `python -m torch.distributed.run "
            f"--nproc_per_node=2 -m lockstep.workflows.{library} ...`, or let Lockstep start the ranks with --ranks 2"
        )
    return args.ranks if args.ranks is not None and args.ranks > 1 else 0


def _agent(library: str, args: argparse.Namespace, task: str) -> str:
    agent: str | None = args.agent
    if agent is None:
        if isaac.is_isaac(task):
            return ENTRY_POINTS[library]
        raise ConfigError(
            f"task={task} publishes no settings for {library}; give its own config file: --agent FILE.yaml"
        )
    if agent.endswith((".yaml", ".yml")):
        if not Path(agent).is_file():
            raise ConfigError(f"--agent {agent}: the file does not exist")
        read_agent_file(agent, needs_seed=args.seed is None)
    elif not isaac.is_isaac(task):
        raise ConfigError(f"--agent {agent} is no YAML file, and only tasks of Isaac Lab publish settings by name")
    return agent


def read_agent_file(path: str, *, needs_seed: bool) -> dict[str, Any]:
    """The settings in a YAML file of a library.

    Raises:
        ConfigError: they cannot be such a library's; or `needs_seed`, and theirs is none. rl_games and Isaac Lab write
            -1 for a random one, which ranks could not derive theirs from.
    """
    found = settings.parse(read_text(Path(path)), path)
    if not isinstance(found, dict):
        raise ConfigError(f"--agent {path} holds no settings")
    agent = cast("dict[str, Any]", found)
    params = agent.get("params", agent)
    if not isinstance(params, dict):
        raise ConfigError(f"--agent {path}: params={params} must hold the settings of rl_games by name")
    seed = cast("dict[str, Any]", params).get("seed")
    if needs_seed and (not isinstance(seed, int | None) or (seed or 0) < 0):
        raise ConfigError(f"--agent {path}: seed={seed} must be a whole number of at least 0; or give --seed S")
    return agent


def _check_installed(library: str, ml_framework: str) -> None:
    missing = [name for name in (library, *_ALSO_NEEDED[library]) if find_spec(name) is None]
    if library in missing:
        raise ConfigError(f"{library} is not installed: pip install {DISTRIBUTIONS[library]}")
    if missing:
        raise ConfigError(f"{library} needs {missing[0]}, which is not installed: pip install {missing[0]}")
    for name in ("jax", "flax", "optax") if ml_framework == "jax" else ():
        if find_spec(name) is None:
            raise ConfigError(f"--ml_framework jax needs {name}, which is not installed: pip install jax flax optax")


def _integer(text: str, least: int = 1) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
    return value
