"""Start the processes of a JAX program, which starts none itself: `python -m lockstep.launch.jax ... script.py`.

    python -m lockstep.launch.jax --nproc_per_node=2 script.py --its own flags
    python -m lockstep.launch.jax --nnodes=2 --node_rank=0 --nproc_per_node=2 --coordinator_address=HOST:5555 script.py

Any script or module: each rank finds its rank, the world size and the address for `jax.distributed` in JAX_RANK,
JAX_WORLD_SIZE, JAX_LOCAL_RANK, JAX_LOCAL_WORLD_SIZE, JAX_NODE_RANK, JAX_COORDINATOR_ADDR and JAX_COORDINATOR_PORT.
The variables of torchrun (RANK, WORLD_SIZE, ...) are not set: libraries that support both frameworks open a process
group of torch when they find them. Supervision is that of `lockstep launch`: the first failure ends all ranks on all
nodes, and its code is returned. Neither JAX nor torch is imported here.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from lockstep.errors import ConfigError, exit_code_of
from lockstep.launch.commands import note_ranks_of_the_script, program, run_program
from lockstep.launch.flags import OneLineParser, add_flag, number, port_of, seconds_of, split_address
from lockstep.launch.node_flags import add_grace, add_ranks, nproc_of, take_ranks, token_of
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import check_no_rank

_FLAG = "--coordinator_address"
_RUNNER = (sys.executable, "-m", "lockstep.launch.script")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, the first failing rank's, 128 + n after signal n, or 2."""
    return exit_code_of(lambda: _launch(sys.argv[1:] if arguments is None else list(arguments)))


def _launch(words: list[str]) -> int:
    args = _parser().parse_args(words)
    check_no_rank("python -m lockstep.launch.jax")
    take_ranks(args)
    nodes = _nodes(args)
    note_ranks_of_the_script(args, "python -m lockstep.launch.jax")
    # A rank ends when it is told to, unless its user wants JAX to catch SIGTERM.
    environment = {"JAX_ENABLE_PREEMPTION_SERVICE": os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE", "0")}
    return run_program(program(args, _RUNNER), nodes, args, environment, ml_framework="jax")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m lockstep.launch.jax",
        description="Start a JAX script once per rank, on one or several machines.",
        allow_abbrev=False,
    )
    add_flag(parser, "--nnodes", "N", "machines (default: 1)")
    add_flag(parser, "--nproc-per-node", "K|auto", "ranks on this machine (default: auto, one per GPU, else 1)")
    add_ranks(parser)
    add_flag(parser, "--node-rank", "R", "which machine this is, from 0; rank 0 runs on 0 (default: detected)")
    add_flag(parser, "--coordinator-address", "HOST:PORT", "where rank 0 is met: an address of node 0, a free port")
    add_flag(parser, "--join-timeout", "SECONDS", "how long to wait for the other nodes (default: 300)")
    add_flag(parser, "--token-file", "FILE", "holds a secret that all nodes share (or set LOCKSTEP_TOKEN)")
    add_flag(parser, "--max-restarts", "N", "restart all ranks up to N times after one failed (default: 0)")
    add_grace(parser)
    add_flag(parser, "--log-dir", "DIR", "what each rank prints goes to DIR/logs (default: here)")
    add_flag(parser, "--no-python", None, "the script is a program, not Python")
    parser.add_argument("-m", "--module", action="store_true", help="the script is the name of a Python module")
    parser.set_defaults(ml_framework="jax")
    parser.add_argument("script", metavar="SCRIPT", help="what each rank runs")
    parser.add_argument("script_args", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _nodes(args: argparse.Namespace) -> Nodes:
    count = number(args.nnodes or "1", "--nnodes")
    rank = None if args.node_rank is None else number(args.node_rank, "--node_rank", least=0)
    if rank is not None and rank >= count:
        raise ConfigError(
            f"--node_rank {rank} does not exist with --nnodes {count}; node ranks go from 0 to {count - 1}"
        )
    host, port = _address(args.coordinator_address)
    if count > 1 and not host:
        raise ConfigError(
            f"--nnodes {count}: the nodes need a place to meet; give all of them {_FLAG} HOST:PORT, an address of "
            "node 0 and a free port there"
        )
    if rank is None and count > 1 and "SLURM_STEP_ID" in os.environ:  # srun, one launcher per node
        rank = number(os.environ.get("SLURM_NODEID", ""), "SLURM_NODEID", least=0)
    return Nodes(
        minimum=count,
        maximum=count,
        node_rank=rank,
        nproc=nproc_of(args.nproc_per_node, "jax"),
        host=host,
        port=port,
        setting=_FLAG,
        rank_port=port,
        token=token_of(args.token_file, os.environ),
        join_timeout_s=seconds_of(args.join_timeout or "300", "--join-timeout"),
    )


def _address(text: str | None) -> tuple[str, int]:
    if text is None:
        return "", 0
    host, port = split_address(text, _FLAG)
    if not port:
        raise ConfigError(f"{_FLAG} {text} has no port; write HOST:PORT, such as {text.rstrip(':')}:5555")
    return host, port_of(port, f"{_FLAG} {text}: port")


if __name__ == "__main__":
    sys.exit(main())
