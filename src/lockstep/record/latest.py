"""Which checkpoint a restart continues from. Standard library only: launchers import it."""

from contextlib import suppress
from pathlib import Path

from lockstep.record.partial_files import modified_at

LATEST = Path("checkpoints", "LATEST")
"""The file that names the newest complete checkpoint, within a run directory."""


def latest_written(run_dir: Path) -> int | None:
    """When the run completed its newest checkpoint, as the modification time of `LATEST` in ns; None without one."""
    return modified_at(run_dir / LATEST)


def latest_step(run_dir: Path) -> int | None:
    """The step of the run's newest complete checkpoint; None without one."""
    with suppress(OSError, ValueError):  # a damaged file names none
        return int((run_dir / LATEST).read_text().strip().removeprefix("step_"))
    return None


def source_of_restart(run_dir: Path, named: Path | None, written_before: int | None) -> Path:
    """What to resume after a failure: a checkpoint that the user named, until the run has written one of its own.

    Args:
        run_dir: the run.
        named: what the user named, if anything.
        written_before: `latest_written` before the run was started.
    """
    untouched = latest_written(run_dir) == written_before
    return named if named is not None and untouched else run_dir
