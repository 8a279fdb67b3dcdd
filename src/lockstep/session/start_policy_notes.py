"""Notes for the user on a run that starts from a policy: which one, and what is other than in its training."""

from pathlib import Path

from lockstep.config.settings import as_text, leaves
from lockstep.envs.spec import EnvSpec
from lockstep.experience.normalize import RunningMoments
from lockstep.record.run_dir import read_config
from lockstep.run import AnyRun, Run, to_dict
from lockstep.session.policy_file import POLICY_FILE
from lockstep.session.which_policy import FoundPolicy


def note_on_choice(path: Path, found: FoundPolicy) -> list[str]:
    """A note if `path` is a run whose newest policy, which is taken, is not its final one."""
    return [] if found.path in (path, path / POLICY_FILE) else [f"--init-from {path} takes {found.description}"]


def notes_on_spec(path: Path, source: EnvSpec | None, mine: EnvSpec | None) -> list[str]:
    """Notes if a run (`mine`) bounds actions or clips observations otherwise than the policy (`source`)."""
    if source is None or mine is None:
        return []
    notes: list[str] = []
    if not source.action.same_numbers(mine.action):
        notes.append(
            f"--init-from {path} was trained with actions {source.action.values_text}, and this task takes actions "
            f"{mine.action.values_text}: its actions may mean something else here"
        )
    return notes + _setting_note(path, "env.clip_observation", source.clip_observation, mine.clip_observation)


def notes_on_groups(path: Path, found: FoundPolicy, run: AnyRun | None) -> list[str]:
    """Notes if a run joins other groups of observations than the policy's run did, of the same task.

    They may have the same sizes. A policy file that lies elsewhere than in its run does not tell its groups.
    """
    if found.run_dir is None or not isinstance(run, Run):
        return []
    theirs, mine = (leaves(config) for config in (read_config(found.run_dir), to_dict(run)))
    if theirs.get("task") != mine["task"]:
        return []
    notes: list[str] = []
    for name in ("env.policy_keys", "env.critic_keys", "env.frame_stack"):
        notes += _setting_note(path, name, theirs.get(name, mine[name]), mine[name])
    return notes


def notes_on_normalizer(path: Path, source: RunningMoments | None, mine: RunningMoments | None) -> list[str]:
    """A note if a run (`mine`) limits normalized observations otherwise than the policy (`source`)."""
    if source is None or mine is None:
        return []
    return _setting_note(path, "observation_limit", source.limit, mine.limit)


def _setting_note(path: Path, name: str, source: object, mine: object) -> list[str]:
    if source == mine:
        return []
    return [
        f"--init-from {path} was trained with {name}={as_text(source)}, and this run has {as_text(mine)}: it observes "
        "other numbers here, and may act otherwise"
    ]
