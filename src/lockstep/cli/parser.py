"""The argument parser of `lockstep`: commands, flags, help texts and usage errors."""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

from lockstep.cli.command_help import COMMANDS, FAULTS
from lockstep.cli.flags import RANKS, add_policy_choice, add_run_arguments, add_set_argument, add_train_arguments
from lockstep.errors import ConfigError
from lockstep.launch.node_flags import add_node_arguments, add_ranks

_EXAMPLES = """\
examples:
  lockstep train cartpole --ranks 2
  lockstep train CartPole-v1 --algo ppo --ranks 4 --seed 3 --set num_envs=64 --set learning_rate=1e-3
  lockstep train ALE/Breakout-v5 --algo dqn --ranks 2 --set double=false
  lockstep train --resume runs/NAME
  lockstep recipe cartpole > my_cartpole.py && lockstep train my_cartpole.py:recipe
  python -m torch.distributed.run --nproc_per_node=2 -m lockstep.train --task=CartPole-v1 --distributed
"""
_CHANGED_MOST = """\
settings that are changed most, with --set NAME=VALUE (all counts are over all ranks):
  how long     total_steps=500000  environment steps       stop_return=null        stop at this evaluated return
               checkpoint_every=100000                     evaluate_every=50000  steps between evaluations
  what learns  num_envs=8  environments in parallel        hidden=[64, 64]  layers of the network
               gamma=0.99  discount                        num_shards=null  pin it: same bits on any number of ranks
  ppo          learning_rate=2.5e-4                        num_steps=128  of each environment in a rollout
               num_epochs=4  passes over a rollout         num_minibatches=4  gradient steps of a pass
               entropy_coef=0.01                           clip_range=0.2
  dqn          learning_rate=1e-4                          batch_size=32  transitions of a gradient step
               capacity=100000  of the replay              learning_starts=10000  steps before learning
               updates_per_step=0.25  gradient steps       epsilon_steps=100000  until exploration has fallen
  sac, td3     learning_rate=3e-4                          batch_size=256  transitions of a gradient step
               updates_per_step=1.0  gradient steps        learning_starts=10000  random steps before learning
the values shown are the defaults of a config file; a task id alone starts from defaults for its kind of task (printed
at the start, and all in run.yaml), a recipe from its own values (`lockstep recipe NAME` shows them); docs/settings.md
explains the settings
"""
_OTHER_COMMANDS = {
    **dict.fromkeys(("eval", "test"), "evaluate"),
    **dict.fromkeys(("enjoy", "render"), "play"),
    **dict.fromkeys(("run", "learn", "fit", "start"), "train"),
    **dict.fromkeys(("envs", "list", "environments"), "tasks"),
    "resume": "train --resume",
    **dict.fromkeys(("ls", "status", "ps"), "runs"),
    **dict.fromkeys(("monitor", "follow", "tail", "top"), "watch"),
    **dict.fromkeys(("search", "tune", "hpo", "grid"), "sweep"),
    **dict.fromkeys(("compare", "plot", "show"), "report"),
    "benchmark": "bench",
    **{name: f"--{name}" for name in ("help", "version")},
}
"""Commands of other programs, and ours."""


def parser(commands: Mapping[str, Callable[[argparse.Namespace], int]]) -> argparse.ArgumentParser:
    """The parser of `lockstep`; `args.call(args)` runs the parsed command."""
    from lockstep.cli.bench.arguments import add_arguments as add_bench_arguments
    from lockstep.cli.offline import add_arguments as add_offline_arguments
    from lockstep.cli.offline.export import add_arguments as add_export_arguments
    from lockstep.cli.scale.arguments import add_arguments as add_scale_arguments
    from lockstep.cli.submit.arguments import add_arguments as add_submit_arguments
    from lockstep.cli.sweep.arguments import add_arguments as add_sweep_arguments

    top = _Parser(
        prog="lockstep",
        description="Data-parallel reinforcement learning that takes the same step on every rank.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    chosen = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def add_command(name: str, more: str = "") -> argparse.ArgumentParser:
        command = chosen.add_parser(name, allow_abbrev=False, **COMMANDS[name].parser_options(more))
        command.set_defaults(call=commands.get(name))
        return command

    add_train_arguments(add_command("train", f"{_CHANGED_MOST}\n"))
    add_sweep_arguments(add_command("sweep"))
    add_bench_arguments(add_command("bench"))
    add_scale_arguments(add_command("scale"))
    launch = add_command("launch")
    _add_launch_arguments(launch)
    evaluate = add_command("evaluate")
    _add_evaluate_arguments(evaluate, episodes=100)
    play = add_command("play")
    _add_evaluate_arguments(play, episodes=3)
    tasks = add_command("tasks")
    tasks.add_argument("pattern", metavar="PATTERN", nargs="?", help="part of an id, or a pattern such as '*Ant*'")
    tasks.add_argument("--json", action="store_true", help="for scripts")
    check = add_command("check")
    _add_check_arguments(check)
    chaos = add_command("chaos")
    add_run_arguments(chaos, ranks=(RANKS[0], RANKS[1].replace("default: 1", "default: 2")))
    chaos.add_argument("--faults", metavar="KIND,KIND...", help=f"kinds of faults (default: all): {FAULTS}")
    _add_views(add_command)
    add_submit_arguments(add_command("submit"))
    recipe = add_command("recipe")
    recipe.add_argument("name", metavar="NAME", nargs="?", help="recipe to print; without one, all are listed")
    add_offline_arguments(add_command("offline"))
    export = add_command("export")
    add_export_arguments(export)
    doctor = add_command("doctor")
    doctor.add_argument("--ranks", metavar="N", help="ranks of the measured all-reduce (default: 2)")
    add_node_arguments(doctor.add_argument_group("several machines: what their ranks find out before they train"))
    completion = add_command("completion")
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="the shell to print the completion script for"
    )
    for command in (launch, evaluate, play, tasks, check, recipe, export, doctor):
        command.add_argument("--debug", action="store_true", help="show tracebacks")
    return top


