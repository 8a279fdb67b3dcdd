"""PYTHONPATH for ranks: the user's folders, without those of the installation, which the interpreter finds itself.

Ranks may start programs of other Pythons, which would load this one's standard library and packages.
"""

import contextlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path


def search_path() -> str:
    """For ranks of this interpreter: the working directory, and what the user added to the search path."""
    named = _named_by_packages()
    own = (entry for entry in sys.path if entry and not _is_library(entry) and entry not in named)
    return os.pathsep.join(dict.fromkeys([os.getcwd(), *own, *_inherited()]))


def search_path_of_programs() -> str:
    """For ranks that may be of any interpreter, or of none: the working directory and the inherited PYTHONPATH."""
    return os.pathsep.join(dict.fromkeys([os.getcwd(), *_inherited()]))


def search_path_of_nodes(*first: str) -> list[str]:
    """`first` and our own entries, for nodes with the libraries of this interpreter but not its editable packages."""
    return _without_libraries([*first, os.getcwd(), *filter(None, sys.path), *_inherited()])


def _library_folders() -> set[str]:
    """The folders of this interpreter's standard library and packages."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {os.path.join(folder, "lib-dynload") for folder in folders}
    folders.update(site.getsitepackages())  # Debian has several
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    return folders


def _without_libraries(entries: Iterable[str]) -> list[str]:
    folders = _library_folders()
    own = (e for e in entries if not _is_library(e) and not any(map(Path(e).is_relative_to, folders)))
    return list(dict.fromkeys(own))


def _is_library(entry: str) -> bool:
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return entry in _library_folders() or os.path.basename(entry) == archive


def _named_by_packages() -> set[str]:
    """Folders that `.pth` files add, as those of editable packages; before the standard library they could hide it."""
    named: set[str] = set()
    for folder in _library_folders():
        for file in Path(folder).glob("*.pth"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
                named |= {os.path.abspath(os.path.join(folder, line)) for line in lines if line}
    return named


def _inherited() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
