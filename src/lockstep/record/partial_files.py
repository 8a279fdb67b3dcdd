"""What a killed run leaves half-written, and how it goes. Standard library only: the guardian runs it too."""

import contextlib
import os
import re
import shutil
from pathlib import Path

_BESIDE = re.compile(r"\..+\.(\d+|safetensors)")  # names of files until they are whole: .NAME.PID, .policy.safetensors
_STACK = re.compile(r"rank_\d+\.stack")
_HALF_CHECKPOINT = ".step_"


def remove_half_written(run_dir: Path) -> None:
    """Remove checkpoints and files of a run that nobody came to finish. Never raises; what is whole stays.

    Call it only when no rank of the run lives: what a living one writes would go too.

    Args:
        run_dir: the run's directory, which need not exist.
    """
    checkpoints = run_dir / "checkpoints"
    for entry in _entries(checkpoints):
        if entry.name.startswith(_HALF_CHECKPOINT):
            _remove(entry)
    for entry in (*_entries(run_dir), *_entries(checkpoints)):
        if _BESIDE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            _remove(entry)
    for entry in _entries(run_dir / "logs"):
        if _STACK.fullmatch(entry.name) and _lines(entry) <= 1:  # its header: nobody asked for a stack
            _remove(entry)


def remove_results(run_dir: Path) -> None:
    """Remove what a start wrote about its progress and its end, before another from the first step. Never raises."""
    for entry in _entries(run_dir):
        if entry.name in ("metrics.jsonl", "evaluations.jsonl", "tensorboard", "summary.json"):
            _remove(entry)


def _lines(entry: os.DirEntry[str]) -> int:
    try:
        with open(entry.path, "rb") as file:
            return file.read(1 << 12).count(b"\n")
    except OSError:
        return 0


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def written_at(path: Path) -> int | None:
    """When a file was written last, None if it does not exist; tells what an earlier start wrote from this one's."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
