"""`lockstep offline`: prepare logged data, learn from it, evaluate policies on it, and record logs.

Each command has a file of its name, such as `train.py`.
"""

import argparse

from lockstep.cli.command_help import COMMANDS
from lockstep.cli.offline import evaluate, prepare, record, train
from lockstep.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `lockstep offline`."""
    parser.set_defaults(call=_no_command)
    chosen = parser.add_subparsers(dest="part", metavar="COMMAND", parser_class=type(parser))
    for name, add, call in (
        ("prepare", prepare.add_arguments, prepare.prepare_command),
        ("train", train.add_arguments, train.train_command),
        ("evaluate", evaluate.add_arguments, evaluate.evaluate_command),
        ("record", record.add_arguments, record.record_command),
    ):
        part = chosen.add_parser(name, allow_abbrev=False, **COMMANDS[f"offline {name}"].parser_options())
        add(part)
        part.set_defaults(call=call)


def _no_command(args: argparse.Namespace) -> int:
    raise ConfigError("lockstep offline needs a command: prepare, train, evaluate or record")
