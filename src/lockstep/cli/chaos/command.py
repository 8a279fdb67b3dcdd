"""`lockstep chaos`: put one fault after another into a run of the user's own, and see what survives.

One undisturbed run comes first. Each fault then strikes a run of its own, at an update and a rank that the seed draws;
the run may restart from its checkpoints and has to end with the same parameters.
"""

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.algorithms.dqn import DQNConfig
from lockstep.cli.chaos.faults import KINDS, InjectedFault
from lockstep.cli.chaos.trial import HEAD, Interrupted, Trial, Trials
from lockstep.errors import ConfigError
from lockstep.launch.signals import caught_signals
from lockstep.record.run_dir import RunDir, write_atomically
from lockstep.run import Run, override

UPDATES = 24
"""How many updates of the run are tried, unless the user says for how long to train."""
MAX_TIMEOUT_S = 10.0
"""The longest `timeout_s`: a rank that stalls is waited for so long."""
RESULT_FILE = "chaos.json"
"""The table, in the folder of all runs."""


def chosen_faults(text: str | None) -> list[str]:
    """The faults that `--faults a,b` names; None: all."""
    if text is None:
        return list(KINDS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise ConfigError(f"--faults {','.join(unknown) or repr(text)}: no such fault; there are {', '.join(KINDS)}")
    return names


def prepared(run: Run, ranks: int, *, whole: bool) -> Run:
    """The run as it is tried: pinned, saved often, quick to notice, and short unless the `whole` run is asked for."""
    rollout = run.num_envs * run.algorithm.num_steps
    updates = -(-run.total_steps // rollout)
    if not whole:
        updates = min(updates, UPDATES)
    if updates < 4:
        raise ConfigError(f"total_steps={run.total_steps} is {updates} updates; chaos needs at least {4 * rollout}")
    changes: dict[str, Any] = {
        "num_shards": run.num_shards or ranks,
        "total_steps": updates * rollout,
        "checkpoint_every": max(1, updates // 6) * rollout,
        "check_every": min(run.check_every, 2),
        "timeout_s": min(run.timeout_s, MAX_TIMEOUT_S),
        "non_finite": "stop",
        "stop_when_solved": False,
    }
    if isinstance(run.algorithm, DQNConfig) and not whole:  # or nothing would be learned, and nothing could be lost
        changes["learning_starts"] = min(run.algorithm.learning_starts, changes["checkpoint_every"])
    return override(run, changes)


def schedule(faults: Sequence[str], run: Run, ranks: int, seed: int) -> list[InjectedFault]:
    """When each fault strikes and whom; what the seed draws for one does not depend on the others."""
    updates = run.total_steps // (run.num_envs * run.algorithm.num_steps)
    drawn: list[InjectedFault] = []
    for kind in faults:
        draw = random.Random(f"{seed} {kind}")
        drawn.append(InjectedFault(kind, draw.randrange(ranks), draw.randrange(1, updates - 1)))
    return drawn


def chaos(run: Run, ranks: int, faults: Sequence[str], *, seed: int, run_dir: Path | None, whole: bool) -> int:
    """Try every fault, tell as they end, and write `chaos.json`; returns the exit code: 0 when all survived.

    Args:
        run: the user's run.
        ranks: how many ranks it takes.
        faults: names of `lockstep.cli.chaos.faults.KINDS`.
        seed: what draws ranks and updates.
        run_dir: where the runs go, a directory each; default: a new one below `runs/`.
        whole: keep `total_steps` instead of trying the first `UPDATES` updates.
    """
    run = prepared(run, ranks, whole=whole)
    folder = RunDir.create(run_dir, run, name="chaos").path
    drawn = schedule(faults, run, ranks, seed)
    trials: list[Trial] = []
    with caught_signals() as caught:
        all_runs = Trials(run, ranks, folder, caught)
        try:
            _introduce(run, ranks, folder, all_runs.exact)
            _now(f"the undisturbed run, on {ranks} ranks ...")
            all_runs.undisturbed()
            _say(f"undisturbed: parameters {all_runs.fingerprint}\n\n{HEAD}")
            for fault in drawn:
                _now(f"{fault.fault}: {KINDS[fault.fault]} (rank {fault.rank}, update {fault.update}) ...")
                trials.append(all_runs.try_fault(fault))
                _say(trials[-1].row(all_runs.exact))
        except Interrupted as interrupted:
            _say(f"interrupted; {len(trials)} of {len(drawn)} faults were tried")
            return 128 + interrupted.args[0]
        finally:
            _write(folder, all_runs, trials)
    survived = sum(trial.survived for trial in trials)
    _say(f"\n{survived} of {len(trials)} faults survived; table and runs: {os.path.relpath(folder)}")
    return 0 if survived == len(trials) else 1


def _introduce(run: Run, ranks: int, folder: Path, exact: bool) -> None:
    rollout = run.num_envs * run.algorithm.num_steps
    _say(
        f"{run.task} on {ranks} ranks, {run.total_steps // rollout} updates of {rollout} steps; for the trial "
        f"num_shards={run.num_shards}, timeout_s={run.timeout_s:g}, checkpoint_every={run.checkpoint_every}, "
        f"check_every={run.check_every}"
        + (f", learning_starts={run.algorithm.learning_starts}" if isinstance(run.algorithm, DQNConfig) else "")
    )
    if not exact:
        _say("the environments cannot be saved: a restarted run need not end with the same parameters")
    _say(f"runs: {os.path.relpath(folder)}")


def _write(folder: Path, trials: Trials, done: Sequence[Trial]) -> None:
    result = {
        "undisturbed": trials.fingerprint,
        "exact": trials.exact,
        "trials": [asdict(trial) | {"survived": trial.survived} for trial in done],
    }
    write_atomically(folder / RESULT_FILE, json.dumps(result, indent=2) + "\n")


def _now(text: str) -> None:
    """What is being done, on a terminal only; the next line takes its place."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


def _say(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True)
