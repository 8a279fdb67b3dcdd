"""Notes for the user on a run that starts from a policy: which one, and what is other than in its training."""

from pathlib import Path

from lockstep.config.settings import as_text
from lockstep.envs.spec import EnvSpec
from lockstep.experience.normalize import RunningMoments
from lockstep.session.policy_file import POLICY_FILE
from lockstep.session.which_policy import Found


def note_on_choice(path: Path, found: Found) -> list[str]:
    """A note if `path` is a run whose newest policy, which is taken, is not its final one."""
    return [] if found.path in (path, path / POLICY_FILE) else [f"--init-from {path} takes {found.words}"]


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
    return notes + _on_limit(path, "env.clip_observation", source.clip_observation, mine.clip_observation)


def notes_on_normalizer(path: Path, source: RunningMoments | None, mine: RunningMoments | None) -> list[str]:
    """A note if a run (`mine`) limits normalized observations otherwise than the policy (`source`)."""
    if source is None or mine is None:
        return []
    return _on_limit(path, "observation_limit", source.limit, mine.limit)


def _on_limit(path: Path, name: str, source: float | None, mine: float | None) -> list[str]:
    if source == mine:
        return []
    return [
        f"--init-from {path} was trained with {name}={as_text(source)}, and this run has {as_text(mine)}: it observes "
        "other numbers here, and may act otherwise"
    ]
