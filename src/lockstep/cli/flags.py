"""The flags of `lockstep train`, in groups that other commands share."""

import argparse
from typing import Any

from lockstep.cli.sweep.arguments import add_seeds
from lockstep.engines.ray.arguments import add_ray_arguments
from lockstep.launch.flags import directory
from lockstep.launch.node_flags import add_grace, add_node_arguments

RANKS = ("N|auto", "learner processes to start; auto: one per GPU (default: 1)")
"""Metavar and help of `--ranks` where a command has no others."""


def add_run_arguments(parser: argparse.ArgumentParser, *, ranks: tuple[str, str] = RANKS) -> None:
    """Add the target and the flags of a run in environments; `ranks`: metavar and help of `--ranks`."""
    add = parser.add_argument
    add("target", metavar="TASK|RECIPE|CONFIG.yaml|FILE.py:FUNCTION", nargs="?", help="what to train")
    add("--task", metavar="ID", help="the task to train, if not named first; or another task, with a recipe's settings")
    add("--algo", metavar="ppo|dqn|sac|td3", help="algorithm (default: ppo for a task; a recipe has its own)")
    add(
        "--agent",
        metavar="NAME|FILE.yaml",
        help="settings of rl_games, skrl, rsl_rl or sb3: one that Isaac Lab or mjlab publishes for the task, or a file",
    )
    add("--num-envs", metavar="N", help="environments, all ranks together")
    add("--max-iterations", metavar="N", help="train for N rollouts")
    add("--headless", action="store_true", help="do not render; nothing renders unless asked to")
    add_learning_arguments(parser, ranks=ranks)


def add_learning_arguments(parser: argparse.ArgumentParser, *, ranks: tuple[str, str] = RANKS) -> None:
    """Add the flags of every run, online or offline; `ranks`: metavar and help of `--ranks`."""
    add = parser.add_argument
    add("--ml-framework", metavar="torch|jax", help="backend (default: torch)")
    add("--ranks", metavar=ranks[0], help=ranks[1])
    add("--seed", metavar="S", help="same seed, same parameters")
    add("--run-dir", metavar="DIR", type=directory, help="where results go (default: a new directory in runs/)")
    add_set_argument(parser)
    add("--device", metavar="auto|cpu|cuda", help="where to compute")
    add("--video", action="store_true", help="record a video of one more episode at each evaluation: videos/step_N.gif")
    add("--debug", action="store_true", help="show tracebacks")


def flags_of(parser: argparse.ArgumentParser) -> list[tuple[str, str, Any]]:
    """The flags of a parser: what the user types, the name in the namespace, the default."""
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return [(action.option_strings[0], action.dest, action.default) for action in actions if action.option_strings]


def add_set_argument(
    parser: argparse.ArgumentParser, text: str = "change any setting; values are YAML; repeatable"
) -> None:
    """Add `--set KEY=VALUE`."""
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=text)


def add_policy_choice(parser: argparse.ArgumentParser) -> None:
    """Add the argument and the flags that select a policy of a run."""
    parser.add_argument(
        "run", metavar="RUN|CHECKPOINT|FILE", help="run directory, its checkpoints/step_N, or a policy file"
    )
    add_policy_flags(parser)


def add_policy_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select among the policies of a run."""
    add = parser.add_argument
    add("--best", action="store_true", help="the policy of the best evaluation")
    last = "the final policy, or the newest checkpoint of a run in progress (default)"
    add("--last", action="store_true", help=last)
    add("--checkpoint", metavar="STEP", help="the policy of the checkpoint of this step")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all arguments of `lockstep train`."""
    add_run_arguments(parser)
    add_seeds(parser)
    add_start_arguments(parser)


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of resuming, restarting and launching."""
    add = parser.add_argument
    add(
        "--resume",
        metavar="DIR",
        help="resume a run, from its newest checkpoint or checkpoints/step_N; --ranks: as before",
    )
    add(
        "--max-restarts",
        metavar="N",
        help="restart all ranks from the newest checkpoint, up to N times after one failed (default: 0)",
    )
    add_grace(parser)
    add("--init-from", "--checkpoint", metavar="RUN|FILE", help="start from the policy of another run")
    text = "record N updates of all ranks, after warm-up, in profile.json.gz of the run, for ui.perfetto.dev"
    add("--profile", metavar="N", help=text)
    add("--distributed", action="store_true", help="fail unless a launcher started this process or --ranks is given")
    add("--local-rank", help=argparse.SUPPRESS)  # added by torch.distributed.launch; LOCAL_RANK is used instead
    add("--started-by-lockstep", action="store_true", help=argparse.SUPPRESS)  # set by our own launcher
    add_node_arguments(parser.add_argument_group("several machines"), restarts=False)
    add_ray_arguments(parser.add_argument_group("a Ray cluster"))
