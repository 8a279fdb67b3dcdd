"""The directory of a run that was refused before its first update: the corrected command may use it again."""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.record.failure import read_failure
from lockstep.record.follow import read_json

_FILES = {"run.yaml", "init_from.txt", "summary.json", "logs"}
_LOGS = re.compile(r"rank_\d+\.log|failure\.json")


def is_refused(run_dir: Path) -> bool:
    """Whether a directory holds what a start leaves that ended with a `ConfigError` before its first step, no more."""
    logs = run_dir / "logs"
    try:
        names = {entry.name for entry in run_dir.iterdir()}
        if not {"run.yaml", "logs"} <= names <= _FILES or not all(_LOGS.fullmatch(log.name) for log in logs.iterdir()):
            return False
    except OSError:
        return False
    refused = (read_failure(run_dir) or {}).get("code") == ConfigError.exit_code
    return refused and not read_json(run_dir / "summary.json").get("env_steps")


def remove_refused(run_dir: Path) -> None:
    """Empty the directory of a run that was refused; any other stays as it is. Its lock must be held."""
    if is_refused(run_dir):
        shutil.rmtree(run_dir / "logs", ignore_errors=True)
        for name in _FILES - {"logs"}:
            with suppress(OSError):
                (run_dir / name).unlink()
