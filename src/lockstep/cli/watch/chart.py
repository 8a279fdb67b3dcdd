"""A curve drawn in Braille characters, each of which holds 2 x 4 dots.

Not by a package: plotext, the usual one, is compiled since version 6 and has wheels for x86-64 only.
"""

from collections.abc import Sequence

from lockstep.record.file_numbers import can_be_drawn
from lockstep.record.text import compact, significant

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot, by column and row."""
_LABEL = 10
"""Width of the labels of the vertical axis."""


def draw(xs: Sequence[float], ys: Sequence[float], width: int, height: int, unit: str) -> list[str]:
    """Lines of text with a curve, its axes and their labels.

    Args:
        xs: ascending.
        ys: as many; points that are not finite, or too large to be scaled, are left out.
        width: of the lines, in characters.
        height: number of lines, the horizontal axis and its labels included.
        unit: of the horizontal axis.
    """
    columns, rows = max(2, width - _LABEL - 2), max(2, height - 2)
    points = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if can_be_drawn(x) and can_be_drawn(y)]
    if not points:
        return ["no values yet".center(width), *[""] * (height - 1)]
    first, last = points[0][0], points[-1][0]
    points = _thinned(points, first, last, 2 * columns)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    cells = [[0] * columns for _ in range(rows)]
    scaled = [
        (_scale(x, first, last, 2 * columns - 1), 4 * rows - 1 - _scale(y, low, high, 4 * rows - 1)) for x, y in points
    ]
    for (x0, y0), (x1, y1) in zip(scaled, [*scaled[1:], scaled[-1]], strict=True):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    labels = {0: high, rows // 2: high - (high - low) * (rows // 2) / max(rows - 1, 1), rows - 1: low}
    lines = [
        f"{significant(labels[row]) if row in labels else '':>{_LABEL}} ┤"
        + "".join(chr(_BLANK + cell) if cell else " " for cell in cells[row])
        for row in range(rows)
    ]
    lines.append(" " * (_LABEL + 1) + "└" + "─" * columns)
    left, right = compact(first), f"{compact(last)} {unit}"
    lines.append(" " * (_LABEL + 2) + left + right.rjust(columns - len(left)))
    return lines


def _scale(value: float, low: float, high: float, most: int) -> int:
    """`value` in [low, high] as a whole number from 0 to `most`."""
    return 0 if high <= low else min(most, max(0, round((value - low) / (high - low) * most)))


def _thinned(points: Sequence[tuple[float, float]], first: float, last: float, count: int) -> list[tuple[float, float]]:
    """The mean of the points in each column of dots."""
    if len(points) <= count:
        return list(points)
    groups: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault(_scale(point[0], first, last, count - 1), []).append(point)
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups.values()]
