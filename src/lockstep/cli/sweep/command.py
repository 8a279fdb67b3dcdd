"""From the arguments of `lockstep sweep` and `lockstep train --seeds` to the runs, and the table at their end."""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.request import set_values
from lockstep.cli.sweep.folder import RESULTS_FILE, SweepFolder
from lockstep.cli.sweep.pool import Pool
from lockstep.cli.sweep.processes import StartProcess, start_here
from lockstep.cli.sweep.progress import ProgressLines
from lockstep.cli.sweep.scores import as_json, print_results, results
from lockstep.cli.sweep.slots import Needs, Slot, make_slots
from lockstep.cli.sweep.space import draws, grid
from lockstep.cli.sweep.sweep_file import Sweep, check_metric, load_sweep, parse_seeds
from lockstep.cli.sweep.train_command import TrainCommand, shown_settings
from lockstep.cli.sweep.trial import ListedTrials, TrialSource
from lockstep.cli.terminal import discarded_if_closed, output_console
from lockstep.engines.ray.arguments import add_ray_arguments
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, without_flags
from lockstep.launch.world_checks import check_no_launcher
from lockstep.record.run_dir import SWEEP_FILE, RunDir, default_name
from lockstep.record.text import counted
from lockstep.run import Run, to_dict
from lockstep.system.files import write_atomically

if TYPE_CHECKING:
    from lockstep.run import AnyRun

_TRIED_DRAWS = 10


def run_sweep_command(args: argparse.Namespace) -> int:
    """`lockstep sweep`: read the sweep, and run it in its directory; returns the exit code."""
    target = Path(args.target)
    changes = {
        "sampler": args.sampler,
        "trials": None if args.trials is None else number(args.trials, "--trials"),
    }
    if target.is_dir():
        if args.run_dir is not None:
            raise ConfigError(f"{target} is the directory of a sweep, and --run-dir {args.run_dir} another; give one")
        return continue_sweep(args, target, changes)
    if not target.exists():
        raise ConfigError(
            f"{target} is neither a sweep file nor the directory of a sweep; docs/sweeps.md has an example"
        )
    sweep = load_sweep(target, changes)
    run_dir = Path(args.run_dir) if args.run_dir else Path("runs", target.stem)
    return _run(replace(sweep, directory=os.path.abspath(sweep.directory or ".")), run_dir.absolute(), args)


def train_seeds(args: argparse.Namespace) -> int:
    """`lockstep train --seeds`: the same run with several seeds; returns the exit code."""
    if args.seed is not None:
        raise ConfigError(f"--seed {args.seed} and --seeds {args.seeds} both choose the seeds; give one")
    if "seed" in (values := set_values(args.set)):
        raise ConfigError(f"--set seed={values['seed']} and --seeds {args.seeds} both choose the seeds; give one")
    words = without_flags(args.words, "--seeds", "--jobs", "--run-dir", parents=[_cluster_flags()])
    sweep = Sweep(train=shlex.join(words), seeds=parse_seeds(args.seeds, "--seeds"), directory=os.getcwd())
    if args.run_dir is not None:
        return _run(sweep, Path(args.run_dir).absolute(), args, where="")
    first = TrainCommand(words).run_of({}, sweep.seeds[0])
    made = RunDir.create(None, None, name=f"{default_name(to_dict(first))}-seeds")
    try:
        return _run(sweep, made.path.absolute(), args, where="")
    except BaseException:
        made.discard()  # keeps a directory that has the files of a sweep
        raise


def resume_sweep(args: argparse.Namespace) -> int:
    """`lockstep train --resume DIR` of a directory with a sweep; returns the exit code."""
    others = without_flags(args.words, "--resume", "--jobs", switches=["--debug"], parents=[_cluster_flags()])
    if others:
        raise ConfigError(f"--resume {args.resume} continues a sweep and its settings; leave out {others[0]}")
    return continue_sweep(args, Path(args.resume))


def continue_sweep(args: argparse.Namespace, run_dir: Path, changes: Mapping[str, Any] | None = None) -> int:
    """Continue the sweep in `run_dir`; returns the exit code."""
    if not (run_dir / SWEEP_FILE).is_file():
        raise ConfigError(
            f"{run_dir} is not the directory of a sweep (it has no {SWEEP_FILE}); give one, or a sweep file"
        )
    return _run(load_sweep(run_dir / SWEEP_FILE, changes or {}), run_dir.absolute(), args)


def _cluster_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_ray_arguments(parser, sweep=True)
    return parser


def _run(sweep: Sweep, run_dir: Path, args: argparse.Namespace, where: str = "train: ") -> int:
    check_no_launcher("a sweep")
    jobs = None if args.jobs is None else number(args.jobs, "--jobs")
    directory = Path(sweep.directory or ".")
    if not directory.is_dir():
        raise ConfigError(f"directory={directory} of the sweep does not exist; edit {run_dir / SWEEP_FILE}")
    shown = os.path.relpath(run_dir)  # where the user is, which need not be where paths of the sweep start
    with contextlib.chdir(directory):
        command = TrainCommand(sweep.words, where=where, on_ray=_on_ray(args))
        runs = _check_runs(sweep, command)
        needs = Needs.of_all(runs, command.ranks, here=not _on_ray(args))
        if getattr(args, "dry_run", False):
            return _list_runs(sweep, shown, None if _on_ray(args) else make_slots(needs, _most_runs(sweep), jobs))
        with (
            _places(args, needs, command.ranks, _most_runs(sweep), jobs) as (slots, start),
            SweepFolder(run_dir, sweep, shown) as folder,
        ):
            pool = Pool(
                sweep=sweep,
                folder=folder,
                command=command,
                source=_source(sweep, folder),
                slots=slots,
                lines=ProgressLines(sys.stdout, "steps" if isinstance(runs[0], Run) else "rows"),
                retry_failed=getattr(args, "retry_failed", False),
                start_process=start,
            )
            return _run_all(pool, runs[0])


