"""`lockstep offline record`: write the decisions of a policy as a log."""

import argparse
import sys
from pathlib import Path

from lockstep.cli.flags import add_policy_flags
from lockstep.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep offline record`."""
    add = parser.add_argument
    add(
        "source",
        metavar="RUN|CHECKPOINT|FILE|TASK",
        help="run directory, its checkpoints/step_N, or a policy file in it; or a task, played at random",
    )
    add_policy_flags(parser)
    add("--out", metavar="FILE", required=True, help="log to write: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, ...")
    add("--episodes", metavar="N", help="how many (default: 100)")
    add("--steps", metavar="N", help="how many rows instead; the last episodes are cut off")
    add("--sampled", action="store_true", help="sample actions as the algorithm does instead of taking the best")
    add("--epsilon", metavar="P", help="take a random action with this probability (default: 0)")
    add("--seed", metavar="S", default="0", help="same seed, same log (default: 0)")
    add("--debug", action="store_true", help="show tracebacks")


def record_command(args: argparse.Namespace) -> int:
    """`lockstep offline record`; returns the exit code."""
    from functools import partial

    from lockstep.launch.flags import number
    from lockstep.record.text import counted
    from lockstep.session.package_checks import check_package
    from lockstep.session.policy_file import POLICY_FILE
    from lockstep.session.which_policy import read_policy

    if args.episodes is not None and args.steps is not None:
        raise ConfigError(f"--episodes {args.episodes} and --steps {args.steps} both say how many; leave one out")
    if args.sampled and args.epsilon is not None:
        raise ConfigError(f"--sampled acts as the algorithm does, --epsilon {args.epsilon} otherwise; leave one out")
    epsilon, steps = _probability(args.epsilon or "0"), args.steps and number(args.steps, "--steps")
    episodes = None if steps else number(args.episodes or "100", "--episodes")
    seed = number(args.seed, "--seed", least=0)
    from lockstep.session.offline.recording import Recording, record_at_random
    from lockstep.system.exit_signals import exit_on_signal

    path, policy, record = Path(args.source), None, record_at_random
    if _names_a_policy(path):
        check_package("torch", what="to record the policy of a run", either=False)
        policy, metadata, arrays = read_policy(path, best=args.best, last=args.last, step=args.checkpoint)
        from lockstep.torch.offline.record import record as record_policy

        record = partial(record_policy, policy=policy, metadata=metadata, arrays=arrays)
    elif given := [f"--{name}" for name in ("best", "last", "checkpoint") if getattr(args, name)]:
        raise ConfigError(
            f"{given[0]} chooses among the policies of a run, and {path} is no run directory; give runs/NAME, or leave "
            f"{given[0]} out to play a task at random"
        )
    recording = Recording(
        source=args.source,
        out=Path(args.out),
        episodes=episodes,
        steps=steps,
        how="sampled" if args.sampled else "greedy",
        epsilon=epsilon,
        seed=seed,
    )
    with exit_on_signal():
        summary = record(recording)
    mean = "" if summary["return_mean"] is None else f", mean return {summary['return_mean']:.2f}"
    if policy is not None and policy.path.name != POLICY_FILE:
        print(f"lockstep: note: the log is of {policy.description}", file=sys.stderr)
    rows, episodes = counted(summary["rows"], "row"), counted(summary["episodes"], "whole episode")
    print(f"{args.out}: {rows} of {summary['task']}, {episodes}{mean}")
    return 0


def _names_a_policy(path: Path) -> bool:
    """Whether this is a path of a run, a checkpoint or a file, there or mistyped, and not the name of a task."""
    from lockstep.record.run_dir import RUN_FILE
    from lockstep.session.policy_file import POLICY_FILE

    if path.is_dir() or (path.is_file() and path.suffix != ".py") or path.suffix == Path(POLICY_FILE).suffix:
        return True
    if len(path.parts) == 1:  # CartPole-v1, where there may be runs beside
        return False
    below_a_run = any((parent / RUN_FILE).is_file() for parent in path.parents)
    return below_a_run or any(path.parent.glob(f"*/{RUN_FILE}"))


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigError(f"--epsilon {text} must be a probability, from 0 to 1")
    return value
