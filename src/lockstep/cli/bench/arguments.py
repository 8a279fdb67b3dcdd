"""The arguments of `lockstep bench`."""

import argparse

from lockstep.launch.flags import directory

DEFAULT_FOLDER = "runs/bench"
DEFAULT_ENVIRONMENTS = ".bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep bench`."""
    add = parser.add_argument
    add("workloads", metavar="NAME", nargs="*", help="workloads to measure (default: all); --list shows them")
    add("--list", action="store_true", help="list the workloads, who does them and what they need, and end")
    add("--repetitions", metavar="N", default="5", help="of each library, in turn with the others (default: 5)")
    add("--only", metavar="LIBRARY,LIBRARY...", help="libraries to measure, such as lockstep,sb3 (default: all)")
    add(
        "--scale",
        metavar="X",
        default="1",
        help="multiply the measured steps of all workloads, such as 0.1 for a trial (default: 1)",
    )
    results = f"results; a second start continues ({DEFAULT_FOLDER})"
    add("--run-dir", metavar="DIR", type=directory, default=DEFAULT_FOLDER, help=results)
    environments = f"where the libraries are installed, one environment each (default: {DEFAULT_ENVIRONMENTS})"
    add("--environments", metavar="DIR", default=DEFAULT_ENVIRONMENTS, help=environments)
    python = "an interpreter to use instead of an environment made here; may be repeated"
    add("--python", metavar="NAME=PYTHON", action="append", default=[], help=python)
    add("--purejaxrl", metavar="DIR", help="the folder with the package purejaxrl, which is on no package index")
    add("--retry-failed", action="store_true", help="measure again what has failed before")
    add("--debug", action="store_true", help="show tracebacks")
