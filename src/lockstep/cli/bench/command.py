"""`lockstep bench`: measure workloads by all contenders in turn, and print tables."""

import argparse
import difflib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.cli.bench.environments import InstallationError, pinned, python_of
from lockstep.cli.bench.process import measure
from lockstep.cli.bench.results import RESULTS_FILE, TABLES_FILE, Row, append_row, of_contender, read_rows, table
from lockstep.cli.bench.workloads import ENVIRONMENTS, WORKLOADS, Contender, Workload
from lockstep.cli.parser import did_you_mean
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, positive
from lockstep.launch.signals import Interrupted, signal_name
from lockstep.launch.supervise import DEFAULT_BOUNDS, RankGroup
from lockstep.launch.world_checks import check_no_launcher
from lockstep.record.text import counted
from lockstep.system.cores import processor


def bench_command(args: argparse.Namespace) -> int:
    """`lockstep bench`; returns the exit code: 1 if a contender has failed."""
    workloads = _chosen(args.workloads, WORKLOADS, "workload")
    if args.list:
        print(_listing(workloads))
        return 0
    check_no_launcher("lockstep bench")
    every_contender = {
        contender.name: contender for workload in WORKLOADS.values() for contender in workload.contenders
    }
    contenders = _chosen(args.only.split(",") if args.only else [], every_contender, "--only")
    repetitions = number(args.repetitions, "--repetitions")
    selected = _selected(workloads, contenders, purejaxrl=args.purejaxrl is not None)
    return _Bench(args, selected, repetitions, positive(args.scale, "--scale")).run()


