"""Read what a run measured: its speed without start and end, and the time of an update by part."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.algorithms.replay import ReplayConfig
from lockstep.cli.report.load import lines_of_learning
from lockstep.run import Run

PARTS = {"compute": ("env", "act", "learn", "other"), "communication": ("sync",), "waiting": ("wait",)}
"""The phases of each part of an update. Evaluations and checkpoints do not count."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run, from its first log line to its last; times are means over ranks."""

    steps: float
    """Environment steps of an update, all ranks."""
    parts: dict[str, float]
    """Seconds of an update by part."""

    @property
    def seconds(self) -> float:
        """Of an update."""
        return sum(self.parts.values())

    @property
    def steps_per_second(self) -> float:
        """Environment steps, all ranks together."""
        return self.steps / self.seconds


def read_measurement(run_dir: Path, run: Run) -> Measurement | None:
    """The measurement in a run directory; None without two log lines."""
    starts = run.algorithm.learning_starts if isinstance(run.algorithm, ReplayConfig) else 0
    lines = lines_of_learning(run_dir, starts)
    if len(lines) < 2:
        return None
    first, last = lines[0], lines[-1]
    updates = last["progress/updates"] - first["progress/updates"]
    parts = {
        part: sum(last[f"time/{phase}_s"] - first[f"time/{phase}_s"] for phase in phases) / updates
        for part, phases in PARTS.items()
    }
    return Measurement((last["step"] - first["step"]) / updates, parts)
