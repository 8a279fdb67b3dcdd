"""Divide the cores and GPUs of this machine among runs that train side by side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.record.text import counted

if TYPE_CHECKING:
    from lockstep.run import AnyRun


@dataclass(frozen=True, slots=True)
class Slot:
    """What one run may use."""

    index: int
    cores: tuple[int, ...]
    """Processors that the run is bound to."""
    gpus: tuple[str, ...] | None = None
    """For CUDA_VISIBLE_DEVICES; None: as this process has it."""
    requested: str = ""
    """The resources of a Ray actor, in words; empty for slots of this machine."""

    @property
    def share(self) -> str:
        """How much each run has: `2 cores`."""
        return self.requested or counted(len(self.cores), "core")

    @property
    def place(self) -> str:
        """What exactly this run has: `cores 0,1, GPU 0`."""
        if self.requested:
            return f"Ray ({self.requested})"
        cores = f"core{'s' * (len(self.cores) > 1)} {','.join(map(str, self.cores))}"
        return cores if self.gpus is None else f"{cores}, GPU {','.join(self.gpus)}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What one run needs."""

    cores: int
    gpus: int = 0

    @classmethod
    def of(cls, run: "AnyRun", ranks: int, *, here: bool = True) -> "Needs":
        """A core per rank and thread, or per environment process; a GPU per device of a rank, where there are any.

        Whether there are GPUs is only known of this machine; `here=False` (a cluster): GPUs are assumed.
        """
        from lockstep.launch.gpus import installed_gpus
        from lockstep.run import Run

        cores = ranks * (run.shard_threads if run.num_shards else 1)
        if isinstance(run, Run) and run.env.vectorization == "async":
            cores = max(cores, run.num_envs)
        on_gpu = run.device != "cpu" and (not here or installed_gpus(run.ml_framework) > 0)
        return cls(cores, ranks * run.devices_per_process if on_gpu else 0)

    @classmethod
    def of_all(cls, runs: Sequence["AnyRun"], ranks: int, *, here: bool = True) -> "Needs":
        """What is enough for each of these runs."""
        every = [cls.of(run, ranks, here=here) for run in runs]
        return cls(max(needs.cores for needs in every), max(needs.gpus for needs in every))


def make_slots(needs: Needs, most: int, jobs: int | None = None) -> list[Slot]:
    """As many slots as this machine has room for, at least one, on cores and GPUs of their own.

    Args:
        needs: of each run.
        most: number of runs; there are no more slots.
        jobs: the number of slots instead; cores and GPUs are shared if there are not enough.
    """
    from lockstep.system.cores import usable_cores

    cores, usable = sorted(os.sched_getaffinity(0)), usable_cores()
    gpus = visible_gpu_names() if needs.gpus else []
    if jobs is None:
        jobs = max(1, usable // needs.cores)
        if gpus:
            jobs = min(jobs, max(1, len(gpus) // needs.gpus))
    jobs = max(1, min(jobs, most))
    width = max(1, usable // jobs)  # a quota may allow fewer cores than the affinity
    return [
        Slot(
            i,
            tuple(cores[(i * len(cores) // jobs + k) % len(cores)] for k in range(width)),
            _part(gpus, needs.gpus, i) if gpus else None,
        )
        for i in range(jobs)
    ]


def _part(gpus: Sequence[str], needed: int, index: int) -> tuple[str, ...]:
    """The GPUs of one slot; slots beyond the number of groups share them."""
    groups = max(1, len(gpus) // needed)
    first = (index % groups) * needed
    return tuple(gpus[first : first + needed])


def visible_gpu_names() -> list[str]:
    """The names, for CUDA_VISIBLE_DEVICES, of the GPUs that programs started from here may use."""
    from lockstep.launch.gpus import installed_gpus

    number = max(installed_gpus("torch"), installed_gpus("jax"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(number)]
    return [name.strip() for name in chosen.split(",")][:number]
