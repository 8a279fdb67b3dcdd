"""The rank, world size and rendezvous address of a process, from the environment variables of its launcher.

The innermost launcher is tried first: ranks of a torchrun that srun started inherit SLURM's variables, which describe
the torchrun process. Nothing is resolved or opened.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any

from lockstep.errors import ConfigError

_INTERACTIVE_STEPS = 4294967280  # from here on, step ids are not steps of srun: batch, interactive, extern
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000  # below the ephemeral ports of the kernel

_MAX_HOSTS = 1 << 16


def rank_fields(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The fields of the `World` from the launcher's variables; None without a launcher.

    The only process of an srun or mpirun, such as the shell of `srun --pty bash`, is no rank: it may start ranks.
    """
    for launcher in (_torchrun, _jax, _open_mpi, _hydra, _slurm):
        fields = launcher(environment)
        if fields is not None and (fields["size"] > 1 or launcher in (_torchrun, _jax)):
            shared = {
                "address": environment.get("MASTER_ADDR") or fields.pop("address", "127.0.0.1"),
                "port": _integer(environment, "MASTER_PORT", fields.pop("port", 0)),
                "token": environment.get("LOCKSTEP_TOKEN") or fields.pop("token", ""),
            }
            return {**fields, **shared}
    _check_pairs(environment)
    return None


def hint_on_gpus(launcher: str) -> str:
    """What to change where ranks see too few GPUs: a launcher may show each one its own alone. Empty for ours."""
    if launcher == "SLURM":
        return "; srun has to show every task all GPUs of its node: --gpus-per-node=N --gpu-bind=none"
    if launcher in ("Open MPI", "MPICH"):
        return "; CUDA_VISIBLE_DEVICES has to name all GPUs of the machine to each of its ranks"
    return ""


def hosts(nodelist: str) -> list[str]:
    """The hosts of a SLURM node list such as `n[01-03,7],m2`, in its order."""
    found: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", nodelist):  # splits at commas outside of brackets
        found.extend(_expand(part, nodelist))
        if len(found) > _MAX_HOSTS:
            raise ConfigError(f"node list {nodelist!r} has more than {_MAX_HOSTS} hosts; set MASTER_ADDR")
    return found


def _check_pairs(environment: Mapping[str, str]) -> None:
    """Refuse a rank without a world size, or the reverse: every rank of such a start would train alone."""
    for pair in (("RANK", "WORLD_SIZE"), ("JAX_RANK", "JAX_WORLD_SIZE")):
        for name, other in (pair, pair[::-1]):
            if name in environment and other not in environment:
                raise ConfigError(
                    f"{name}={environment[name]} is set, but {other} is not; start ranks by `lockstep launch` or "
                    f"torchrun, set both, or unset {name}"
                )


def port_of(job: str) -> int:
    """A port that all ranks of a job derive from its id."""
    return _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS


