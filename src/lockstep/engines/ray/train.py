"""`lockstep train --on ray`: one training whose ranks are children of Ray actors."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.engines.ray.arguments import RayRequest
from lockstep.engines.ray.attempt import RayAttempt
from lockstep.engines.ray.cluster import connected, has_gpus
from lockstep.launch.local import RestartPolicy, run_attempts
from lockstep.launch.search_path import search_path_of_nodes
from lockstep.launch.supervise import Bounds
from lockstep.launch.train_ranks import launch_training

if TYPE_CHECKING:
    from lockstep.run import AnyRun

_HANDED_OVER = ("LOCKSTEP_", "NCCL_", "GLOO_", "TORCH_", "JAX_", "XLA_", "MUJOCO_", "WANDB_", "MLFLOW_", "HF_")
"""Prefixes of the variables that ranks get from this process; the others are those of the nodes."""
_NOT_HANDED_OVER = (
    *("LOCKSTEP_TERMINAL_FD", "LOCKSTEP_LAUNCHER_PID", "LOCKSTEP_LAUNCHER_NAMESPACE", "LOCKSTEP_START_RECORD"),
    *("JAX_RANK", "JAX_WORLD_SIZE", "JAX_LOCAL_RANK", "JAX_LOCAL_WORLD_SIZE", "JAX_NODE_RANK"),
)


def train_on_ray(run: "AnyRun", request: RayRequest, **options: Any) -> int:
    """Train on the ranks of `request`; options and exit code as `launch_training`."""
    with connected(request.address, request.ranks * request.cpus, request.runtime_env):
        if request.gpus is None:
            request = replace(request, gpus=run.devices_per_process if run.device != "cpu" and has_gpus() else 0)
        return launch_training(run, request.ranks, launcher=_RayLauncher(request), **options)[0]


@dataclass(frozen=True, slots=True)
class _RayLauncher:
    """Starts the ranks of a training; see `lockstep.launch.train_ranks.Launcher`."""

    request: RayRequest

    def __call__(
        self,
        command: list[str],
        *,
        ranks: int,
        run_dir: Path | None,
        environment: Mapping[str, str] | None,
        bounds: Bounds,
        restart_policy: RestartPolicy,
    ) -> int:
        """Return the exit code."""
        assert run_dir is not None and ranks == self.request.ranks
        attempt = RayAttempt(
            request=self.request,
            command=command,
            run_dir=run_dir.absolute(),
            environment=variables_of_user(),
            search_path=search_path_of_nodes(),
        )
        return run_attempts(attempt, restart_policy, bounds)


def variables_of_user(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of this process that ranks get."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_HANDED_OVER) and name not in _NOT_HANDED_OVER
    }
