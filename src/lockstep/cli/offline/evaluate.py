"""`lockstep offline evaluate`: estimate the return of a run's policy from logged data."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.flags import add_policy_choice
from lockstep.errors import ConfigError, RunError

if TYPE_CHECKING:
    import numpy as np

    from lockstep.estimators.result import Estimates
    from lockstep.run import OfflineRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep offline evaluate`."""
    add_policy_choice(parser)
    add = parser.add_argument
    add("--data", metavar="DIR", help="prepared data to estimate from (default: the run's eval_data, else its data)")
    add("--ranks", metavar="N|auto", help="processes, one device each (default: 1)")
    add("--json", action="store_true", help="print everything as JSON instead of tables")
    add("--debug", action="store_true", help="show tracebacks")


def evaluate_command(args: argparse.Namespace) -> int:
    """`lockstep offline evaluate`: print the estimates, and write those of a run as its `estimates.json`.

    Those of a chosen checkpoint, file or best policy are printed alone.
    """
    import json

    from lockstep.cli.request import requested_ranks
    from lockstep.data.dataset import Dataset
    from lockstep.data.dataset_files import read_description
    from lockstep.estimators.result import ESTIMATES_FILE
    from lockstep.launch.local import spawn
    from lockstep.record.run_dir import RUN_FILE
    from lockstep.run import OfflineRun, load
    from lockstep.session.offline.data_notes import time_note
    from lockstep.session.package_checks import check_package
    from lockstep.session.policy_file import POLICY_FILE
    from lockstep.session.which_policy import read_policy
    from lockstep.world import World

    path = Path(args.run)
    policy, metadata, arrays = read_policy(path, best=args.best, last=args.last, step=args.checkpoint)
    if policy.run_dir is None:
        raise ConfigError(f"{path} has no run.yaml beside it, which says how to judge; give a directory below runs/")
    run = load(policy.run_dir / RUN_FILE)
    if not isinstance(run, OfflineRun):
        raise ConfigError(
            f"{path} learned from environments, not from a log; lockstep evaluate {shlex.quote(str(path))} "
            "plays its policy"
        )
    check_package(run.ml_framework, either=False)
    data, world = args.data or run.eval_data or run.data, World.from_environment()
    setting, purpose = ("eval_data", "judges by") if run.eval_data else ("data", "learned from")
    if args.data is None and not Path(data).exists():
        raise ConfigError(f"{setting}={data}, which {path} {purpose}, is not there; add --data DIR, the prepared data")
    read_description(Path(data), "--data" if args.data else setting, None if data == run.data else run.data)
    ranks = requested_ranks(args.ranks, 1, run.ml_framework)
    if world.launcher != "none" and args.ranks is not None:
        raise ConfigError(f"--ranks {args.ranks}: {world.launcher} started these ranks already; leave --ranks out")
    if world.launcher == "none" and ranks > 1:
        estimates = spawn(_evaluate, ranks, (run, policy.path, metadata, arrays, data))[0]
    else:
        estimates = _evaluate(world.rank, run, policy.path, metadata, arrays, data)
    if world.rank == 0:
        if policy.path.name != POLICY_FILE:
            print(f"lockstep: note: the estimates are of {policy.description}", file=sys.stderr)
        if note := time_note(run, Dataset.open(data)):
            print(f"lockstep: note: {note}", file=sys.stderr)
        step = {} if policy.step is None else {"step": policy.step}
        as_json = json.dumps(step | estimates.to_dict(), indent=2)
        print(as_json if args.json else estimates.text())
        if path == policy.run_dir and not (args.best or args.checkpoint):
            _write(path / ESTIMATES_FILE, as_json + "\n")
    return 0


def _write(path: Path, text: str) -> None:
    from lockstep.system.files import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror}") from error


def _evaluate(
    rank: int, run: "OfflineRun", policy: Path, metadata: dict[str, Any], arrays: "dict[str, np.ndarray]", data: str
) -> "Estimates":
    from lockstep.world import World

    if run.ml_framework == "jax":
        from lockstep.jax.offline.evaluate import evaluate_run
    else:
        from lockstep.torch.offline.evaluate import evaluate_run
    return evaluate_run(run, policy, metadata, arrays, data, World.from_environment())
