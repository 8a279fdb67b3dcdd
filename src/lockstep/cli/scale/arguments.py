"""The arguments of `lockstep scale`."""

import argparse

from lockstep.cli.flags import add_run_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep scale`; `--ranks` is a list here."""
    add_run_arguments(parser, ranks=("N,N,...", "numbers of ranks to compare, such as 1,2,4 (required)"))
    add = parser.add_argument_group("measuring; the target may be the directory of an earlier start").add_argument
    add("--modes", metavar="weak,strong", default="weak,strong", help="as many environments per rank, or in all")
    add("--updates", metavar="N", default="40", help="measured updates of each run (default: 40)")
    add("--repetitions", metavar="N", default="3", help="of each measurement, in turn (default: 3)")
    add("--return", metavar="R", dest="target_return", help="also measure the time until this evaluated return")
    add("--seeds", metavar="A:B|S,S...", help="of the runs until a return (default: 0:3)")
    add("--dry-run", action="store_true", help="check everything and list the runs, but start none")