def _on_ray(args: argparse.Namespace) -> bool:
    """Whether the runs train on a Ray cluster. Raises `ConfigError` for flags of Ray without `--on ray`."""
    if args.on is None and (args.address or args.runtime_env):
        raise ConfigError("--address and --runtime-env are for runs on a Ray cluster; add --on ray")
    return args.on is not None


@contextlib.contextmanager
def _places(
    args: argparse.Namespace, needs: Needs, ranks: int, most: int, jobs: int | None
) -> Generator[tuple[list[Slot], StartProcess]]:
    """The slots of the runs, and what starts a run in one: here, or as an actor of Ray."""
    if not _on_ray(args):
        yield make_slots(needs, most, jobs), start_here
        return
    from lockstep.engines.ray.arguments import checked_address, runtime_env_of
    from lockstep.engines.ray.cluster import check_ray
    from lockstep.engines.ray.trial import trials_on_ray

    check_ray()
    address, runtime_env = checked_address(args.address), runtime_env_of(args.runtime_env)
    with trials_on_ray(address, runtime_env, cpus=needs.cores, gpus=needs.gpus, ranks=ranks) as trials:
        requested = f"CPU {trials.cpus}" + f", GPU {trials.gpus}" * bool(trials.gpus)
        slots = [Slot(index, (), requested=requested) for index in range(min(jobs or trials.room, most))]
        yield slots, lambda command, _, log_file: trials.start(command, log_file)


def _check_runs(sweep: Sweep, command: TrainCommand) -> "list[AnyRun]":
    """Check the runs before any starts; returns those of the first seed, or of a few draws, that work.

    Every combination of a grid must work. Some random ones may not: they fail, and the others continue.
    """
    runs: list[AnyRun] = []
    errors: list[ConfigError] = []
    if sweep.sampler == "grid":
        runs = [command.run_of(settings, sweep.seeds[0]) for settings in grid(sweep.settings)]
    else:
        for settings in draws(sweep.settings, _TRIED_DRAWS, sweep.sampler_seed):
            try:
                runs.append(command.run_of(settings, sweep.seeds[0]))
            except ConfigError as error:
                errors.append(error)
        if not runs:
            raise errors[0]  # any space has a draw
    for run in runs:
        check_metric(sweep.metric, run)
    return runs


def _most_runs(sweep: Sweep) -> int:
    trials = sweep.trials or 1 if sweep.sampler == "optuna" else sum(1 for _ in _listed(sweep))
    return trials * len(sweep.seeds)


def _listed(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """The combinations of a sampler that knows them from the start."""
    if sweep.sampler == "grid":
        return grid(sweep.settings)
    return draws(sweep.settings, sweep.trials or 0, sweep.sampler_seed)


def _source(sweep: Sweep, folder: SweepFolder) -> TrialSource:
    if sweep.sampler != "optuna":
        return ListedTrials(_listed(sweep), numbered=sweep.sampler == "random")
    from lockstep.cli.sweep.optuna_trials import OptunaTrials

    return OptunaTrials(sweep, folder.path)


def _list_runs(sweep: Sweep, shown: str, slots: Sequence[Slot] | None) -> int:
    """Print the runs; `slots` is None where only the cluster has their number."""
    seeds = ",".join(map(str, sweep.seeds))
    if sweep.sampler == "optuna":
        print(f"{sweep.trials} trials chosen by Optuna, seeds {seeds}")
    for settings in () if sweep.sampler == "optuna" else _listed(sweep):
        print(f"{shown_settings(settings) or 'settings as given'}, seeds {seeds}")
    at_a_time = "as many at a time as the cluster has room for" if slots is None else f"{len(slots)} at a time"
    print(f"{_most_runs(sweep)} runs, {at_a_time}, in {shown}")
    return 0


def _run_all(pool: Pool, first: "AnyRun") -> int:
    """Train the runs of the pool and print the table; returns the exit code."""
    pool.check_started()
    folder, sweep, slots, ranks = pool.folder, pool.sweep, pool.slots, pool.command.ranks
    shown = folder.shown
    at_a_time = f"{len(slots)} at a time" if len(slots) > 1 else "one at a time"
    with discarded_if_closed(sys.stdout):
        print(
            f"{first.subject}: {first.algo}, {_most_runs(sweep)} runs of {counted(ranks, 'rank')}, "
            f"{at_a_time} on {slots[0].share} each; directory {shown}"
        )
    try:
        caught = pool.run()
    finally:
        pool.lines.close()
    found = results(pool.runs, sweep)
    write_atomically(folder.path / RESULTS_FILE, as_json(found, sweep))
    again = f"lockstep sweep {shlex.quote(shown)}"
    states = [sweep_run.status for sweep_run in pool.runs]
    with discarded_if_closed(sys.stdout):
        print_results(found, sweep, output_console())
        print(f"directory: {shown}")
        if caught or "interrupted" in states or "queued" in states:
            print(f"continue with: {again}")
        if "failed" in states:
            print(f"run failed ones again with: {again} --retry-failed")
    if caught:
        return 128 + caught
    return 0 if all(state in ("done", "pruned") for state in states) else 1
