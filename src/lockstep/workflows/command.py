"""The command line of `python -m lockstep.workflows.dqn -p dqn.json --node_index=1`."""

import shlex
import sys

from lockstep.errors import ConfigError
from lockstep.launch.flags import OneLineParser


def main(algo: str, arguments: list[str] | None = None) -> int:
    """Run `lockstep offline train FILE` with a workflow file; returns the exit code.

    Args:
        algo: the algorithm that the file must have, `dqn` or `parametric_dqn`.
        arguments: default: the command line. Others than those of the parser below are passed on.
    """
    from lockstep.cli import main as cli

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words = _words(algo, given)
    except ConfigError as error:
        print(f"lockstep: error: {error}", file=sys.stderr)
        return error.exit_code
    return cli.main(words)


def _words(algo: str, given: list[str]) -> list[str]:
    from lockstep.cli.workflow_files.files import read

    parser = OneLineParser(
        prog=f"python -m lockstep.workflows.{algo}",
        description=f"Learn from a log as a workflow file says ({algo}); all flags of `lockstep offline train` work.",
        allow_abbrev=False,
    )
    parser.add_argument("-p", "--parameters", metavar="FILE", help="the workflow file, JSON or YAML")
    parser.add_argument("-ni", "--node_index", "--node-index", metavar="N", help="which of num_nodes this machine is")
    args, rest = parser.parse_known_args(given)
    if args.parameters is None:
        raise ConfigError(f"nothing to do; name a workflow file: python -m lockstep.workflows.{algo} -p FILE")
    found = read(args.parameters).run.algo
    if found != algo:
        raise ConfigError(
            f"{args.parameters} is a workflow of {found}; use python -m lockstep.workflows.{found} -p "
            f"{shlex.quote(str(args.parameters))}"
        )
    index = [] if args.node_index is None else ["--node-index", args.node_index]
    return ["offline", "train", args.parameters, *index, *rest]
