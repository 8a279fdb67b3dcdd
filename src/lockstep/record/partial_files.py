"""Remove the partial files of a killed run. Standard library only: the guardian runs it too."""

import contextlib
import os
import re
import shutil
from pathlib import Path

ATOMICALLY_WRITTEN = (
    *("run.yaml", "init_from.txt", "preflight.json", "trackers.json", "summary.json", "estimates.json"),
    *("policy.safetensors", "policy_best.safetensors", "profile.json.gz"),
)
"""The files of a run directory that are written under another name, `.NAME.PID`, and renamed when complete.

Any other hidden file there is the user's.
"""
_TEMPORARY = re.compile(rf"\.(?:{'|'.join(map(re.escape, ATOMICALLY_WRITTEN))})\.\d+")
_TEMPORARY_LATEST = re.compile(r"\.LATEST\.\d+")
_STACK = re.compile(r"rank_\d+\.stack")
_PARTIAL_CHECKPOINT = re.compile(r"\.step_\d+")
REPLACED = ".replaced_"
"""Before the name of a checkpoint while another one of the same step takes its place."""


def remove_partial_files(run_dir: Path) -> None:
    """Remove incomplete checkpoints and files of a run, whose directory need not exist. Never raises.

    Call it only when no rank of the run is alive: it also removes files that are being written.
    """
    remove_partial_checkpoints(run_dir)
    for entry in _entries(run_dir):
        if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            _remove(entry)
    for entry in _entries(run_dir / "logs"):
        if _STACK.fullmatch(entry.name) and _count_lines(entry) <= 1:  # only the header: no stack was requested
            _remove(entry)


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove what is incomplete in `folder/checkpoints`, and nothing beside it. Never raises."""
    for entry in _entries(folder / "checkpoints"):
        if _PARTIAL_CHECKPOINT.fullmatch(entry.name):
            _remove(entry)
        elif entry.name.startswith(REPLACED):
            _put_back(entry)
        elif _TEMPORARY_LATEST.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            _remove(entry)


def remove_results(run_dir: Path) -> None:
    """Remove metrics and summary before a restart from the first step. Never raises."""
    for entry in _entries(run_dir):
        if entry.name in ("metrics.jsonl", "evaluations.jsonl", "ranks.jsonl", "tensorboard", "summary.json"):
            _remove(entry)


def _count_lines(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(OSError), open(entry.path, "rb") as file:
        return file.read(1 << 12).count(b"\n")
    return 0


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(directory) as found:
        return list(found)
    return []


def _put_back(entry: os.DirEntry[str]) -> None:
    """Give a replaced checkpoint its name again, unless the other one has taken its place."""
    place = Path(entry.path).with_name(entry.name.removeprefix(REPLACED))
    if place.exists():
        _remove(entry)
    else:
        with contextlib.suppress(OSError):
            os.rename(entry.path, place)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def modified_at(path: Path) -> int | None:
    """Modification time in ns, None if the file does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