def _torchrun(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Variables of torchrun; our launcher, Kubernetes' PyTorchJob and manual starts use the same ones."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size = _integer(environment, "RANK"), _integer(environment, "WORLD_SIZE")
    # Each pod of a PyTorchJob is a host. Ranks started by hand share a host unless LOCAL_WORLD_SIZE differs.
    own_host = "KUBERNETES_SERVICE_HOST" in environment and "LOCAL_RANK" not in environment
    local_size = _integer(environment, "LOCAL_WORLD_SIZE", 1 if own_host else size)
    return {
        "rank": rank,
        "size": size,
        "local_rank": _integer(environment, "LOCAL_RANK", rank % max(local_size, 1)),
        "local_size": local_size,
        "node_rank": _integer(environment, "GROUP_RANK", rank // max(local_size, 1)),
        "launcher": environment.get("LOCKSTEP_LAUNCHER", "torchrun"),
    }


def _jax(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Variables of our launcher of JAX scripts and of others, which set no number of processes per host."""
    if "JAX_RANK" not in environment or "JAX_WORLD_SIZE" not in environment:
        return None
    rank, size = _integer(environment, "JAX_RANK"), _integer(environment, "JAX_WORLD_SIZE")
    local_size = _integer(environment, "JAX_LOCAL_WORLD_SIZE", _integer(environment, "LOCAL_WORLD_SIZE", size))
    return {
        "rank": rank,
        "size": size,
        "local_rank": _integer(environment, "JAX_LOCAL_RANK", rank % max(local_size, 1)),
        "local_size": local_size,
        "node_rank": _integer(environment, "JAX_NODE_RANK", rank // max(local_size, 1)),
        "address": environment.get("JAX_COORDINATOR_ADDR") or "127.0.0.1",
        "port": _integer(environment, "JAX_COORDINATOR_PORT", 0),
        "launcher": environment.get("LOCKSTEP_LAUNCHER", "a JAX launcher"),
    }


def _open_mpi(environment: Mapping[str, str]) -> dict[str, Any] | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    return _mpi(
        "Open MPI",
        environment.get("PMIX_NAMESPACE", ""),
        *(_integer(environment, f"OMPI_COMM_WORLD_{name}") for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    )


def _hydra(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """MPICH's and Intel's mpiexec. SLURM's own PMI sets only the first two."""
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if any(name not in environment for name in names):
        return None
    return _mpi("MPICH", "", *(_integer(environment, name) for name in names))


def _mpi(launcher: str, job: str, rank: int, size: int, local_rank: int, local_size: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "node_rank": rank // max(local_size, 1),  # exact if all hosts have as many ranks; only for messages
        "launcher": launcher,
        "token": job,
    }


def _slurm(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Tasks of srun. The shell of a batch script has SLURM_PROCID, too, but is not a task of a step."""
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment:
        return None
    step = _integer(environment, "SLURM_STEP_ID")
    if step >= _INTERACTIVE_STEPS:
        return None
    # Variables of the step take precedence: the job may have more tasks and nodes.
    size = _integer(environment, "SLURM_STEP_NUM_TASKS", _integer(environment, "SLURM_NTASKS", 1))
    rank, node = _integer(environment, "SLURM_PROCID"), _integer(environment, "SLURM_NODEID", 0)
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or str(size)
    local_size = _tasks_of_node(tasks, node, size)
    nodelist = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    job = f"{environment.get('SLURM_JOB_ID', '0')}.{step}"
    return {
        "rank": rank,
        "size": size,
        "local_rank": _integer(environment, "SLURM_LOCALID"),
        "local_size": local_size,
        "node_rank": node,
        "address": "127.0.0.1" if local_size == size else next(iter(hosts(nodelist)), "127.0.0.1"),
        "port": port_of(job),
        "token": f"SLURM {job}",
        "launcher": "SLURM",
    }


def _tasks_of_node(tasks: str, node: int, size: int) -> int:
    """Parse the tasks of each node, such as `4(x2),3`, and return those of one node."""
    counts: list[int] = []
    for part in tasks.split(","):
        count, _, repeat = part.partition("(x")
        try:
            counts += [int(count)] * int(repeat.rstrip(")") or 1)
        except ValueError:
            raise ConfigError(
                f"SLURM_TASKS_PER_NODE={tasks!r} is not understood; it should look like 4(x2),3"
            ) from None
    return counts[node] if node < len(counts) else size


def _expand(part: str, nodelist: str) -> list[str]:
    """Expand `rack[1-2]n[01-03]` in order; the last numbers vary fastest."""
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", part)
    if match is None:
        if not re.fullmatch(r"[\w.:-]+", part):
            raise ConfigError(f"node list {nodelist!r} is not understood; set MASTER_ADDR to the host of rank 0")
        return [part]
    before, inside, after = match.groups()
    numbers: list[str] = []
    for span in inside.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if ends is None or int(ends[2] or ends[1]) - int(ends[1]) > _MAX_HOSTS:
            raise ConfigError(f"node list {nodelist!r} is not understood; set MASTER_ADDR to the host of rank 0")
        width = len(ends[1])
        numbers += [str(number).zfill(width) for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1)]
    rests = _expand(after, nodelist) if after else [""]
    return [f"{before}{number}{rest}" for number in numbers for rest in rests]


def _integer(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"environment variable {name}={text!r} is not a number; the launcher should set it") from None
