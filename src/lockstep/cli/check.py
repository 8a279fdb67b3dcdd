"""`lockstep check`, and the same look at environments of the user's own before they are first trained in."""

import argparse
import os
from typing import TYPE_CHECKING

from lockstep.errors import ConfigError
from lockstep.session.env_checks.first import warned_if_slow

if TYPE_CHECKING:
    pass

_LONG_STEPS, _LONG_S = 10_000, 5.0


def check_command(args: argparse.Namespace) -> int:
    """`lockstep check`: everything that can be found out about a task; 2 if something is at fault, else 0."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing here is large; read when JAX is first used
    from lockstep.cli.request import from_environments, requested_run
    from lockstep.envs.make import env_spec
    from lockstep.envs.state import UNSAVABLE
    from lockstep.session.checks import check_task as check_algorithm
    from lockstep.session.env_checks.play import Limits
    from lockstep.session.env_checks.report import Report, counted
    from lockstep.session.env_checks.task import check_task

    run = from_environments(requested_run(args), "lockstep check")
    report = Report(skip_non_finite=run.non_finite == "skip")
    with warned_if_slow(run, report):
        check_task(run.task, run.env, report, Limits(_LONG_STEPS, _LONG_S))
    if not report.faults:
        check_algorithm(run, env_spec(run.task, run.env))
    print(run.task)
    for fact in report.facts:
        print(f"  {fact}")
    doubts = report.warnings + ([UNSAVABLE] if report.savable is False else [])
    for kind, texts in (("fault", report.faults), ("warning", doubts)):
        for text in texts:
            print(f"{kind}: {text}")
    more = "; docs/environments.md says what is expected" if report.faults or doubts else ""
    print(f"{counted(len(report.faults), 'fault')}, {counted(len(doubts), 'warning')}{more}")
    return ConfigError.exit_code if report.faults else 0
