"""Charts as SVG elements whose colours come from the page's style sheet.

Text stays text, and every label is escaped by the serializer. Each chart has `role="img"`, a title and a description
for screen readers, and is drawn for a width of 400 units, so that text stays readable on a phone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from lockstep.record.score_statistics import Floats
from lockstep.record.text import compact

NUM_STYLES = 8
"""Number of colours in `style.css`, each with a dash pattern."""
_WIDTH, _LEFT, _RIGHT = 400, 48, 16
_TOP, _PLOT_HEIGHT, _AXIS_HEIGHT = 30, 190, 40
_ROW, _LEGEND_ROW, _BOTTOM = 38, 18, 6
_LETTER = 6.0
"""Mean width of a letter of the labels; text is cut with it before it leaves the picture."""
_HEADING_LETTER = 8.2
_NARROW = 1e-3
"""A range of values this small, against the values, is drawn as one value."""
_IDS = count(1)
_Scale = Callable[[Floats | np.float64], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart, its band and the faint lines behind it."""

    label: str
    x: Floats
    y: Floats
    """NaN leaves a gap."""
    style: int | None
    """Colour and dash, from 0; None draws it in grey and leaves it out of the legend."""
    low: Floats | None = None
    high: Floats | None = None
    behind: Sequence[tuple[Floats, Floats]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval, and the scores that it summarizes."""

    label: str
    number: str
    """The value as text."""
    value: float
    low: float
    high: float
    dots: Sequence[float]
    style: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A bar of parts laid end to end, one per name of the chart's legend."""

    label: str
    parts: Sequence[float]


def line_chart(
    title: str, description: str, axes: tuple[str, str], lines: Sequence[Line], *, whole: bool = False
) -> str:
    """Lines with bands over a common pair of axes; `axes` are the labels of x and y.

    `whole` labels x at whole numbers only.
    """
    legend = [line for line in lines if line.style is not None]
    height = _TOP + _PLOT_HEIGHT + _AXIS_HEIGHT + _LEGEND_ROW * len(legend) + _BOTTOM
    svg = _svg(title, description, height)
    x_range = _range([line.x for line in lines] + [x for line in lines for x, _ in line.behind])
    shown = [y for line in lines for y in (line.y, line.low, line.high) if y is not None]
    y_range = _range(shown + [y for line in lines for _, y in line.behind], margin=0.04)
    to_x = _scale(x_range, _LEFT, _WIDTH - _RIGHT)
    to_y = _scale(y_range, _TOP + _PLOT_HEIGHT, _TOP)
    _x_axis(svg, x_range, to_x, _TOP + _PLOT_HEIGHT, axes[0], whole=whole)
    _y_axis(svg, y_range, to_y, axes[1])
    for line in sorted(lines, key=lambda line: line.style is not None):  # grey ones first, below the others
        style = "grey" if line.style is None else f"s{line.style % NUM_STYLES}"
        group = SubElement(svg, "g", {"class": style})
        SubElement(group, "title").text = line.label
        for x, y in line.behind:
            SubElement(group, "path", {"class": "run", "d": _path(to_x(x), to_y(y))})
        if line.low is not None and line.high is not None:
            known = ~np.isnan(line.low)
            x = to_x(line.x[known])
            outline = np.concatenate([x, x[::-1]]), to_y(np.concatenate([line.low[known], line.high[known][::-1]]))
            SubElement(group, "path", {"class": "band", "d": _path(*outline) + "Z"})
        SubElement(group, "path", {"class": "line", "d": _path(to_x(line.x), to_y(line.y))})
        if len(line.x) == 1:
            place = {"cx": f"{to_x(line.x)[0]:.1f}", "cy": f"{to_y(line.y)[0]:.1f}"}
            SubElement(group, "circle", {"class": "value", "r": "4", **place})
    for i, line in enumerate(legend):
        y = _TOP + _PLOT_HEIGHT + _AXIS_HEIGHT + _LEGEND_ROW * i + 8
        group = SubElement(svg, "g", {"class": f"s{(line.style or 0) % NUM_STYLES}"})
        SubElement(group, "path", {"class": "line", "d": f"M{_LEFT - 38} {y}h28"})
        _text(svg, line.label, _LEFT - 2, y + 4, width=_WIDTH - _RIGHT - _LEFT)
    return tostring(svg, encoding="unicode")


def interval_chart(title: str, description: str, axis: str, intervals: Sequence[Interval]) -> str:
    """A row per value: its label, the interval as a bar, the value as a disc, single scores as small circles."""
    bottom = _TOP + _ROW * len(intervals)
    svg = _svg(title, description, bottom + _AXIS_HEIGHT)
    given = [np.array([row.value, row.low, row.high, *row.dots]) for row in intervals]
    x_range = _range(given, margin=0.03)
    to_x = _scale(x_range, 14, _WIDTH - _RIGHT)
    _x_axis(svg, x_range, to_x, bottom, axis)
    for i, row in enumerate(intervals):
        top = _TOP + _ROW * i
        group = SubElement(svg, "g", {"class": "grey" if row.style is None else f"s{row.style % NUM_STYLES}"})
        value, low, high = (float(to_x(np.float64(number))) for number in (row.value, row.low, row.high))
        _text(svg, row.label, 14, top + 12, width=_WIDTH - 48 - _LETTER * len(row.number))
        _text(svg, row.number, _WIDTH - _RIGHT, top + 12, "label end")
        SubElement(group, "path", {"class": "interval", "d": f"M{low:.1f} {top + 24}H{high:.1f}"})
        for score in row.dots:
            place = {"cx": f"{to_x(np.float64(score)):.1f}", "cy": str(top + 24), "r": "3"}
            SubElement(group, "circle", {"class": "dot", **place})
        SubElement(group, "circle", {"class": "value", "cx": f"{value:.1f}", "cy": str(top + 24), "r": "5.5"})
    return tostring(svg, encoding="unicode")


def stack_chart(
    title: str, description: str, axis: str, names: Sequence[str], stacks: Sequence[Stack], *, percent: bool = False
) -> str:
    """A bar per row, of coloured parts with a legend; `percent` draws shares of each bar's sum."""
    kept = [i for i in range(len(names)) if any(stack.parts[i] > 0 for stack in stacks)]
    per_row = 4
    legend_rows = -(-len(kept) // per_row)
    bottom = _TOP + _ROW * len(stacks)
    svg = _svg(title, description, bottom + _AXIS_HEIGHT + _LEGEND_ROW * legend_rows + _BOTTOM)
    longest = max(sum(stack.parts) for stack in stacks)
    x_range = (0.0, 100.0 if percent else longest)
    to_x = _scale(x_range, 14, _WIDTH - _RIGHT)
    _x_axis(svg, x_range, to_x, bottom, axis)
    for row, stack in enumerate(stacks):
        top, total, start = _TOP + _ROW * row, sum(stack.parts), 0.0
        _text(svg, stack.label, 14, top + 12, width=_WIDTH - 28)
        for i in kept:
            share = stack.parts[i] / total if total else 0.0
            size = 100.0 * share if percent else stack.parts[i]
            left, right = float(to_x(np.float64(start))), float(to_x(np.float64(start + size)))
            start += size
            if right - left < 0.3:
                continue
            part = SubElement(svg, "g", {"class": f"p{i}"})
            SubElement(part, "title").text = f"{stack.label}: {names[i]} {share:.0%}"
            place = {
                "x": f"{left:.1f}",
                "y": str(top + 17),
                "height": "16",
                "width": f"{max(right - left - 1, 0.3):.1f}",
            }
            SubElement(part, "rect", {"class": "part", **place})
            if right - left > 34:
                _text(svg, f"{share:.0%}", (left + right) / 2, top + 29, "inside")
    for entry, i in enumerate(kept):
        x = 14 + (entry % per_row) * (_WIDTH - 28) / per_row
        y = bottom + _AXIS_HEIGHT + _LEGEND_ROW * (entry // per_row)
        part = SubElement(svg, "g", {"class": f"p{i}"})
        SubElement(part, "rect", {"class": "part", "x": f"{x:.1f}", "y": f"{y}", "width": "12", "height": "12"})
        _text(svg, names[i], x + 17, y + 10)
    return tostring(svg, encoding="unicode")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(title: str, description: str, height: int) -> Element:
    number = next(_IDS)
    labels = {"aria-labelledby": f"chart{number}-title chart{number}-description"}
    svg = Element("svg", {"class": "chart", "role": "img", "viewBox": f"0 0 {_WIDTH} {height}", **labels})
    SubElement(svg, "title", {"id": f"chart{number}-title"}).text = title
    SubElement(svg, "desc", {"id": f"chart{number}-description"}).text = description
    SubElement(svg, "rect", {"class": "paper", "width": str(_WIDTH), "height": str(height)})
    letters = int((_WIDTH - 28) / _HEADING_LETTER)
    if len(title) > letters:
        title = f"{title[: letters // 2]}…{title[-(letters // 2 - 1) :]}"
    _text(svg, title, 14, 17, "heading")
    return svg


def _text(parent: Element, text: str, x: float, y: float, style: str = "label", width: float | None = None) -> None:
    element = SubElement(parent, "text", {"class": style, "x": f"{x:g}", "y": f"{y:g}"})
    letters = None if width is None else int(width / _LETTER)
    if letters is not None and len(text) > letters:
        SubElement(element, "title").text = text
        begin, bracket, end = text.rpartition(" (")  # the number of runs is kept
        end = bracket + end if begin and len(end) < letters // 2 else ""
        element[0].tail = text[: letters - len(end) - 1] + "…" + end
    else:
        element.text = text


def _range(arrays: Sequence[Floats], margin: float = 0.0) -> tuple[float, float]:
    """The finite minimum and maximum with a margin, so far apart that the labels of an axis differ."""
    finite = [array[np.isfinite(array)] for array in arrays]
    numbers = np.concatenate([array for array in finite if len(array)] or [np.zeros(1)])
    low, high = float(numbers.min()), float(numbers.max())
    if high - low <= _NARROW * max(abs(low), abs(high)):
        spread = abs(low) * 0.1 or 1.0
        return low - spread, high + spread
    return low - margin * (high - low), high + margin * (high - low)


def _scale(values: tuple[float, float], start: float, end: float) -> _Scale:
    """The linear map from values to coordinates."""
    factor = (end - start) / (values[1] - values[0])
    offset = start - values[0] * factor
    return lambda x: np.asarray(x * factor + offset)


def _x_axis(
    svg: Element, values: tuple[float, float], to_x: _Scale, bottom: float, label: str, *, whole: bool = False
) -> None:
    for tick in ticks(*values):
        if whole and not tick.is_integer():
            continue
        x = float(to_x(np.float64(tick)))
        SubElement(svg, "path", {"class": "grid", "d": f"M{x:.1f} {_TOP}V{bottom:.1f}"})
        _text(svg, compact(tick), round(x, 1), bottom + 14, "tick middle")
    SubElement(svg, "path", {"class": "axis", "d": f"M{to_x(np.float64(values[0])):.1f} {bottom}H{_WIDTH - _RIGHT}"})
    _text(svg, label, _WIDTH - _RIGHT, bottom + 29, "tick end")


def _y_axis(svg: Element, values: tuple[float, float], to_y: _Scale, label: str) -> None:
    for tick in ticks(*values, most=5):
        y = float(to_y(np.float64(tick)))
        SubElement(svg, "path", {"class": "grid", "d": f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"})
        _text(svg, compact(tick), _LEFT - 6, round(y + 4, 1), "tick end")
    _text(svg, label, _WIDTH - _RIGHT, 17, "tick end")


def _path(x: Floats, y: Floats) -> str:
    """Path commands in tenths of a unit; NaN starts a new segment."""
    commands, command = list[str](), "M"
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if math.isnan(b) or math.isnan(a):
            command = "M"
        else:
            commands.append(f"{command}{a:.1f} {b:.1f}")
            command = "L"
    return "".join(commands)
