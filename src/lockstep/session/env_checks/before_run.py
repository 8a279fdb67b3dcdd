"""A short check of user-defined environments before a run starts."""

import functools
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockstep.envs.make import is_jax_task, jax_module
from lockstep.errors import ConfigError
from lockstep.system.forked import in_fork

if TYPE_CHECKING:
    from lockstep.run import Run
    from lockstep.session.env_checks.report import Report

_SLOW_S = 10.0
"""Seconds after which a check prints what it is waiting for."""


def check_before_run(run: "Run", *, tell: bool = True) -> None:
    """Check a user-defined environment briefly, once per process and task; other environments are trusted.

    Args:
        run: the config.
        tell: print warnings.

    Raises:
        ConfigError: the environment has a fault.
    """
    from lockstep.session.env_checks.task import uses_user_code

    if not uses_user_code(run.task, run.env) or repr((run.task, run.env)) in _checked:
        return
    report = _short_check(run)
    if len(report.faults) == 1:
        raise ConfigError(f"task={run.task}: {report.faults[0]}")
    if report.faults:
        listed = "\n".join(f"  {fault}" for fault in report.faults)
        raise ConfigError(f"task={run.task} has {len(report.faults)} faults\n\n{listed}")
    _checked.add(repr((run.task, run.env)))
    if tell:
        for text in report.warnings:
            print(f"lockstep: warning: task={run.task}: {text}", file=sys.stderr)


_checked: set[str] = set()


def _short_check(run: "Run") -> "Report":
    """Run the check, in a separate process if the environments will run in worker processes, or may use JAX."""
    from lockstep.session.env_checks.episodes import Limits
    from lockstep.session.env_checks.report import Report
    from lockstep.session.env_checks.task import check_env_of_task

    report = Report(skip_non_finite=run.non_finite == "skip")
    check = functools.partial(check_env_of_task, run.task, run.env, report, Limits(), trace_only=True)
    with watch_duration(run, report):
        if run.env.vectorization != "async" and not _may_start_jax(run):
            check()
            return report
        in_worker = functools.partial(_checked_in_worker, check, report, os.getpid(), run.task)
        return in_fork(in_worker, f"task={run.task}")


def _may_start_jax(run: "Run") -> bool:
    """Whether making the environments may use JAX for the first time, which would fix its threads and devices."""
    return is_jax_task(run.task) and not jax_module("subprocess_spec", run.task).is_in_use()


def _checked_in_worker(check: Callable[[], object], report: "Report", rank_pid: int, task: str) -> "Report":
    from lockstep.envs.workers import become_worker

    become_worker(rank_pid)
    if is_jax_task(task):
        jax_module("subprocess_spec", task).compute_on_cpu()
    check()
    return report


@contextmanager
def watch_duration(run: "Run", report: "Report") -> Generator[None]:
    """Print which method is slow, and exit this process if it does not return within `startup_timeout_s`."""
    done = threading.Event()

    def watch() -> None:
        patience_s = min(_SLOW_S, run.startup_timeout_s)
        if done.wait(patience_s):
            return
        print(f"lockstep: checking task={run.task}: {report.doing} takes more than {patience_s:g} s", file=sys.stderr)
        if not done.wait(run.startup_timeout_s - patience_s):
            waited = f"startup_timeout_s={run.startup_timeout_s:g}"
            print(f"lockstep: error: task={run.task}: {report.doing} did not return within {waited}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True, name="lockstep-check")
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
