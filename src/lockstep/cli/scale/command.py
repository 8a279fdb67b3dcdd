"""Make the runs of a scaling measurement one after the other, and print the comparison."""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from lockstep.cli.flags import flags_of
from lockstep.cli.report.load import FEWEST_UPDATES
from lockstep.cli.report.scale_table import SCALE_FILE, cores_warning, text_of
from lockstep.cli.request import changes_of, checked, online_run, requested_run, sets_total_steps
from lockstep.cli.scale.arguments import add_arguments
from lockstep.cli.scale.plan import OWN_SETTINGS, Job, Plan, check_plan, parse_modes, parse_ranks, run_of
from lockstep.cli.scale.results import results
from lockstep.cli.sweep.folder import failure_reason
from lockstep.cli.sweep.processes import start_run
from lockstep.cli.sweep.sweep_file import parse_seeds
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.launch.flags import number
from lockstep.launch.signals import caught_signals
from lockstep.launch.train_ranks import PROGRAM
from lockstep.launch.world_checks import check_no_launcher
from lockstep.record.follow import read_json
from lockstep.record.run_dir import SUMMARY_FILE, RunDir, lock_run_dir
from lockstep.record.run_status import COMPLETE, is_running
from lockstep.record.text import counted
from lockstep.run import Run, dump, load
from lockstep.system.cores import usable_cores
from lockstep.system.files import read_text, write_atomically

_PLAN_FILE, _CONFIG_FILE = "scale.yaml", "config.yaml"
_POLL_S = 0.1


def scale_command(args: argparse.Namespace) -> int:
    """`lockstep scale`; returns the exit code. Everything is checked before the first run starts."""
    check_no_launcher("lockstep scale")
    given = None if args.target is None else Path(args.target)
    if given is not None and (given / _PLAN_FILE).is_file():
        folder, plan, run = _earlier(given, args)
    else:
        plan = _requested_plan(args)
        args.ranks = None
        run = online_run(checked(args, requested_run(args)), "lockstep scale")
        folder = None if args.run_dir is None else Path(args.run_dir)
    check_plan(plan, run)
    jobs = list(plan.jobs())
    if args.dry_run:
        for job in jobs:
            found = run_of(run, plan, job)
            print(f"{job.name}: {counted(job.ranks, 'rank')}, {found.num_envs} environments, {found.total_steps} steps")
        print(f"{len(jobs)} runs, one at a time")
        return 0
    if folder is None:
        folder = RunDir.create(None, None, name=f"{_file_name(run.task)}-scale").path
    return _measure(_opened(folder, plan, run), plan, run)


def _requested_plan(args: argparse.Namespace) -> Plan:
    target = args.target_return
    if target is None and args.seeds is not None:
        raise ConfigError(f"--seeds {args.seeds} is for runs until a return; add --return R, or leave it out")
    try:
        target = None if target is None else float(target)
    except ValueError:
        raise ConfigError(f"--return {target} must be a number") from None
    _check_settings(args)
    return Plan(
        ranks=parse_ranks(args.ranks, args.target),
        modes=parse_modes(args.modes),
        updates=number(args.updates, "--updates", "a number", least=FEWEST_UPDATES),
        repetitions=number(args.repetitions, "--repetitions"),
        target_return=target,
        seeds=(0, 1, 2) if args.seeds is None else parse_seeds(args.seeds, "--seeds"),
    )


