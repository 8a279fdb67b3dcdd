"""The words of errors that environments raise."""

import traceback
from pathlib import Path

_LOCKSTEP = Path(__file__).parents[1]


def name_in_shard(index: int) -> str:
    """An environment of a shard in messages; which shard, what reports the error says in front."""
    return f"environment {index} of its shard"


def describe_error(error: BaseException) -> str:
    """Type, message and location of an error in one line.

    The location is that in the user's code; where none of it ran, the last frame outside Lockstep.
    """
    message = " ".join(str(error).split())
    location = user_location(error) or _last_of(_frames(error))
    return f"{type(error).__name__}{': ' if message else ''}{message}{location}"


def user_location(error: BaseException) -> str:
    """` (file:line)` of the last frame outside installed packages, or nothing."""
    return _last_of([frame for frame in _frames(error) if "site-packages" not in frame.filename])


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames outside Lockstep, and outside Python's import of a file."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<frozen ")]
    return [frame for frame in frames if not Path(frame.filename).is_relative_to(_LOCKSTEP)]


def _last_of(frames: list[traceback.FrameSummary]) -> str:
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
