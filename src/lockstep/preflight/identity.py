"""The identity of a node or rank: versions, config and code, which must agree; and the message if they differ."""

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

from lockstep.distributed.ranges import listed, named_ranges
from lockstep.record.text import aligned

Identity = Mapping[str, Any]

# The entries that must agree, and the remedies. Other entries, such as `settings`, only explain a difference.
VERSIONS = ("python", "torch", "jax", "jaxlib", "lockstep", "numpy")
"""Entries of an identity that are versions; those of the other framework are left out."""
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
    """The entries that must agree on all ranks, and facts about this one.

    `config` is the dumped run or the command, `code` the result of `user_code`; the versions of the other framework
    need not agree.
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
    """Name and digest of the user's own files: those of `names` and of loaded modules, and the script; imports nothing.

    `names` are those of settings, `module:Class` or `path/to/file.py:Name`; names without a file are ignored.
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
    """One line with the ranks that differ, the entries and the remedy, or None; below it a table, if that has more.

    `identities` are by label, `rank 3` or `rank 3 (beta)`. If all have `settings` (name to value), those that differ
    are named.
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
    line = f"{others} {verb} from {columns[0]} in {listed(fields)}; {remedy}"
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
    """Whether a file belongs to a library, whose version is compared."""
    inside = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return any(path.is_relative_to(folder) for folder in inside) or not {"site-packages", "dist-packages"}.isdisjoint(
        path.parts
    )


def _file_of(name: str) -> Path | None:
    """The source file of a name in a setting, if it is the user's own."""
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
    """The entries that differ: the value of each identity by name; config by setting and code by file, if known."""
    rows: dict[str, list[str]] = {}
    for name in _KINDS:
        if all(one.get(name) == shown[0].get(name) for one in shown):
            continue
        parts = [_settings(one) if name == "config" else _files(one) if name == "code" else {} for one in shown]
        # Settings can only be compared if all have them; an identity without user files has no code.
        rows |= (_by_name(parts) if all(parts) or name == "code" else {}) or {
            name: [str(one.get(name, "unknown")) for one in shown]
        }
    return rows


def _by_name(every: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
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
        return f"{named_ranges([number for _, number, _ in parsed], word)} ({len(hosts)} hosts)"
    parts: list[str] = []
    for host, members in groupby(sorted(parsed, key=lambda one: (str(one[2]), one[1])), key=lambda one: one[2]):
        parts.append(named_ranges([number for _, number, _ in members], word) + (f" ({host})" if host else ""))
    return listed(parts)


def _table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A line for each entry that differs, a column for each group of equal ranks."""
    lines = [["", *columns], *([name, *row] for name, row in rows.items())]
    cut = [[cell if len(cell) <= _CELL else cell[: _CELL - 3] + "..." for cell in line] for line in lines]
    return "\n".join(aligned(cut, str.ljust))
