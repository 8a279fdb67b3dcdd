"""`lockstep launch`, and `lockstep train` and `lockstep doctor` on several nodes."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.distributed.network.interfaces import is_local, listening_socket, resolve
from lockstep.errors import ConfigError
from lockstep.launch.failure_report import left_early
from lockstep.launch.local import RestartPolicy, launch
from lockstep.launch.node_flags import bounds_of, max_restarts_of, nodes_of, take_ranks, without_node_flags
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import check_no_rank
from lockstep.launch.restarts import new_start_record, recorded_run
from lockstep.launch.search_path import search_path, search_path_of_programs
from lockstep.launch.supervise import SCRIPT_EARLY_S, Bounds
from lockstep.preflight.identity import identity, user_code
from lockstep.preflight.setting_paths import with_portable_paths

if TYPE_CHECKING:
    from lockstep.run import AnyRun

LOCKSTEP = (sys.executable, "-m", "lockstep.cli")
PROBE = (sys.executable, "-m", "lockstep.cli.probe")


def launch_command(args: argparse.Namespace) -> int:
    """`lockstep launch`: any script, once per rank on every node."""
    check_no_rank("lockstep launch")
    take_ranks(args)
    nodes = nodes_of(args)
    note_ranks_of_the_script(args, "lockstep launch")
    return run_program(program(args), nodes, args)


def note_ranks_of_the_script(args: argparse.Namespace, launcher: str) -> None:
    """Say that `--ranks` behind the script goes to the script, where the launcher was told no number of ranks."""
    names = [word.partition("=")[0] for word in args.script_args]
    flags = [name for name in names if name.replace("_", "-") in ("--ranks", "--nproc-per-node")]
    if flags and args.nproc_per_node is None:
        print(
            f"note: {flags[0]} stands behind {args.script} and goes to it; to start several ranks: "
            f"{launcher} {flags[0]} N {args.script}",
            file=sys.stderr,
        )


def program(args: argparse.Namespace, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """The command of each rank, from `script`, `module` and `no_python`; `python` is the interpreter with its flags."""
    script = str(args.script)
    if args.module and args.no_python:
        raise ConfigError("--module runs a Python module, and --no-python a program; give one of them")
    if args.no_python:
        if shutil.which(script) is None:
            raise ConfigError(f"program {script} does not exist or cannot be started; check its path")
        return [script]
    if args.module:
        return [*python, "-m", script]
    if not Path(script).is_file():
        raise ConfigError(f"script {script} does not exist; give a Python file, or -m MODULE")
    return [*python, script]


def run_program(
    command: list[str],
    nodes: Nodes,
    args: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    ml_framework: str = "torch",
) -> int:
    """Start `command` with the script's own arguments once per rank on every node; returns the exit code.

    `environment` overrides this process's variables; `ml_framework` as in `launch`.
    """
    script = str(args.script)
    code = user_code([f"{script}:" if args.module else script])
    words = {"script": script, **{f"argument {n}": word for n, word in enumerate(args.script_args, 1)}}
    node_identity = identity(shlex.join(words.values()), code, getattr(args, "ml_framework", "torch"))
    node_identity["settings"] = words
    log_dir = None if args.log_dir is None else _made_log_dir(args.log_dir)
    meeting: dict[str, str] = {}
    if nodes.maximum == 1 and nodes.rank_port:
        own = _address_here(nodes)
        listening_socket(own, nodes.port, nodes.setting).close()
        meeting = {"MASTER_ADDR": own, "MASTER_PORT": str(nodes.rank_port)}
    return _start(
        [*command, *args.script_args],
        nodes,
        node_identity,
        args,
        bounds=bounds_of(args, SCRIPT_EARLY_S),
        log_dir=log_dir,
        environment={**(environment or {}), **meeting},
        ml_framework=ml_framework,
    )


def _made_log_dir(log_dir: str) -> Path:
    """The folder of `--log-dir`, with the folder for the ranks' logs in it. Raises `ConfigError` if it cannot be."""
    logs = Path(log_dir, "logs")
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir {log_dir} cannot be made: {error.strerror}; give another folder") from None
    if not os.access(logs, os.W_OK | os.X_OK):
        raise ConfigError(f"--log-dir {log_dir}: no file can be written in {logs}; give another folder")
    return logs.parent


