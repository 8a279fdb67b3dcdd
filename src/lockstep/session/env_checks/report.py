"""What a check found out about an environment."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class CheckEndedError(Exception):
    """A fault after which nothing more can be checked; it is in the report."""


@dataclass(slots=True)
class Report:
    """Facts, faults and warnings, each one line. A fault ends a training sooner or later, a warning need not."""

    skip_non_finite: bool = False
    """A number that is not finite is a warning: the run leaves such steps out."""
    facts: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    doing: str = "__init__"
    """The method that is called now."""
    savable: bool | None = None
    """Whether the environment can be saved in mid-episode; `None` if that was not looked at."""
    finite: bool = True
    """Whether all numbers so far were finite; those that are not equal nothing, not even themselves."""

    reported: set[str] = field(default_factory=set[str])
    """What faults and warnings were about: each thing is told once, however often it is met."""

    def fault(self, text: str, about: str | None = None) -> None:
        """Add a fault, if it is the first about this; default: its text."""
        self._add(self.faults, text, about)

    def warn(self, text: str, about: str | None = None) -> None:
        """Add a warning, if it is the first about this; default: its text."""
        self._add(self.warnings, text, about)

    def _add(self, texts: list[str], text: str, about: str | None) -> None:
        if (about or text) not in self.reported:
            self.reported.add(about or text)
            texts.append(text)

    def fatal(self, text: str) -> NoReturn:
        """Add a fault after which nothing more can be checked."""
        self.fault(text)
        raise CheckEndedError(text)

    def not_finite(self, text: str, about: str) -> None:
        """Add what the setting `non_finite` decides about."""
        self.finite = False
        (self.warn if self.skip_non_finite else self.fault)(text, f"finite {about}")

    def call(self, method: str, call: Callable[[], T]) -> T:
        """What a method of the environment returns; whatever it raises is a fault."""
        self.doing = method
        try:
            return call()
        except Exception as error:
            self.fatal(f"{method} raised {raised(error)}")


def raised(error: BaseException) -> str:
    """Kind, message and place of an error in one line; the place is the last in code that is not installed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in ("site-packages", "src/lockstep"))]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


def described(value: Any) -> str:
    """What a value is, for a message: `an array of shape (2,)`, `None`, `a tuple of 3`."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"  # pyright: ignore[reportUnknownArgumentType]
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def counted(number: int, noun: str) -> str:
    """`1 fault`, `2 faults`, `no faults`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
