"""Whole runs that learn from made data, one after another in the same ranks."""

import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import made_data
from lockstep import World, spawn
from lockstep.launch.rank_environment import free_port
from lockstep.run import OfflineRun, ScoreNetworkConfig, override

ROWS, BATCH, EPOCHS = 310, 32, 20
LEARNERS = {
    "dqn": "OfflineDQN",
    "parametric_dqn": "OfflineDQN",
    "bc": "Cloning",
    "iql": "IQL",
    "td3_bc": "TD3BC",
    "cql": "ContinuousCQL",
}
"""The class of each algorithm."""


def small_offline(path: Path | str, **changes: Any) -> OfflineRun:
    """200 gradient steps of a small network on made data at `path`, which is made if it is not there."""
    algo = changes.pop("algo", "dqn")
    parametric = changes.pop("parametric", algo == "parametric_dqn")
    path = Path(path)
    if not path.exists():
        continuous = algo in ("iql", "td3_bc", "cql")
        make = made_data.continuous if continuous else made_data.parametric if parametric else made_data.discrete
        make(path, ROWS)
    run = OfflineRun(
        data=str(path),
        algo=algo,
        epochs=EPOCHS,
        network=ScoreNetworkConfig(hidden=(16, 16)),
        log_every=1000,
        checkpoint_every=None,
        timeout_s=30.0,
        startup_timeout_s=60.0,
    )
    return override(run, {"batch_size": BATCH, **changes})


@dataclass
class OfflineJob:
    """One run to be made inside ranks."""

    run: OfflineRun
    folder: str
    port: int = field(default_factory=free_port)
    resume: str | None = None
    init_from: tuple[str, ...] = ()
    """A policy file for each rank."""
    fails_at: int | None = None
    """Raise when this many gradient steps were taken."""


@dataclass
class OfflineOutcome:
    """What one rank saw of a run."""

    summary: dict[str, Any]
    error: str
    learned: list[np.ndarray]
    """Rows of the data that it learned from, step by step, without those that only fill up."""
    messages: Counter[str]
    moved: bool
    target: dict[str, np.ndarray]
    """Parameters of the target network before the first step, where there is one."""


def train_offline(ranks: int, jobs: dict[Any, OfflineJob]) -> dict[Any, list[OfflineOutcome]]:
    """Every job on `ranks` ranks, in the same processes; for each what its ranks saw."""
    told = spawn(_train_each, ranks, (jobs,), timeout_s=600)
    return {name: [outcomes[name] for outcomes in told] for name in jobs}


def _train_each(rank: int, jobs: dict[Any, OfflineJob]) -> dict[Any, OfflineOutcome]:
    frameworks = {job.run.ml_framework for job in jobs.values()}
    for name in frameworks:
        import_module(f"{name}_offline").prepare(rank)
    size = int(os.environ["WORLD_SIZE"])
    return {name: train_one(World(rank=rank, size=size, port=job.port), job) for name, job in jobs.items()}


def train_one(world: World, job: OfflineJob) -> OfflineOutcome:
    """Train, watching what the learner is given."""
    from lockstep.train import train

    found = OfflineOutcome({}, "", [], Counter(), False, {})
    with _watched(job, found) as kept:
        try:
            init_from = job.init_from[world.rank] if job.init_from else None
            where = {"resume": job.resume} if job.resume else {"run_dir": job.folder, "init_from": init_from}
            found.summary = train(job.run, world=world, **where)
        except Exception as raised:
            found.error = f"{type(raised).__name__}: {raised}"
            traceback.print_exc()
    if "learner" in kept:
        found.messages = Counter(kept["learner"].comm.num_messages)
        after = _backend(job).network(kept["learner"].policy)
        found.moved = all(bool((p != kept["before"][name]).any()) for name, p in after.items())
    return found


def _backend(job: OfflineJob) -> Any:
    return import_module(f"{job.run.ml_framework}_offline")


@contextmanager
def _watched(job: OfflineJob, found: OfflineOutcome) -> Iterator[dict[str, Any]]:
    backend, module = _backend(job), import_module(f"lockstep.{job.run.ml_framework}.offline.train")
    class_name = LEARNERS[job.run.algo]
    real, kept = getattr(module, class_name), {}

    class Watched(real):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept["learner"] = self
            kept["before"] = backend.network(self.policy)

        def update(self, parts: Any, *args: Any) -> np.ndarray:
            if not found.learned:
                found.target = backend.target(self)
            if job.fails_at is not None:
                time.sleep(0.03)  # checkpoints are written in the background
            if len(found.learned) == job.fails_at:
                raise RuntimeError("the test ends this run")
            found.learned.append(np.concatenate([part.index[part.weight > 0] for part in parts]))
            return super().update(parts, *args)

    with mock.patch.object(module, class_name, Watched):
        yield kept
