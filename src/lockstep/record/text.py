"""Numbers and tables as text, for the terminal and for messages."""

import math
from collections.abc import Callable, Iterator, Sequence

_MOST_DIGITS = 15
"""Digits before the point of a number that is written in full, less one."""


def significant(value: float) -> str:
    """A return with 4 significant digits: `0.8512`, `48.40`, `1234.5`, `1.000e+20`."""
    if not value or not math.isfinite(value):
        return f"{value:.1f}"
    before = math.floor(math.log10(abs(value)))
    return f"{value:.3e}" if not -4 <= before <= _MOST_DIGITS else f"{value:.{max(1, 3 - before)}f}"


def grouped(number: float) -> str:
    """A whole number with its digits in groups of three: `40 960`."""
    return f"{number:,.0f}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def aligned(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.rjust) -> Iterator[str]:
    """The lines of a table, indented: the first column to the left, others as `align`s."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        yield "  " + "  ".join([first[0].ljust(first[1]), *(align(*cell) for cell in others)]).rstrip()


def compact(value: float) -> str:
    """A number of few letters: `250k`, `1.5M`, `0.02`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds: `1 h 05 min`, `2 min 08 s`, `9 s`."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min {int(seconds) % 60:02d} s" if minutes else f"{seconds:.0f} s"