def _add_views(add_command: Callable[[str], argparse.ArgumentParser]) -> None:
    """Add the commands that show runs."""
    from lockstep.cli.report import add_arguments as add_report_arguments
    from lockstep.cli.watch.arguments import add_arguments as add_watch_arguments
    from lockstep.cli.watch.arguments import add_runs_arguments

    add_watch_arguments(add_command("watch"))
    add_runs_arguments(add_command("runs"))
    add_report_arguments(add_command("report"))


def hyphenated(word: str) -> str:
    """`--num_envs=a_b` is `--num-envs=a_b`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def did_you_mean(near: Iterable[str]) -> str:
    """A question that suggests `near`; empty if there are none."""
    names = " or ".join(near)
    return f"did you mean {names}?" if names else ""


class _Parser(argparse.ArgumentParser):
    """Raises `ConfigError` for usage errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise `ConfigError` for an unknown command or choice, with similar ones."""
        choices = [str(choice) for choice in cast(Iterable[object], action.choices or ())]
        if not choices or value in choices:
            return
        near: list[str] = difflib.get_close_matches(str(value), choices, n=2)
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            near = [_OTHER_COMMANDS[value]] if value in _OTHER_COMMANDS else _trained(value) or near
            hint = did_you_mean(f"{self.prog} {name}" for name in near) or f"commands are {', '.join(choices)}"
            raise ConfigError(f"{self.prog} has no command {value}; {hint}")
        name = action.option_strings[0] if action.option_strings else action.metavar or action.dest
        raise ConfigError(f"{name} {value} must be one of {', '.join(choices)}")


def _trained(word: str) -> list[str]:
    """The command that trains `word`, if it is a recipe or a task."""
    from lockstep.recipes import names

    is_task = word in names() or re.search(r"-v\d+$|\.yaml$|\.py$|\.py:\w+$", word)
    return [f"train {word}"] if is_task else []


def _add_evaluate_arguments(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    add_policy_choice(parser)
    text = f"number of episodes (default: {episodes})"
    parser.add_argument("--episodes", metavar="N", default=str(episodes), help=text)
    parser.add_argument("--seed", metavar="S", help="of the episodes (default: that of the run, plus 1)")
    parser.add_argument("--ranks", metavar="N|auto", help="processes that share the episodes (default: 1)")
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most likely")
    parser.add_argument(
        "--video", action="store_true", help="record a video of one more episode: RUN/videos/evaluate.gif"
    )
    parser.add_argument("--ml-framework", choices=("torch", "jax"), help="backend that acts (default: that of the run)")


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TASK|RECIPE|CONFIG.yaml", help="what to check, such as my_env.py:MyEnv")
    add_set_argument(parser)
    no_flags = dict.fromkeys(("task", "algo", "agent", "ml_framework", "seed", "num_envs", "device", "max_iterations"))
    parser.set_defaults(video=False, **no_flags)


def _add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_ranks(parser)
    add_node_arguments(parser)
    add("-m", "--module", action="store_true", help="SCRIPT is a Python module")
    add("--no-python", "--no_python", action="store_true", help="SCRIPT is a program of any kind")
    add(
        "--log-dir",
        "--log_dir",
        metavar="DIR",
        help="keep what rank R prints in DIR/logs/rank_R.log (default: print it)",
    )
    add("script", metavar="SCRIPT", help="what each rank runs")
    script_args = add("script_args", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="for the script")
    script_args.required = False  # argparse would name it beside a missing SCRIPT
