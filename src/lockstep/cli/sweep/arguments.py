"""The arguments of `lockstep sweep`, and those of `lockstep train` for several seeds."""

import argparse

from lockstep.engines.ray.arguments import add_ray_arguments
from lockstep.launch.flags import directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep sweep`."""
    add = parser.add_argument
    add("target", metavar="SWEEP.yaml|DIR", help="a sweep file, or the directory of a sweep to continue")
    where = "where results go (default: runs/ and the name of the file)"
    add("--run-dir", metavar="DIR", type=directory, help=where)
    add_jobs(parser)
    add("--sampler", choices=("grid", "random", "optuna"), help="how settings are chosen (default: that of the file)")
    add("--trials", metavar="N", help="combinations that random and optuna try (default: that of the file)")
    add("--retry-failed", action="store_true", help="run failed runs again, from their newest checkpoint")
    add_ray_arguments(parser.add_argument_group("a Ray cluster"), sweep=True)
    add("--dry-run", action="store_true", help="check everything and list the runs, but start none")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lockstep train` that train with several seeds."""
    seeds = "train a whole run with each seed, side by side, such as 0:5 (0 to 4) or 0,3,7; --resume continues them"
    parser.add_argument("--seeds", metavar="A:B|S,S...", help=seeds)
    add_jobs(parser)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add `--jobs`."""
    text = "runs of a sweep, or of --seeds, at a time (default: as many as there are cores and GPUs for)"
    parser.add_argument("--jobs", metavar="N", help=text)
