"""The flags of `lockstep evaluate` and `lockstep export` that select a policy."""

import argparse


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select a policy of a run."""
    add = parser.add_argument
    add("run", metavar="RUN|CHECKPOINT|FILE", help="run directory, its checkpoints/step_N, or a policy file")
    add("--best", action="store_true", help="the policy of the best evaluation")
    add(
        "--last", action="store_true", help="the final policy, or the newest checkpoint of a run that goes on (default)"
    )
    add("--checkpoint", metavar="STEP", help="the policy of the checkpoint of this step")
