"""The words of errors that environments raise."""

import itertools
import re
import traceback
from collections.abc import Iterable
from pathlib import Path

_LOCKSTEP = Path(__file__).parents[1]
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


def name_in_shard(index: int) -> str:
    """An environment of a shard in messages; which shard, what reports the error says in front."""
    return f"environment {index} of its shard"


def describe_error(error: BaseException) -> str:
    """Type, message and location of an error in one line.

    The location is that in the user's code; where none of it ran, the last frame outside Lockstep. Where the message
    quotes the traceback of another error, as JAX does of one in a callback, it is that error which is described.
    """
    _, quotes, quoted = str(error).rpartition(_TRACEBACK)
    if quotes and (described := _describe_quoted(quoted)):
        return described
    message = " ".join(str(error).split())
    location = user_location(error) or _last_of(_frames(error))
    return f"{type(error).__name__}{': ' if message else ''}{message}{location}"


def _describe_quoted(text: str) -> str:
    """As `describe_error`, of the lines of a traceback; empty without an error at their end."""
    lines = [line for line in text.splitlines() if line.strip()]
    said = list(itertools.dropwhile(lambda line: line.startswith(" "), lines))
    frames = [traceback.FrameSummary(name, int(number), "") for name, number in _FRAME.findall(text)]
    users = [one for one in _outside_lockstep(frames) if "site-packages" not in one.filename]
    message = " ".join(" ".join(said).split())
    return message and message + _last_of(users)


def user_location(error: BaseException) -> str:
    """` (file:line)` of the last frame outside installed packages, or nothing."""
    return _last_of([frame for frame in _frames(error) if "site-packages" not in frame.filename])


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames outside Lockstep, and outside Python's import of a file."""
    return _outside_lockstep(traceback.extract_tb(error.__traceback__))


def _outside_lockstep(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    frames = [one for one in frames if not one.filename.startswith("<frozen ")]
    return [frame for frame in frames if not Path(frame.filename).is_relative_to(_LOCKSTEP)]


def _last_of(frames: list[traceback.FrameSummary]) -> str:
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
