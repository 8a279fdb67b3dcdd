"""What a node or a rank shows the others before they work together: versions, config and code, and who differs."""

import functools
import hashlib
import importlib.machinery
import os
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, cast

Identity = Mapping[str, Any]

# What must agree, and what to do about it. Other entries of a card are facts, `settings` among them: they explain.
VERSIONS = ("python", "torch", "jax", "jaxlib", "lockstep", "numpy")
"""Entries of a card that are versions; those of the other framework are left out."""
_KINDS = dict.fromkeys(VERSIONS, "versions") | {
    "config": "config",
    "code": "code",
}
_REMEDIES = {
    "versions": "install the same versions everywhere",
    "config": "start all with the same command",
    "code": "give every machine the same files",
}
_SHOWN_FIELDS = 3  # in the line; the table has them all
_SHOWN_HOSTS = 3
_DIGITS = 8
_CELL = 40


def identity(config: str, code: str | None = None, framework: str = "torch") -> dict[str, Any]:
    """What all who take part must agree in, and facts about this one.

    Args:
        config: what was asked for, as text: the dumped run, or a command.
        code: what `user_code` says of the files of the user's own.
        framework: `torch` or `jax`; the versions of the other need not agree.
    """
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in (("jax", "jaxlib") if framework == "jax" else ("torch",))},
        "lockstep": f"{_version('lockstep-rl')} (source {_own_source()})",
        "numpy": _version("numpy"),
        "config": _digest(config.encode()),
        "code": code,
        "host": os.uname().nodename,
        "clock": time.time(),
    }


def user_code(names: Iterable[str] = ()) -> str | None:
    """Name and digest of each file of the user's own: of those named, of those loaded, and of the script; no import.

    Args:
        names: as settings name code, `module:Class` or `path/to/file.py:Name`; what names no file counts nothing.
    """
    files = {path for name in names if (path := _file_of(name)) is not None}
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("lockstep_file_")]
    for module in (*loaded, sys.modules.get("__main__")):
        path = Path(getattr(module, "__file__", None) or "")
        if path.suffix == ".py" and not _installed(path):
            files.add(path.resolve())
    found = sorted((path.name, _digest(path.read_bytes())) for path in files if path.is_file())
    return "; ".join(f"{name} {digest}" for name, digest in found) or None


def differences(identities: Mapping[str, Identity]) -> str | None:
    """One line that names who differs in what, and the way out; below an empty line a table, where that says more.

    Args:
        identities: by who shows it, `rank 3` or `rank 3 (beta)`. Where all hold `settings` (name to value), those that
            differ are named.

    Returns:
        None if all agree.
    """
    groups: dict[str, list[str]] = {}
    for label, one in identities.items():
        groups.setdefault(repr([one.get(name) for name in _KINDS]), []).append(label)
    if len(groups) < 2:
        return None
    by_size = sorted(groups.values(), key=len, reverse=True)  # the most come first; among equals the first shown
    rows = _rows([identities[labels[0]] for labels in by_size])
    columns = [format_ranks(labels) for labels in by_size]
    others, verb = " and ".join(columns[1:]), "differs" if len(identities) - len(by_size[0]) == 1 else "differ"
    with_values = [
        len(by_size) == 2 and name != "config" and len("".join(row)) <= 2 * _CELL for name, row in rows.items()
    ]
    fields = [
        name + (f" ({row[1]} instead of {row[0]})" if values else "")
        for (name, row), values in zip(rows.items(), with_values, strict=True)
    ]
    if more := fields[_SHOWN_FIELDS:]:
        fields[_SHOWN_FIELDS:] = [f"{len(more)} more"]
    kinds = [kind for kind in _REMEDIES if any(_kind_of(name) == kind for name in rows)]
    remedy = "; ".join(_REMEDIES[kind] for kind in kinds)
    line = f"{others} {verb} from {columns[0]} in {_listed(fields)}; {remedy}"
    return line if len(by_size) == 2 and not more else f"{line}\n\n{_table(columns, rows)}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


