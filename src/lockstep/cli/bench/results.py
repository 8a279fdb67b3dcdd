"""Results of `lockstep bench`: one JSON line per measurement, and tables of their medians."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.cli.bench.workloads import Contender, Workload
from lockstep.errors import ConfigError

RESULTS_FILE = "results.jsonl"
TABLES_FILE = "tables.md"

_BEGIN = '{"work": "'  # of every line

Row = Mapping[str, Any]
"""`work`, `arm`, `repetition`, `scale`, and `value`, `peak_mb`, `versions` or `error`."""


def read_rows(folder: Path) -> list[Row]:
    """All measurements so far. Removes a last line that was cut short.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    path = folder / RESULTS_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); name another --run-dir") from None
    *lines, last = text.split("\n")
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1)]
    if last:
        if not last.startswith(_BEGIN[: len(last)]):
            raise _foreign(path, len(lines) + 1)
        os.truncate(path, len(text.removesuffix(last).encode()))  # never empty, as a rewritten file is for a moment
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    """The measurement on a line."""
    try:
        found = json.loads(line)
        kinds = {"work": str, "arm": str, "repetition": int, "scale": int | float}
        kinds |= {"value": int | float} if "value" in found else {"error": str}
        if all(isinstance(found[name], kind) for name, kind in kinds.items()):
            return found
    except (ValueError, TypeError, KeyError):
        pass
    raise _foreign(path, number)


def _foreign(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"{path}: line {number} is no measurement of lockstep bench; remove the line, or name another --run-dir"
    )


def append_row(folder: Path, row: Row) -> None:
    """Add a measurement."""
    with (folder / RESULTS_FILE).open("a") as file:
        file.write(json.dumps(row) + "\n")


def of_contender(rows: Sequence[Row], workload: str, contender: str) -> dict[int, Row]:
    """The newest measurements of a contender, by repetition."""
    return {row["repetition"]: row for row in rows if (row["work"], row["arm"]) == (workload, contender)}


def table(name: str, workload: Workload, rows: Sequence[Row]) -> str:
    """A markdown table of a workload: medians, and medians of the ratios of measurements that were taken in turn.

    A ratio is that of Lockstep to a library, and of several ranks to one; more than 1 is better.
    """
    lines: list[str] = []
    notes: list[str] = []
    for contender in workload.contenders:
        measured = of_contender(rows, name, contender.name)
        if not measured:
            continue
        good = {i: row["value"] for i, row in measured.items() if "value" in row}
        errors = [row["error"] for row in measured.values() if "error" in row]
        if errors and not good:
            notes.append(f"{contender.title}: {errors[-1]}")
            continue
        base = of_contender(rows, name, contender.one_rank or workload.contenders[0].name)
        against = "" if contender is workload.contenders[0] else _ratio(workload, contender, base, good)
        memory = median(row.get("peak_mb", 0.0) for row in measured.values() if "value" in row)
        cells = [
            contender.title,
            _spread(list(good.values())),
            against,
            _target(workload, contender),
            f"{memory:.0f}" if memory else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    versions: dict[str, str] = {}
    for row in rows:
        if row["work"] == name:
            versions |= row.get("versions", {})
    parts = [[f"## {name}: {workload.title}"]]
    if lines:
        heads = f"| | {workload.unit}, median (range) | ratio, median (range) | aimed at | MB per process |"
        parts += [[heads, "|---|---|---|---|---|", *lines]]
        parts += [[", ".join(f"{package} {number}" for package, number in sorted(versions.items()))]]
    parts += [[f"Not measured: {note}" for note in notes]] if notes else []
    return "\n\n".join("\n".join(part) for part in parts)


def _ratio(workload: Workload, contender: Contender, base: Mapping[int, Row], other: Mapping[int, float]) -> str:
    """How many times better Lockstep is than a library, or several ranks than one."""
    ours = {i: row["value"] for i, row in base.items() if "value" in row and i in other}
    ratios = [ours[i] / other[i] if workload.higher_is_better else other[i] / ours[i] for i in ours]
    if contender.ranks > 1:
        ratios = [1 / ratio for ratio in ratios]
    if not ratios:
        return ""
    return f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"


def _target(workload: Workload, contender: Contender) -> str:
    return f"{workload.targets[contender.name]:.2f}" if contender.name in workload.targets else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    digits = 0 if median(values) >= 100 else 2
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} - {max(values):,.{digits}f})"