class _Bench:
    """The measurements of one folder. What it has is not measured again."""

    def __init__(
        self, args: argparse.Namespace, workloads: Mapping[str, Sequence[Contender]], repetitions: int, scale: float
    ) -> None:
        self._workloads, self._repetitions, self._scale = workloads, repetitions, scale
        self._folder = Path(args.run_dir)
        self._environments = Path(args.environments)
        self._pythons = _interpreters(args.python)
        self._purejaxrl: str | None = args.purejaxrl
        if self._purejaxrl is not None and not Path(self._purejaxrl, "purejaxrl", "ppo.py").exists():
            raise ConfigError(f"--purejaxrl {self._purejaxrl}: there is no file purejaxrl/ppo.py in it")
        self._retry_failed: bool = args.retry_failed
        self._broken: dict[str, str] = {}

    def run(self) -> int:
        """Measure what is missing, print the tables; returns the exit code."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / RESULTS_FILE).open("a").close()
        except OSError as error:
            raise ConfigError(
                f"--run-dir {self._folder} cannot be written ({error.strerror}); name another folder"
            ) from None
        _check_scale(self._folder, read_rows(self._folder), self._scale)
        try:
            with RankGroup(DEFAULT_BOUNDS) as group:
                self._measure_all(group)
        except Interrupted as interrupted:
            caught: int = interrupted.args[0]
            print(f"lockstep: interrupted by {signal_name(caught)}; the same command continues", file=sys.stderr)
            return 128 + caught
        rows = read_rows(self._folder)
        tables = [table(name, WORKLOADS[name], rows) for name in WORKLOADS if any(row["work"] == name for row in rows)]
        (self._folder / TABLES_FILE).write_text("\n\n".join([_machine(), *tables]) + "\n")
        print(f"{_machine()}\nall tables: {self._folder / TABLES_FILE}")
        newest = {(row["work"], row["arm"]): row for row in rows if row["work"] in self._workloads}
        return int(any("error" in row for row in newest.values()))

    def _measure_all(self, group: RankGroup) -> None:
        """Measure what is missing, and print the table of each workload."""
        for name, contenders in self._workloads.items():
            for repetition in range(self._repetitions):
                for contender in contenders:
                    self._measure(name, WORKLOADS[name], contender, repetition, group)
            print(f"\n{table(name, WORKLOADS[name], read_rows(self._folder))}\n", flush=True)

    def _measure(self, name: str, workload: Workload, contender: Contender, repetition: int, group: RankGroup) -> None:
        """Measure a contender once, unless that was done or has failed."""
        known = of_contender(read_rows(self._folder), name, contender.name)
        failed = any("error" in row for row in known.values()) and not self._retry_failed
        if repetition in known and "value" in known[repetition]:
            return
        if failed:
            return
        if len(os.sched_getaffinity(0)) < contender.cores:
            found = {"error": f"needs {contender.cores} cores"}
        else:
            more = [self._purejaxrl] if contender.needs_flag is not None and self._purejaxrl else []
            try:
                found = measure(self._python(contender), workload, contender, self._scale, group, more)
            except InstallationError as error:
                found = {"error": f"not installed: {error}"}
        row = {"work": name, "arm": contender.name, "repetition": repetition, "scale": self._scale, **found}
        append_row(self._folder, row | {"load": round(os.getloadavg()[0], 2)})
        shown = f"{found['value']:.6g} {workload.unit}" if "value" in found else f"failed: {found['error']}"
        print(f"[{repetition + 1}/{self._repetitions}] {name}, {contender.title}: {shown}", file=sys.stderr, flush=True)

    def _python(self, contender: Contender) -> Path:
        name = contender.environment
        if name is None:
            return Path(sys.executable)
        if name in self._broken:
            raise InstallationError(self._broken[name])
        if name not in self._pythons:
            try:
                self._pythons[name] = python_of(name, self._environments)
            except InstallationError as error:
                self._broken[name] = str(error)
                raise
        return self._pythons[name]


def _chosen(given: Sequence[str], known: Mapping[str, object], what: str) -> list[str]:
    """The given names, or all; refuses unknown ones."""
    for name in given:
        if name not in known:
            near = did_you_mean(difflib.get_close_matches(name, known)) or f"there are {', '.join(known)}"
            raise ConfigError(f"{what} {name} is unknown; {near}")
    return list(given) or list(known)


def _selected(workloads: Sequence[str], contenders: Sequence[str], *, purejaxrl: bool) -> dict[str, list[Contender]]:
    """The contenders to measure of each workload that has any; refuses to measure nothing."""
    named = {
        workload: [contender for contender in WORKLOADS[workload].contenders if contender.name in contenders]
        for workload in workloads
    }
    found = {
        workload: [contender for contender in some if contender.needs_flag is None or purejaxrl]
        for workload, some in named.items()
    }
    if any(found.values()):
        return {workload: some for workload, some in found.items() if some}
    left_out = {contender.name: contender.needs_flag for some in named.values() for contender in some}
    if left_out:
        flags = ", ".join(dict.fromkeys(str(flag) for flag in left_out.values()))
        raise ConfigError(f"--only {','.join(left_out)} measures nothing without {flags}; add it")
    there = dict.fromkeys(contender.name for workload in workloads for contender in WORKLOADS[workload].contenders)
    raise ConfigError(
        f"--only {','.join(contenders)}: no such library in {', '.join(workloads)}; there are {', '.join(there)}"
    )


def _interpreters(given: Sequence[str]) -> dict[str, Path]:
    """The interpreters of `--python NAME=PYTHON`."""
    found: dict[str, Path] = {}
    for pair in given:
        name, equals, path = pair.partition("=")
        if not equals or name not in ENVIRONMENTS:
            raise ConfigError(f"--python {pair}: write NAME=PYTHON with NAME one of {', '.join(ENVIRONMENTS)}")
        if not os.access(path, os.X_OK):
            raise ConfigError(f"--python {pair}: {path} is no program")
        found[name] = Path(path).absolute()
    return found


def _check_scale(folder: Path, rows: Sequence[Row], scale: float) -> None:
    others = {row["scale"] for row in rows} - {scale}
    if others:
        raise ConfigError(
            f"the results in {folder} were measured with --scale {others.pop():g}; name another --run-dir"
        )


def _listing(workloads: Sequence[str]) -> str:
    lines: list[str] = []
    for name in workloads:
        lines.append(f"{name:24} {WORKLOADS[name].title}")
        for contender in WORKLOADS[name].contenders:
            needs = "" if contender.environment is None else f"  [{contender.environment}]"
            needs += f"  (only with {contender.needs_flag})" if contender.needs_flag else ""
            lines.append(f"    {contender.name:20} {contender.title}{needs}")
    used = {
        contender.environment: None
        for name in workloads
        for contender in WORKLOADS[name].contenders
        if contender.environment is not None
    }
    lines += [f"[{name}] {', '.join(pinned(name))}" for name in used]
    return "\n".join(lines)


def _machine() -> str:
    """One line on the machine."""
    cores = f"{counted(len(os.sched_getaffinity(0)), 'core')} ({processor()})"
    return f"{cores}, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
