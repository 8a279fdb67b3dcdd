"""What a user is told of a run's settings when it starts."""

from lockstep.envs.spec import EnvSpec
from lockstep.run import AnyRun, Run
from lockstep.session.task_defaults import default_settings, defaults_note
from lockstep.session.unused_settings import unused_settings


def start_notes(run: AnyRun, spec: EnvSpec | None, *, task_alone: bool) -> list[str]:
    """The kind of task that default settings were chosen for, if any, and settings without effect.

    Args:
        run: the config.
        spec: of its environments, as `check_run` returns it.
        task_alone: whether the user named a task alone, which then has the default settings of its kind.
    """
    if not (task_alone and isinstance(run, Run) and spec is not None):
        return unused_settings(run, spec)
    note = defaults_note(run, spec)
    chosen = [] if note is None else [f"{note}; run.yaml has them all"]
    return [*chosen, *unused_settings(run, spec, default_settings(run, spec))]
