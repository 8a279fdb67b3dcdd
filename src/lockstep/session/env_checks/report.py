"""The report of a check of an environment."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from lockstep.envs.errors import describe_error
from lockstep.envs.vector import argument_hint
from lockstep.errors import ConfigError, RunError
from lockstep.record.text import counted

T = TypeVar("T")


class CheckEndedError(Exception):
    """Ends a check after a fault that prevents further checks; the fault is in the report."""


@dataclass(slots=True)
class Report:
    """Facts, faults and warnings, each one line. A fault makes training fail, a warning may not."""

    skip_non_finite: bool = False
    """Whether non-finite numbers are warnings, because the run skips such steps."""
    facts: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    doing: str = "__init__"
    """The method being called."""
    savable: bool | None = None
    """Whether the environment can be saved in mid-episode; `None` if not checked."""
    finite: bool = True
    """Whether all numbers so far were finite; NaN cannot be compared."""
    repeatable: bool = True
    """Whether the same seeds and actions have given the same so far."""
    wrapped: bool = False
    """Whether the user's wrappers are around the environment, `env.wrappers`."""
    reported: set[str] = field(default_factory=set[str])
    """Subjects of the faults and warnings so far; each is reported once."""

    def fault(self, text: str, about: str | None = None) -> None:
        """Add a fault, unless there is one about the same subject; default subject: its text."""
        self._add(self.faults, text, about)

    def warn(self, text: str, about: str | None = None) -> None:
        """Add a warning, unless there is one about the same subject; default subject: its text."""
        self._add(self.warnings, text, about)

    def _add(self, texts: list[str], text: str, about: str | None) -> None:
        if (about or text) not in self.reported:
            self.reported.add(about or text)
            texts.append(text)

    def fatal(self, text: str) -> NoReturn:
        """Add a fault that ends the check."""
        self.fault(text)
        raise CheckEndedError(text)

    def not_finite(self, text: str, about: str) -> None:
        """Add a fault, or a warning with `non_finite=skip`, about a non-finite number."""
        self.finite = False
        (self.warn if self.skip_non_finite else self.fault)(text, f"finite {about}")

    def call(self, method: str, call: Callable[[], T]) -> T:
        """Call a method of the environment; any exception is a fault."""
        self.doing = method
        try:
            return call()
        except (ConfigError, RunError) as error:  # Lockstep's own words on wrappers, or what the environment returned
            self.fatal(str(error))
        except Exception as error:
            way_out = argument_hint(error) if method == "__init__" else ""
            self.fatal(f"{method} raised {describe_error(error)}{way_out}")


def describe_value(value: Any) -> str:
    """A value's description for a message: `an array of shape (2,)`, `None`, `a tuple of 3`."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"  # pyright: ignore[reportUnknownArgumentType]
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def count_noun(number: int, noun: str) -> str:
    """`1 fault`, `2 faults`, `no faults`."""
    return counted(number, noun) if number else f"no {noun}s"
