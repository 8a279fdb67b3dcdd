"""`lockstep report`: a table or a web page of runs, and predictions of the speed of more ranks.

`runs.py` reads run directories, `time_use.py` explains where their time went, `table.py` prints them, `page/` makes the
page. `load.py` reads measurements for the cost model, `fit.py` fits it, `scaling.py` prints predictions.
`scale_table.py` prints what `lockstep scale` measured.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.flags import flags_of
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep report`."""
    add = parser.add_argument
    add(
        "paths",
        metavar="RUN",
        nargs="*",
        help="run directories, or directories of them (default: runs); --predict: also a file of benchmarks/network.py",
    )
    add("--json", action="store_true", help="the table for scripts")
    add("--html", metavar="FILE", help="one self-contained page: curves over seeds, scores, time per rank, settings")
    add("--predict", action="store_true", help="predict steps/s on more ranks and hosts from these measurements")
    _add_prediction_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _add_prediction_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `--predict`."""
    add = parser.add_argument_group("with --predict").add_argument
    add("--ranks-per-host", metavar="N", default="8", help="in the prediction (default: 8)")
    add("--envs-per-rank", metavar="N", help="for weak scaling (default: as many as the first measurement has)")
    add("--num-envs", metavar="N", help="for strong scaling (default: those of the first measurement, at least 4096)")
    add("--cores-per-host", metavar="N", help="in the prediction (default: one for each rank)")
    add("--round-trip-ms", metavar="MS", help="between hosts (default: the median of runs on several hosts)")
    add("--bandwidth-gbit", metavar="GBIT", help="that a host can send per second (default: the least measured)")


def report_command(args: argparse.Namespace) -> int:
    """`lockstep report`; returns the exit code."""
    if args.predict:
        return _predict(args)
    _refuse_prediction_arguments(args)
    from lockstep.cli.report.runs import find_runs, read_run

    if not args.paths and not Path("runs").is_dir():
        raise ConfigError("there is no runs/ here; name run directories: lockstep report RUN RUN...")
    paths = find_runs([Path(path) for path in args.paths or ["runs"]])
    if args.html is not None:
        return _page(paths, args)
    runs = [read_run(path) for path in paths]
    from lockstep.cli.report.table import as_json, print_tables

    if args.json:
        print(as_json(runs))
    else:
        from lockstep.cli.terminal import output_console

        print_tables(runs, output_console())
    return 0


def _refuse_prediction_arguments(args: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    _add_prediction_arguments(parser)
    for flag, dest, default in flags_of(parser):
        if (value := getattr(args, dest)) != default:
            raise ConfigError(f"{flag} {value} is for predictions; add --predict, or leave it out")


def _page(paths: Sequence[Path], args: argparse.Namespace) -> int:
    if args.json:
        raise ConfigError("--json is for the table of runs; leave it or --html out")
    file = Path(args.html)
    if file.is_dir():
        raise ConfigError(f"--html {file} is a directory; name a file in it, such as {file / 'report.html'}")
    from lockstep.cli.report.page.page import write_page
    from lockstep.cli.report.page.scaling_section import read_scales

    write_page(paths, file, read_scales([Path(path) for path in args.paths or ["runs"]], paths))
    print(f"wrote {file}")
    return 0


def _predict(args: argparse.Namespace) -> int:
    if args.html is not None:
        raise ConfigError("--html is for runs side by side; leave it or --predict out")
    if not args.paths:
        raise ConfigError("--predict needs run directories, or a file of benchmarks/network.py, to learn from")
    if args.json:
        raise ConfigError("--json is for the table of runs; leave it or --predict out")
    from lockstep.cli.report.load import load_points
    from lockstep.cli.report.runs import find_runs
    from lockstep.cli.report.scaling import Target, predicted

    def given(name: str, parsed: Callable[[str, str], Any] = number) -> Any:
        text = getattr(args, name)
        return None if text is None else parsed(text, "--" + name.replace("_", "-"))

    milliseconds, gigabits = given("round_trip_ms", positive), given("bandwidth_gbit", positive)
    target = Target(
        ranks_per_host=number(args.ranks_per_host, "--ranks-per-host"),
        envs_per_rank=given("envs_per_rank"),
        num_envs=given("num_envs"),
        cores=given("cores_per_host"),
        round_trip_s=milliseconds and milliseconds * 1e-3,
        bandwidth=gigabits and gigabits * 1e9 / 8,
    )
    given_paths = [Path(path) for path in args.paths]
    paths = [run for path in given_paths for run in (find_runs([path]) if path.is_dir() else [path])]
    points, notes = load_points(list(dict.fromkeys(paths)))
    print(predicted(points, notes, target))
    return 0
