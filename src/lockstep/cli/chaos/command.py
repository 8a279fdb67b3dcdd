"""The command `lockstep chaos`.

An undisturbed run comes first. Each fault is then injected into a separate run, at an update and a rank drawn from the
seed. The run may restart from its checkpoints and must end with the same parameters.
"""

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.algorithms.replay import ReplayConfig
from lockstep.cli.chaos.fault_run import CONFIG_FILE, HEAD, FaultResult, FaultRuns
from lockstep.cli.chaos.faults import KINDS, InjectedFault
from lockstep.errors import ConfigError
from lockstep.launch.signals import Interrupted, caught_signals
from lockstep.record.console import redraws
from lockstep.record.run_dir import RunDir
from lockstep.record.text import counted
from lockstep.run import Run, dump, override
from lockstep.system.files import write_atomically

UPDATES = 24
"""Number of updates of each run, unless the user sets the length of the training."""
MAX_TIMEOUT_S = 10.0
"""Upper bound on `timeout_s`, after which a stalled rank is detected."""
RESULT_FILE = "chaos.json"
"""The table, in the directory of all runs."""


_OF_SEVERAL_RANKS = ("collective", "stop", "weight")
"""Faults that only other ranks detect."""


def chosen_faults(text: str | None, ranks: int) -> list[str]:
    """The faults that `--faults a,b` names; None: all that so many ranks can detect."""
    if text is None:
        return [name for name in KINDS if ranks > 1 or name not in _OF_SEVERAL_RANKS]
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise ConfigError(f"--faults {','.join(unknown) or repr(text)}: no such fault; there are {', '.join(KINDS)}")
    if alone := [name for name in names if ranks == 1 and name in _OF_SEVERAL_RANKS]:
        raise ConfigError(f"--faults {alone[0]} is detected by another rank, and there is one; use --ranks 2")
    return list(dict.fromkeys(names))


def prepared(run: Run, ranks: int, *, whole: bool) -> Run:
    """The run with pinned shards, frequent checkpoints, a short timeout and, unless `whole`, few updates."""
    rollout = run.num_envs * run.algorithm.num_steps
    updates = run.last_step // rollout
    if not whole:
        updates = min(updates, UPDATES)
    if updates < 4:
        raise ConfigError(
            f"total_steps={run.total_steps} is {counted(updates, 'update')}, and chaos needs at least 4; use "
            f"--set total_steps={4 * rollout}"
        )
    changes: dict[str, Any] = {
        "num_shards": run.num_shards or ranks,
        "total_steps": updates * rollout,
        "checkpoint_every": max(1, updates // 6) * rollout,
        "check_every": min(run.check_every, 2),
        "timeout_s": min(run.timeout_s, MAX_TIMEOUT_S),
        "non_finite": "stop",
        "stop_when_solved": False,
    }
    if isinstance(run.algorithm, ReplayConfig) and not whole:  # so that the short run has gradient steps
        changes["learning_starts"] = min(run.algorithm.learning_starts, changes["checkpoint_every"])
    return override(run, changes)


def schedule(faults: Sequence[str], run: Run, ranks: int, seed: int) -> list[InjectedFault]:
    """Draw the rank and the update of each fault; the draws of one kind do not depend on the others."""
    updates = run.total_steps // (run.num_envs * run.algorithm.num_steps)
    drawn: list[InjectedFault] = []
    for kind in faults:
        draw = random.Random(f"{seed} {kind}")
        drawn.append(InjectedFault(kind, draw.randrange(ranks), draw.randrange(1, updates - 1)))
    return drawn


def run_chaos(run: Run, ranks: int, faults: Sequence[str], *, seed: int, run_dir: Path | None, whole: bool) -> int:
    """Run every fault, print a line for each, and write `chaos.json`; returns 0 if the run survived all of them.

    `seed` draws ranks and updates. The runs are in `run_dir` (default: a new one below `runs/`). `whole` keeps
    `total_steps` instead of running `UPDATES` updates.
    """
    run = prepared(run, ranks, whole=whole)
    folder = _made_folder(run_dir, run)
    drawn = schedule(faults, run, ranks, seed)
    results: list[FaultResult] = []
    with caught_signals() as caught:
        all_runs = FaultRuns(run, ranks, folder, caught)
        try:
            _print_header(run, ranks, folder, all_runs.exact)
            _print_progress(f"the undisturbed run, on {counted(ranks, 'rank')} ...")
            all_runs.undisturbed()
            _say(f"undisturbed: parameters {all_runs.fingerprint}\n\n{HEAD}")
            for fault in drawn:
                _print_progress(f"{fault.fault}: {KINDS[fault.fault]} (rank {fault.rank}, update {fault.update}) ...")
                results.append(all_runs.try_fault(fault))
                _say(results[-1].row(all_runs.exact))
        except Interrupted as interrupted:
            _say(f"interrupted; {len(results)} of {len(drawn)} faults were tried")
            return 128 + interrupted.args[0]
        finally:
            _write(folder, all_runs, results)
    survived = sum(one.survived for one in results)
    _say(f"\n{survived} of {len(results)} faults survived; table and runs: {os.path.relpath(folder)}")
    return 0 if survived == len(results) else 1


def _made_folder(run_dir: Path | None, run: Run) -> Path:
    """The directory of all runs with their config, which is no `run.yaml`: it is not a run itself."""
    made = RunDir.create(run_dir, None, name="chaos")
    folder = made.path
    try:
        write_atomically(folder / CONFIG_FILE, dump(run))
    except OSError as error:
        made.discard()
        raise ConfigError(
            f"run_dir={folder} cannot be written ({error.strerror}); choose another with --run-dir"
        ) from None
    return folder


def _print_header(run: Run, ranks: int, folder: Path, exact: bool) -> None:
    rollout = run.num_envs * run.algorithm.num_steps
    _say(
        f"{run.task} on {counted(ranks, 'rank')}, {run.total_steps // rollout} updates of {rollout} steps; "
        "for these runs "
        f"num_shards={run.num_shards}, timeout_s={run.timeout_s:g}, checkpoint_every={run.checkpoint_every}, "
        f"check_every={run.check_every}"
        + (f", learning_starts={run.algorithm.learning_starts}" if isinstance(run.algorithm, ReplayConfig) else "")
    )
    if not exact:
        _say("the environments cannot be saved: a restarted run need not end with the same parameters")
    _say(f"runs: {os.path.relpath(folder)}")


def _write(folder: Path, fault_runs: FaultRuns, results: Sequence[FaultResult]) -> None:
    table = {
        "undisturbed": fault_runs.fingerprint,
        "exact": fault_runs.exact,
        "trials": [asdict(one) | {"survived": one.survived} for one in results],
    }
    write_atomically(folder / RESULT_FILE, json.dumps(table, indent=2) + "\n")


def _print_progress(text: str) -> None:
    """Print a line that the next one replaces, on a terminal only."""
    if redraws(sys.stdout):
        print(f"\r\033[K{text}", end="", flush=True)


def _say(text: str) -> None:
    print(f"\r\033[K{text}" if redraws(sys.stdout) else text, flush=True)