def _check_settings(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for a given setting that no run of the measurement would have."""
    given, target = changes_of(args, task=None), args.target_return
    if target is None and sets_total_steps(args):
        length = "total_steps" if args.max_iterations is None else f"--max-iterations {args.max_iterations}"
        raise ConfigError(
            f"{length}: the length of a measured run is that of --updates N; leave it out, or add --return R, whose "
            "runs have it"
        )
    if target is None and (replaced := [name for name in OWN_SETTINGS if name in given]):
        shown = "--video" if args.video and "evaluate_video" in replaced else f"{replaced[0]}={given[replaced[0]]}"
        raise ConfigError(
            f"{shown}: runs that measure the speed have a value of their own; leave it out, or add --return R, whose "
            "runs have it"
        )
    for name in ("stop_return", "stop_when_solved"):
        if name in given and target is None:
            raise ConfigError(
                f"{name}={given[name]}: runs that measure the speed never stop at a return; leave it out, or add "
                "--return R"
            )
        if name in given:
            raise ConfigError(
                f"--return {target} and {name}={given[name]} both say at which return runs stop; leave {name} out"
            )


def _earlier(folder: Path, args: argparse.Namespace) -> tuple[Path, Plan, Run]:
    """The measurement in a folder, which keeps its plan and its config."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    for flag, dest, default in flags_of(parser):
        value = getattr(args, dest)
        if dest not in ("dry_run", "debug") and value != default:
            shown = "" if value is True else f" {value[0] if isinstance(value, list) else value}"
            raise ConfigError(
                f"{folder} continues with its own plan and settings; leave out {flag}{shown}, or name a task"
            )
    return folder, _read_plan(folder), online_run(load(folder / _CONFIG_FILE), "lockstep scale")


def _read_plan(folder: Path) -> Plan:
    file = folder / _PLAN_FILE
    tree: dict[str, Any] = settings.parse(read_text(file), str(file))
    try:
        return Plan.of(tree)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not a plan of lockstep scale ({error})") from None


def _opened(folder: Path, plan: Plan, run: Run) -> Path:
    """Make the folder, or check that it is one of the same measurement."""
    if (folder / _PLAN_FILE).is_file():
        if _read_plan(folder) != plan or load(folder / _CONFIG_FILE) != run:
            raise ConfigError(
                f"run_dir={folder} has a measurement with other settings; choose another with --run-dir, or "
                f"continue it: lockstep scale {shlex.quote(str(folder))}"
            )
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"run_dir={folder} already holds files and no measurement; choose another with --run-dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _CONFIG_FILE, dump(run))
        write_atomically(folder / _PLAN_FILE, settings.to_yaml(plan.tree()))
    except OSError as error:
        raise ConfigError(
            f"run_dir={folder} cannot be written ({error.strerror}); choose another with --run-dir"
        ) from None
    return folder


def _measure(folder: Path, plan: Plan, run: Run) -> int:
    jobs, cores, failures = list(plan.jobs()), usable_cores(), dict[str, str]()
    print(f"{run.task}: {run.algo}, {len(jobs)} runs, one at a time; directory {os.path.relpath(folder)}", flush=True)
    if warning := cores_warning({"plan": plan.tree(), "cores": cores}):
        print(warning, flush=True)
    lock = lock_run_dir(folder, "measures scaling here", timeout_s=0.0)
    stopped_by = 0
    try:
        for i, job in enumerate(jobs, 1):
            if read_json(folder / job.name / SUMMARY_FILE).get("status") in COMPLETE:
                _report(i, len(jobs), job, folder, " before")
                continue
            code, stopped_by = _train(folder, job, run_of(run, plan, job))
            if stopped_by:
                break
            if code != 0:
                failures[job.name] = failure_reason(folder / job.name, log_path(folder, job), code)
                print(f"[{i}/{len(jobs)}] {job.name}: failed, {failures[job.name]}", flush=True)
                continue
            _report(i, len(jobs), job, folder)
    finally:
        os.close(lock)
    found = results(folder, plan, run, cores, failures)
    write_atomically(folder / SCALE_FILE, json.dumps(found, indent=2) + "\n")
    shown = shlex.quote(os.path.relpath(folder))
    if stopped_by:
        print(f"continue with: lockstep scale {shown}")
        return 128 + stopped_by
    print(f"\n{text_of(found)}\n\npage: lockstep report {shown} --html scale.html")
    if failures:
        print(f"make the failed runs again: lockstep scale {shown}")
    return 1 if failures else 0


def _train(folder: Path, job: Job, run: Run) -> tuple[int, int]:
    """Make one run; returns its exit code, and the signal that this process received meanwhile.

    A run that an earlier start did not finish is made anew, because one that was interrupted measures nothing.
    """
    path, config = folder / job.name, folder / "configs" / f"{job.name}.yaml"
    if is_running(path):
        raise ConfigError(
            f"run_dir={path}: a process of an earlier start still trains it; wait for its end, or stop it"
        )
    shutil.rmtree(path, ignore_errors=True)
    config.parent.mkdir(exist_ok=True)
    write_atomically(config, dump(run))
    command = [*PROGRAM, str(config), "--run-dir", str(path), "--ranks", str(job.ranks)]
    with caught_signals() as caught, log_path(folder, job).open("wb") as log:
        process = start_run(command, log)
        forwarded = 0
        while process.poll() is None:
            if len(caught) > forwarded:
                forwarded = len(caught)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(caught[0] if forwarded == 1 else signal.SIGKILL)
            time.sleep(_POLL_S)
        return process.returncode, caught[0] if caught else 0


def log_path(folder: Path, job: Job) -> Path:
    """The file for what a run prints."""
    path = folder / "logs" / f"{job.name}.log"
    path.parent.mkdir(exist_ok=True)
    return path


def _report(i: int, count: int, job: Job, folder: Path, when: str = "") -> None:
    """One line about a run that has ended."""
    summary = read_json(folder / job.name / SUMMARY_FILE)
    speed = f"{summary.get('steps_per_second', 0):.0f} steps/s with the warm-up"
    if job.mode == "return":
        seconds = summary.get("solved_at_s")
        speed = "return not reached" if seconds is None else f"return reached after {seconds:.1f} s"
    print(f"[{i}/{count}] {job.name}: done{when}, {speed}", flush=True)


def _file_name(task: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in Path(task).name)[:60]
