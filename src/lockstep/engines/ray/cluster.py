"""The connection of this process to a Ray cluster."""

import contextlib
import os
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from typing import Any

from lockstep.errors import ConfigError
from lockstep.launch.failure_report import log

_OBJECT_STORE_BYTES = 100_000_000  # of a cluster that is started here: ranks do not exchange objects through Ray


def check_ray() -> None:
    """Raise `ConfigError`, with the command that installs it, if Ray is missing."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # without an origin it is a folder of that name
        raise ConfigError("Ray is not installed; pip install 'lockstep-rl[ray]'")


@contextlib.contextmanager
def connected(
    address: str | None, cpus: int, runtime_env: Mapping[str, Any] | None = None, *, forward_logs: bool = False
) -> Generator[None]:
    """Connect this process to a cluster; a connection that exists is used, and left open.

    Args:
        address: of the cluster, `local` for a new one on this machine. None: RAY_ADDRESS, else a cluster that runs on
            this machine, else a new one.
        cpus: number of CPUs that a new cluster has at least; more than there are makes ranks share cores.
        runtime_env: Ray's runtime environment of the job.
        forward_logs: whether Ray prints here what actors print.

    Raises:
        ConfigError: there is no cluster at the address, or it cannot be used from here.
    """
    check_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise each start prints a warning about the future value of this setting.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "runtime_env": dict(runtime_env) if runtime_env else None,
        "log_to_driver": forward_logs,
        "logging_level": "ERROR",
        "configure_logging": True,
    }
    if address != "local":
        try:
            ray.init(address=address or "auto", **options)
        except ConnectionError as error:
            if address is not None or "RAY_ADDRESS" in os.environ:
                where = address or os.environ["RAY_ADDRESS"]
                raise ConfigError(f"no Ray cluster answers at address {where} ({_first_line(error)})") from None
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"the Ray cluster cannot be used from here: {_first_line(error)}") from None
    if not ray.is_initialized():
        _start_here(cpus, options)
    try:
        yield
    finally:
        ray.shutdown()


def _start_here(cpus: int, options: dict[str, Any]) -> None:
    import ray

    from lockstep.system.cores import usable_cores

    usable = usable_cores()
    if cpus > usable:
        log(f"lockstep: {cpus} CPUs are asked for and {usable} usable here: the ranks will take turns")
    try:
        ray.init(
            address="local",
            num_cpus=max(cpus, usable),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **options,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"no Ray cluster could be started here: {_first_line(error)}") from None
    log("lockstep: started a Ray cluster on this machine for this run")


def has_gpus() -> bool:
    """Whether the cluster has GPUs."""
    import ray

    return ray.cluster_resources().get("GPU", 0) > 0


def submit_job(address: str, name: str, entrypoint: str, runtime_env: dict[str, Any]) -> None:
    """Submit a job to the dashboard at `address`. Raises `ConfigError` if it is refused."""
    check_ray()
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"the Ray cluster at --address {address} refuses the job: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
