"""Check the data of a workflow file before it is prepared."""

import hashlib
from pathlib import Path
from typing import Any

from lockstep.cli.workflow_files.files import Source, Workflow
from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError

_SAMPLED = 1 << 16  # bytes at the beginning and end of a file that are hashed


def checked_sources(workflow: Workflow) -> dict[str, Any]:
    """Check that the sources exist and suit the workflow; returns a fingerprint of the logs."""
    lines = hashlib.blake2b(digest_size=16)
    named = {"training_data_path": workflow.training, "eval_data_path": workflow.evaluation}
    for name, source in named.items():
        if source is None:
            continue
        for path in source.paths:
            if not path.exists():
                raise ConfigError(f"{name}: {path} does not exist")
        if source.prepared:
            _check_prepared(workflow, name, source)
            continue
        for file in (file for path in source.paths for file in _files(path)):
            lines.update(f"{file.name} {file.stat().st_size} ".encode())
            with file.open("rb") as opened:
                lines.update(opened.read(_SAMPLED))
                opened.seek(max(0, file.stat().st_size - _SAMPLED))
                lines.update(opened.read())
    return {"fingerprint": lines.hexdigest()}


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _check_prepared(workflow: Workflow, name: str, source: Source) -> None:
    info = Dataset.open(source.out).info
    if info.kind != workflow.kind:
        raise ConfigError(f"{name}: {source.out} has {info.kind} actions, and {workflow.path.name} is for others")
    if workflow.actions is not None and set(info.actions) != set(workflow.actions):
        raise ConfigError(
            f"actions={', '.join(workflow.actions)}, but those of {name}={source.out} are {', '.join(info.actions)}"
        )
