"""`lockstep sweep --on ray`: whole runs as children of actors, which Ray queues and packs on the cluster."""

import contextlib
import os
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engines.ray.actor import MAX_CONCURRENCY, Child, ChildActor
from lockstep.engines.ray.cluster import connected, has_gpus
from lockstep.engines.ray.train import variables_of_user
from lockstep.launch.failure_report import log
from lockstep.launch.search_path import search_path_of_nodes


class RayProcess:
    """A process that an actor runs, with the methods of `subprocess.Popen` that a sweep uses."""

    pid = None

    def __init__(self, actor: Any, child: Child) -> None:
        self._actor = actor
        self._placed_ref = actor.describe.remote()
        self._result_ref = actor.run.remote(child)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal that killed the process or its actor; None while it waits or runs."""
        import ray

        if self._code is None and ray.wait([self._result_ref], timeout=0)[0]:
            try:
                self._code, _ = ray.get(self._result_ref)
            except ray.exceptions.RayTaskError as error:
                log(f"lockstep: a run could not be started: {error.cause}")
                self._code = 1
            except ray.exceptions.RayError:
                self._code = -signal.SIGKILL
            ray.kill(self._actor)
        return self._code

    def send_signal(self, number: int) -> None:
        """Signal the process; one that Ray has not placed yet never starts."""
        import ray

        if ray.wait([self._placed_ref], timeout=0)[0]:
            self._actor.send_signal.remote(number)
        elif self._code is None:
            self._code = -number
            ray.kill(self._actor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTrials:
    """The resources of each run, and how many runs the cluster has room for."""

    cpus: int
    gpus: int
    threads: int
    """Of each rank."""
    room: int

    def start(self, command: list[str], log_file: Path) -> RayProcess:
        """Submit a command; its output is appended to `log_file`, on a disk that all nodes see."""
        import ray

        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_concurrency": MAX_CONCURRENCY, "max_restarts": 0}
        child = Child(
            command=command,
            environment={
                **variables_of_user(),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(self.threads),
                **({} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            },
            directory=os.getcwd(),
            search_path=search_path_of_nodes(),
            log=log_file,
        )
        return RayProcess(ray.remote(ChildActor).options(**options).remote(), child)


@contextlib.contextmanager
def trials_on_ray(
    address: str | None, runtime_env: Mapping[str, Any] | None, *, cpus: int, gpus: int, ranks: int
) -> Generator[RayTrials]:
    """Connect to a cluster, for runs of `ranks` ranks with `cpus` and, where the cluster has GPUs, `gpus`."""
    import ray

    with connected(address, cpus, runtime_env):
        gpus = gpus if has_gpus() else 0
        needed = {"CPU": cpus, "GPU": gpus}
        room = sum(
            min(int(node["Resources"].get(name, 0) // amount) for name, amount in needed.items() if amount)
            for node in ray.nodes()
            if node["Alive"]
        )
        if room == 0:
            shown = ", ".join(f"{name} {amount}" for name, amount in needed.items() if amount)
            log(f"lockstep: warning: no node of the Ray cluster has {shown} now; the runs wait for one")
        yield RayTrials(cpus=cpus, gpus=gpus, threads=max(1, cpus // ranks), room=max(room, 1))
