"""The policy that a command evaluates, exports or records: of a run, of one of its checkpoints, or of a file."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.follow import read_json
from lockstep.record.readable import check_readable
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE, SWEEP_FILE, is_own_loop
from lockstep.session.policy_file import BEST_POLICY_FILE, POLICY_FILE, evaluation_in, evaluation_of_best, read


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """One policy."""

    path: Path
    """A policy file, or the folder of a checkpoint, for `load_policy`."""
    run_dir: Path | None
    """Its run; None if unknown."""
    description: str
    """For the user."""
    name: str
    """Stem of exported files."""
    step: int | None = None
    """Steps of the training that it has learned from; None if nothing tells."""


def find_policy(path: Path, *, best: bool = False, last: bool = False, step: str | int | None = None) -> FoundPolicy:
    """Find a policy; `ConfigError` if there is none.

    Args:
        path: a run directory, one of its checkpoints, or a policy file.
        best: of a run, the policy of its best evaluation.
        last: of a run, the final policy, or that of the newest checkpoint if it has not ended; the default.
        step: of a run, the policy of the checkpoint of this step.
    """
    check_readable(path)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give a run directory, such as runs/NAME, or a policy file")
    if path.is_dir() and not any((path / name).is_file() for name in (RUN_FILE, POLICY_FILE, checkpoint.MANIFEST)):
        _check_above_no_policies(path)
    flags = {"--best": best, "--last": last, "--checkpoint": step is not None}
    given = [flag for flag, there in flags.items() if there]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} choose different policies; give one of them")
    if path.is_file() or (path / checkpoint.MANIFEST).is_file():
        if given:
            raise ConfigError(f"{path} is one policy, and {given[0]} chooses among those of a run; leave it out")
        return _policy_of_checkpoint(path) if path.is_dir() else _policy_in_file(path)
    if not (path / POLICY_FILE).is_file() and is_own_loop(path):
        raise ConfigError(
            f"{path} is the run of a loop of its own (RunDir), which leaves no policy that Lockstep can load; use the "
            "script that made it"
        )
    if step is not None:
        return _policy_of_step(path, str(step))
    return _best_policy(path) if best else _last_policy(path)


def read_policy(
    path: Path, *, best: bool = False, last: bool = False, step: str | int | None = None
) -> tuple[FoundPolicy, dict[str, Any], dict[str, np.ndarray]]:
    """Find a policy and read it at once: a run that trains removes its older checkpoints.

    Args and errors as those of `find_policy`; `ConfigError` also if what is found is damaged.

    Returns:
        Which policy it is, the metadata, and the arrays by name.
    """
    while True:
        found = find_policy(path, best=best, last=last, step=step)
        try:
            return found, *read(found.path)
        except ConfigError:
            if found.path.exists() or found.path == path:
                raise


def _check_above_no_policies(path: Path) -> None:
    """Raise `ConfigError` if a folder holds several policies: a folder of runs, a sweep, the checkpoints of a run."""
    runs = sorted(found.parent for depth in ("*", "*/*") for found in path.glob(f"{depth}/{RUN_FILE}"))
    if runs:
        what, scores = "a folder of runs; give one of them", ""
        if (path / SWEEP_FILE).is_file():
            what, scores = "a sweep; give one of its runs", "; `lockstep report` of it shows their scores"
        raise ConfigError(f"{path} is {what}, such as {runs[-1]}{scores}")
    run_dir = path.absolute().parent
    if path.name == checkpoint.FOLDER and (found := checkpoint.find(run_dir)):
        raise ConfigError(f"{path} holds the checkpoints of a run; give {path.parent}, or {path / found[0].name}")


def _policy_in_file(path: Path) -> FoundPolicy:
    folder, found = path.parent, evaluation_in(path)
    known = folder if (folder / RUN_FILE).is_file() else None
    return FoundPolicy(path, known, str(path), path.stem, found and found.step)


def _policy_of_checkpoint(path: Path) -> FoundPolicy:
    run_dir = Path(os.path.relpath(path.absolute().parent.parent))
    step = checkpoint.read_manifest(path)["step"]
    known = run_dir if (run_dir / RUN_FILE).is_file() else None
    return FoundPolicy(path, known, f"the checkpoint of step {step}", f"policy_step_{step}", step)


def _policy_of_step(run_dir: Path, step: str) -> FoundPolicy:
    if not step.removeprefix("step_").isdecimal():
        raise ConfigError(
            f"--checkpoint {step} must be the step of a checkpoint, a number; a policy file, or the directory of a "
            "checkpoint, is given instead of the run"
        )
    path = checkpoint.place_of(run_dir, step.removeprefix("step_"))
    if not (path / checkpoint.MANIFEST).is_file():
        steps = ", ".join(found.name.rpartition("step_")[2] for found in checkpoint.find(run_dir)) or "none"
        raise ConfigError(f"--checkpoint {step}: {run_dir} has no checkpoint of this step; it has {steps}")
    return _policy_of_checkpoint(path)


def _best_policy(run_dir: Path) -> FoundPolicy:
    path = run_dir / BEST_POLICY_FILE
    if not path.is_file():
        raise ConfigError(
            f"--best: {run_dir} has no {path.name}; a run writes it when an evaluation is its best so far"
        )
    found = evaluation_of_best(run_dir)
    words = "the best policy" + (f", of step {found.step}" if found else "")
    return FoundPolicy(path, run_dir, words, path.stem, found and found.step)


def _last_policy(run_dir: Path) -> FoundPolicy:
    """The final policy; if the run has not ended, the newest complete checkpoint."""
    path, summary = run_dir / POLICY_FILE, read_json(run_dir / SUMMARY_FILE)
    status = summary.get("status")
    # A run that was interrupted a second time, or killed, wrote no policy: the file is of an end before its resumption.
    ended = status in ("finished", "solved") or (status == "interrupted" and bool(summary.get("params_fingerprint")))
    if not path.is_file() or not ended:
        for newest in checkpoint.find(run_dir):
            with suppress(ConfigError):
                found = _policy_of_checkpoint(newest)
                how = {"failed": "failed", "interrupted": "was interrupted"}.get(status or "", "has not ended")
                words = f"{found.description}, the newest of a run that {how}"
                return replace(found, run_dir=run_dir, description=words)
    if not path.is_file():
        other = "; --best takes that of its best evaluation" if (run_dir / BEST_POLICY_FILE).is_file() else ""
        raise ConfigError(
            f"{run_dir} has no {path.name} and no checkpoint; a run writes its policy when it ends, and checkpoints "
            f"every checkpoint_every steps{other}"
        )
    step = summary.get("env_steps") if ended else None
    known = run_dir if (run_dir / RUN_FILE).is_file() else None
    return FoundPolicy(
        path, known, "the final policy" + (f", step {step}" if step is not None else ""), path.stem, step
    )