def check_not_elsewhere(nodes: Nodes) -> None:
    """Raise `ConfigError` if ranks of this machine alone were given the address of another machine.

    A name that this machine cannot resolve passes: only the others of a run would need it.
    """
    if nodes.maximum > 1 or not nodes.host:
        return
    try:
        addresses = resolve(nodes.host)
    except ConfigError:
        return
    _own_address(nodes, addresses)


def _address_here(nodes: Nodes) -> str:
    """The address at which ranks of this machine alone meet. Raises `ConfigError` if it is another machine's."""
    try:
        addresses = resolve(nodes.host)
    except ConfigError as error:
        raise ConfigError(f"{nodes.setting} {nodes.host}:{nodes.port}: {error}") from None
    return _own_address(nodes, addresses)


def _own_address(nodes: Nodes, addresses: Sequence[str]) -> str:
    own = next((address for address in addresses if is_local(address)), None)
    if own is None:
        raise ConfigError(
            f"{nodes.setting} {nodes.host}:{nodes.port}: {addresses[0]} is not an address of this machine, and "
            "--nnodes is 1; leave it out, or say how many machines there are"
        )
    return own


def train_on_nodes(args: argparse.Namespace, run: "AnyRun", nodes: Nodes) -> int:
    """Run the command that was typed once per rank, without the flags of the launcher.

    It is `lockstep train --nnodes` or `lockstep offline train --nnodes`.
    """
    from lockstep.config.settings import leaves
    from lockstep.run import dump, to_dict

    code, everywhere = user_code([*run.user_code, args.target or ""]), with_portable_paths(run)
    node_identity = {**identity(dump(everywhere), code, run.ml_framework), "settings": leaves(to_dict(everywhere))}
    command = [*LOCKSTEP, args.command, *without_node_flags(args.words)]
    return _start(command, nodes, node_identity, args, trains=True)


def doctor_on_nodes(args: argparse.Namespace) -> int:
    """`lockstep doctor --nnodes`: print what ranks on these machines find, and train nothing."""
    return _start(list(PROBE), nodes_of(args), identity("doctor"), args)


def _start(  # noqa: PLR0913  # all but the first four by keyword
    command: list[str],
    nodes: Nodes,
    node_identity: dict[str, Any],
    args: argparse.Namespace,
    *,
    bounds: Bounds | None = None,
    log_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    ml_framework: str = "torch",
    trains: bool = False,
) -> int:
    check_not_elsewhere(nodes)
    bounds = bounds or bounds_of(args)
    path = search_path_of_programs() if getattr(args, "no_python", False) else search_path()
    max_restarts, record = max_restarts_of(args, nodes), new_start_record()
    rank_environment = {"PYTHONPATH": path, "LOCKSTEP_START_RECORD": str(record), **(environment or {})}
    try:
        if nodes.maximum == 1:
            return launch(
                command,
                ranks=nodes.nproc,
                log_dir=log_dir,
                environment=rank_environment,
                bounds=bounds,
                restart_policy=RestartPolicy(
                    max_restarts=max_restarts,
                    left_early=lambda: left_early(recorded_run(record)) if trains else None,
                ),
                ml_framework=ml_framework,
            )
        from lockstep.launch.multi_node import launch_on_nodes

        return launch_on_nodes(
            command,
            nodes,
            identity=node_identity,
            log_dir=log_dir,
            environment=rank_environment,
            bounds=bounds,
            max_restarts=max_restarts,
            ml_framework=ml_framework,
            trains=trains,
        )
    finally:
        record.unlink(missing_ok=True)
