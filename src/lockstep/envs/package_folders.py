"""Where the packages of suites are, searched for without an import: it takes seconds, or starts a simulator."""

from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


def package_folders(package: str) -> list[Path]:
    """The folders of an installed package; empty if it is not installed."""
    spec = find_spec(package)
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def plugin_folders(suite: str) -> list[Path]:
    """The folders of the packages that register tasks as entry points `SUITE.tasks`, as plugins of mjlab do."""
    packages = {entry.module.partition(".")[0] for entry in entry_points(group=f"{suite}.tasks")}
    return [folder for package in sorted(packages) for folder in package_folders(package)]
