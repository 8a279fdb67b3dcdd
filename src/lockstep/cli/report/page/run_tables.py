"""The sections of the page on settings, runs, the proof of sync, machines and videos."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from lockstep.cli.report.page.groups import Group
from lockstep.cli.report.page.load import PageRun
from lockstep.cli.report.table import differing
from lockstep.cli.report.time_use import hosts
from lockstep.cli.terminal import shown_setting
from lockstep.config.settings import short_names
from lockstep.record.file_numbers import number_of
from lockstep.record.text import compact, duration, significant


def settings_section(runs: Sequence[PageRun], groups: Sequence[Group]) -> dict[str, Any]:
    """The settings that differ between groups, and those that all runs share, of the runs that have settings."""
    found = [run.found for run in runs if run.found.settings]
    differ = differing(found)
    shared = {
        name: shown_setting(value)
        for first in found[:1]
        for name, value in first.settings.items()
        if name not in (*differ, "seed") and all(run.settings.get(name) == value for run in found)
    }
    rows: list[tuple[str, list[str]]] = []
    for group in groups:
        first = group.runs[0].found
        names = ", ".join(run.name for run in group.runs[:3]) + (", …" if len(group.runs) > 3 else "")
        values = [shown_setting(first.settings[name]) if name in first.settings else "–" for name in differ]
        rows.append((names, [*values, str(group.runs[0].time.num_ranks or "–")]))
    return {"names": [*short_names(differ), "ranks"], "rows": rows, "shared": shared}


def run_row(run: PageRun, directory: Path) -> dict[str, Any]:
    """State and results of a run."""
    found, seconds = run.found, number_of(run.summary.get("wall_time_s"))
    mark = "*" if found.return_from == "training" else ""
    return {
        "name": run.name,
        "link": _link(found.path, directory),
        "status": found.status,
        "error": " ".join(str(found.error).split()) if found.error else None,
        "cells": [
            shown_setting(found.settings.get("seed", "–")),
            str(run.time.num_ranks or "–"),
            *("–" if value is None else significant(value) + mark for value in (found.last_return, found.best_return)),
            compact(found.steps),
            "–" if found.steps_per_second is None else compact(found.steps_per_second),
            "–" if seconds is None else duration(seconds),
        ],
    }


def sync_row(run: PageRun, runs: Sequence[PageRun]) -> dict[str, Any]:
    """Whether the ranks of a run ended with equal parameters and began with different data."""
    fingerprint = run.summary.get("params_fingerprint")
    ends = {str(rank.get("params_fingerprint")) for rank in run.time.ranks}
    firsts = {str(rank.get("first_rollout_fingerprint")) for rank in run.time.ranks}
    number = len(run.time.ranks)
    if not fingerprint or not number:
        equal = different = "not recorded"
    elif number == 1:
        equal = different = "a single rank"
    else:
        equal = f"equal on {number} ranks" if ends == {str(fingerprint)} else "DIFFERENT between ranks"
        different = f"different on {number} ranks" if len(firsts) == number else "EQUAL on some ranks"
    twins = [
        r.name for r in runs if r is not run and fingerprint and r.summary.get("params_fingerprint") == fingerprint
    ]
    return {
        "name": run.name,
        "cells": [
            str(run.summary.get("num_shards") or "–"),
            str(fingerprint or "–"),
            equal,
            different,
            ", ".join(twins) or "–",
        ],
    }


def machines(runs: Sequence[PageRun]) -> list[dict[str, Any]]:
    """The distinct machines and versions, each with its runs."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        where = "; ".join(
            f"{host.get('host')}: {host.get('cores')} cores, {host.get('processor') or 'unknown processor'}, "
            f"{host.get('device')}, ranks {_listed(host.get('ranks'))}"
            for host in hosts(run.time)
        )
        used = {**_versions(run.summary), **_versions(run.time.preflight)}
        listed = ", ".join(f"{name} {number}" for name, number in used.items())
        found.setdefault((where or "not recorded", listed or "not recorded"), []).append(run.name)
    return [{"machine": where, "versions": used, "runs": ", ".join(names)} for (where, used), names in found.items()]


def _listed(values: object) -> str:
    return ", ".join(map(str, cast(list[Any], values))) if isinstance(values, list) else "unknown"


def _versions(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """The versions of packages in a file of a run; empty if it has none."""
    found = file.get("versions")
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def videos_of(runs: Sequence[PageRun], directory: Path) -> list[dict[str, Any]]:
    """Links to the videos of the runs that have some."""
    return [
        {"run": run.name, "links": [(video.stem, _link(video, directory)) for video in run.videos]}
        for run in runs
        if run.videos
    ]


def _link(path: Path, directory: Path) -> str:
    return quote(os.fsencode(os.path.relpath(path.absolute(), directory)))
