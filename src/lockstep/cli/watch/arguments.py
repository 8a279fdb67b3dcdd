"""The arguments of `lockstep watch` and `lockstep runs`."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep watch`."""
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="run directory, which need not exist yet (default: the newest in runs/)")
    add("--metric", metavar="NAME", help="curve to show first, such as loss/value (default: the return)")
    add("--every", metavar="SECONDS", default="1", help="between two looks at the files (default: 1)")
    add("--once", action="store_true", help="print one frame and exit; also where the output is not a terminal")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep runs`."""
    parser.add_argument("dir", metavar="DIR", nargs="*", help="runs, or directories of them (default: runs)")
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
