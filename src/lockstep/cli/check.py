"""`lockstep check`: test an environment against the requirements of training."""

import argparse
import os

from lockstep.errors import ConfigError
from lockstep.session.env_checks.before_run import watch_duration

_MAX_STEPS = 10_000
_MAX_S = 5.0


def check_command(args: argparse.Namespace) -> int:
    """`lockstep check`: print the properties and faults of a task; returns 2 if there are faults, else 0."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # set before JAX is first used: a GPU is not needed here
    from lockstep.cli.request import has_task_defaults, online_run, requested_run
    from lockstep.envs.make import env_spec, unsavable_text
    from lockstep.session.env_checks.episodes import Limits
    from lockstep.session.env_checks.report import Report, count_noun
    from lockstep.session.env_checks.task import check_env_of_task
    from lockstep.session.task_checks import check_task
    from lockstep.session.task_defaults import defaults_note

    run = online_run(requested_run(args, task_defaults=False), "lockstep check")  # those need an environment that works
    report = Report(skip_non_finite=run.non_finite == "skip")
    with watch_duration(run, report):
        check_env_of_task(run.task, run.env, report, Limits(_MAX_STEPS, _MAX_S))
    facts = list(report.facts)
    if not report.faults:
        run = online_run(requested_run(args), "lockstep check")
        spec = env_spec(run.task, run.env)
        check_task(run, spec)
        if has_task_defaults(args, run):
            facts += filter(None, [defaults_note(run, spec)])
    print(run.task)
    for fact in facts:
        print(f"  {fact}")
    warnings = report.warnings + ([unsavable_text(run.task)] if report.savable is False else [])
    for kind, texts in (("fault", report.faults), ("warning", warnings)):
        for text in texts:
            print(f"{kind}: {text}")
    more = "; docs/environments.md says what is expected" if report.faults or warnings else ""
    print(f"{count_noun(len(report.faults), 'fault')}, {count_noun(len(warnings), 'warning')}{more}")
    return ConfigError.exit_code if report.faults else 0