@functools.cache
def _own_source() -> str:
    """Digest of Lockstep's own files: editable installs of one version may differ."""
    root, whole = Path(__file__).parents[1], hashlib.blake2b(digest_size=_DIGITS // 2)
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGITS).hexdigest()


def _installed(path: Path) -> bool:
    """Whether a file is of a library, whose version is compared anyway."""
    inside = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return any(path.is_relative_to(folder) for folder in inside) or not {"site-packages", "dist-packages"}.isdisjoint(
        path.parts
    )


def _file_of(name: str) -> Path | None:
    """The source of what a setting names, if it is the user's own."""
    location, colon, _ = name.rpartition(":")
    location = location if colon else name
    if location.endswith(".py"):
        return Path(location).resolve()
    parts = location.split(".")
    if not colon or not all(part.isidentifier() for part in parts):
        return None
    search: Sequence[str] | None = [*sys.path, os.getcwd()]
    origin = ""
    for depth in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        if spec is None:
            return None
        search, origin = spec.submodule_search_locations or [], spec.origin or ""
    return Path(origin).resolve() if origin.endswith(".py") and not _installed(Path(origin)) else None


def _rows(shown: Sequence[Identity]) -> dict[str, list[str]]:
    """What differs, by name: the value of each of those shown. Config by setting, code by file, where that is told."""
    rows: dict[str, list[str]] = {}
    for name in _KINDS:
        if all(one.get(name) == shown[0].get(name) for one in shown):
            continue
        parts = [_settings(one) if name == "config" else _files(one) if name == "code" else {} for one in shown]
        # Of settings that only some tell nothing can be said; without files of the user's own there is none to tell.
        rows |= (_by_name(parts) if all(parts) or name == "code" else {}) or {
            name: [str(one.get(name, "unknown")) for one in shown]
        }
    return rows


def _by_name(every: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The entries in which they are not all alike."""
    names = dict.fromkeys(name for one in every for name in one)
    rows = {name: [one.get(name, "none") for one in every] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def _settings(one: Identity) -> dict[str, str]:
    settings: Any = one.get("settings")
    if not isinstance(settings, Mapping):
        return {}
    return {str(key): str(value) for key, value in cast("Identity", settings).items()}


def _files(one: Identity) -> dict[str, str]:
    entries = [entry.rpartition(" ") for entry in str(one.get("code") or "").split("; ")]
    return {name: digest for name, _, digest in entries if name}


def _kind_of(row: str) -> str:
    return _KINDS.get(row, "code" if row.endswith(".py") else "config")


def format_ranks(labels: Sequence[str]) -> str:
    """`rank 0 (alpha)` and `rank 1 (alpha)` as `ranks 0-1 (alpha)`."""
    found = [re.fullmatch(r"(\w+) (\d+)(?: \((.*)\))?", label) for label in labels]
    if not all(found):
        return ", ".join(labels)
    parsed = [(match[1], int(match[2]), match[3]) for match in found if match]
    word, hosts = parsed[0][0], {host for _, _, host in parsed}
    if len(hosts) > _SHOWN_HOSTS:
        return f"{_ranges(word, [number for _, number, _ in parsed])} ({len(hosts)} hosts)"
    parts: list[str] = []
    for host, members in groupby(sorted(parsed, key=lambda one: (str(one[2]), one[1])), key=lambda one: one[2]):
        parts.append(_ranges(word, [number for _, number, _ in members]) + (f" ({host})" if host else ""))
    return _listed(parts)


def _ranges(word: str, numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    several = len(runs) > 1 or runs[0][0] != runs[0][1]
    return f"{word}{'s' * several} " + ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]


def _table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A line for each thing that differs, a column for those who agree."""
    lines = [["", *columns], *([name, *row] for name, row in rows.items())]
    cut = [[cell if len(cell) <= _CELL else cell[: _CELL - 3] + "..." for cell in line] for line in lines]
    widths = [max(len(line[i]) for line in cut) for i in range(len(columns) + 1)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cut
    )
