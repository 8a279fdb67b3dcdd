"""What preparing a log costs: rows per second and memory, beside the same timeline in pandas. Prints a markdown table.

python benchmarks/offline_prepare.py                                        10 million rows in 20 Parquet files
python benchmarks/offline_prepare.py --rows 1000000 --pandas-rows 100000    a quicker look
python benchmarks/offline_prepare.py --pandas-rows 0                        without pandas
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import machine, table

from lockstep.world import stream

FEATURES, ACTIONS = 8, 4
EPISODE = 100
"""Mean decisions of an episode."""
ROWS_PER_FILE = 500_000
KINDS = ("discrete", "parametric")
TITLES = ("log", "by", "rows", "seconds", "CPU s", "rows/s", "peak (GB)", "rows/s to pandas", "rows/CPU s to pandas")


def write_log(directory: Path, kind: str, rows: int) -> None:
    """A log in the schema, before a timeline: rows of many episodes in no order, features as maps."""
    draws = stream(0, "benchmark")
    episode = draws.integers(max(rows // EPISODE, 1), size=rows, dtype=np.int64)
    order = np.argsort(episode, kind="stable")
    number = np.empty(rows, np.int64)
    begins = np.searchsorted(episode[order], episode[order])
    number[order] = np.arange(rows) - begins
    directory.mkdir(parents=True)
    for first in range(0, rows, ROWS_PER_FILE):
        chosen = slice(first, min(first + ROWS_PER_FILE, rows))
        count = chosen.stop - chosen.start
        columns = {
            "mdp_id": pa.array([f"episode-{name}" for name in episode[chosen]]),
            "sequence_number": pa.array(number[chosen]),
            "state_features": maps(count, FEATURES, draws.normal(size=count * FEATURES), 0),
            "reward": pa.array(draws.normal(size=count)),
            "action_probability": pa.array(np.full(count, 1 / ACTIONS)),
        }
        taken = draws.integers(ACTIONS, size=count)
        if kind == "discrete":
            names = np.array([f"action_{i}" for i in range(ACTIONS)])
            columns["action"] = pa.array(names[taken])
            columns["possible_actions"] = lists(pa.array(np.tile(names, count)), ACTIONS)
        else:  # two numbers describe an action, and what is possible differs from row to row
            offered = np.round(draws.normal(size=(count, ACTIONS, 2)), 3)
            columns["action"] = maps(count, 2, offered[np.arange(count), taken].ravel(), FEATURES)
            columns["possible_actions"] = lists(maps(count * ACTIONS, 2, offered.ravel(), FEATURES), ACTIONS)
        pq.write_table(pa.table(columns), directory / f"part_{first // ROWS_PER_FILE:03}.parquet")


def maps(count: int, width: int, values: np.ndarray, first: int) -> pa.MapArray:
    """`count` maps of `width` ids each, from `first` on."""
    names = pa.array(np.tile([str(first + i) for i in range(width)], count))
    return pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), names, pa.array(values))


def lists(items: pa.Array, width: int) -> pa.ListArray:
    """Lists of `width` items each."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(items) // width + 1, dtype=np.int32) * width), items)


def by_lockstep(log: Path, out: Path) -> dict[str, float]:
    """Prepare a log as `lockstep offline prepare` does."""
    import polars  # noqa: F401  # as pandas is: imported before the clock runs
    import scipy.stats  # noqa: F401

    from lockstep.data.prepare import PrepareOptions, prepare_dataset

    began, worked = time.perf_counter(), time.process_time()
    prepare_dataset(
        [log], out, PrepareOptions(norm={"skip_box_cox": True, "skip_quantiles": True}), show=lambda _: None
    )
    return told(began, worked)


def by_pandas(log: Path, out: Path, kind: str, rows: int) -> dict[str, float]:
    """The same timeline as one writes it in pandas: maps to columns, sort, shift within groups, normalize, save."""
    import pandas as pd

    began, worked = time.perf_counter(), time.process_time()
    files = sorted(log.glob("*.parquet"))[: -(-rows // ROWS_PER_FILE)]
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True).head(rows)
    state = columns_of_maps(frame["state_features"])
    ids = sorted(state)
    frame = pd.concat([frame.drop(columns="state_features"), pd.DataFrame(state)], axis=1)
    frame = frame.sort_values(["mdp_id", "sequence_number"], ignore_index=True)
    groups = frame.groupby("mdp_id", sort=False)
    following = groups[["sequence_number", *ids]].shift(-1)
    terminal = following["sequence_number"].isna().to_numpy()
    values = frame[ids].to_numpy()
    mean, deviation = values.mean(0), np.maximum(values.std(0, ddof=1), 1.0)
    out.mkdir()
    np.save(out / "state.npy", ((values - mean) / deviation).astype(np.float32))
    np.save(out / "next_state.npy", np.nan_to_num((following[ids].to_numpy() - mean) / deviation).astype(np.float32))
    np.save(out / "reward.npy", frame["reward"].to_numpy(np.float32))
    np.save(out / "propensity.npy", frame["action_probability"].to_numpy(np.float32))
    np.save(out / "terminal.npy", terminal)
    np.save(out / "mdp_id.npy", frame["mdp_id"].to_numpy(str))
    np.save(out / "sequence_number.npy", frame["sequence_number"].to_numpy())
    np.save(out / "scale.npy", np.stack([mean, deviation]))
    np.save(out / "time_diff.npy", (following["sequence_number"] - frame["sequence_number"]).fillna(1).to_numpy("f4"))
    possible = frame["possible_actions"]
    if kind == "discrete":
        names = sorted(frame["action"].unique())
        number = {name: i for i, name in enumerate(names)}
        action = frame["action"].map(number)
        np.save(out / "action.npy", action.to_numpy(np.int32))
        flat, row = possible.explode(), np.repeat(np.arange(len(frame)), possible.str.len())
        mask = np.zeros((len(frame), len(names)), np.uint8)
        mask[row, flat.map(number).to_numpy()] = 1
        np.save(out / "possible_actions.npy", mask)
        save_next(out, mask, terminal)
    else:
        action = np.column_stack(list(columns_of_maps(frame["action"]).values()))
        np.save(out / "action.npy", action.astype(np.float32))
        flat = columns_of_maps(possible.explode())
        offers = np.column_stack(list(flat.values())).astype(np.float32).reshape(len(frame), ACTIONS, -1)
        np.save(out / "possible_actions.npy", offers)
        save_next(out, offers, terminal)
    return told(began, worked)


def save_next(out: Path, possible: np.ndarray, terminal: np.ndarray) -> None:
    """What was possible in the row after."""
    following = np.zeros_like(possible)
    following[:-1] = possible[1:]
    following[terminal] = 0
    np.save(out / "possible_next_actions.npy", following)


def columns_of_maps(series) -> dict[str, np.ndarray]:  # a pandas Series of lists of pairs
    """A column for each id."""
    found: dict[str, list[float]] = {}
    for row in series:
        for name, value in row:
            found.setdefault(name, []).append(value)
    if any(len(column) != len(series) for column in found.values()):
        raise ValueError("an id is missing in some rows")
    return {name: np.array(column) for name, column in found.items()}


def told(began: float, worked: float) -> dict[str, float]:
    """Time passed, time of all threads on the CPU, and memory."""
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked, "peak": peak()}


def peak() -> float:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def compare(ours: Path, theirs: Path, kind: str) -> None:
    """Raise unless both prepared the same rows, each in its own order and with its own mean and deviation."""
    import polars as pl

    from lockstep.data.dataset import Dataset
    from lockstep.data.preparation.hashing import hash_strings

    data = Dataset.open(ours)
    trajectory = hash_strings(pl.Series(np.load(theirs / "mdp_id.npy").tolist()))
    order = np.lexsort((np.load(theirs / "sequence_number.npy"), trajectory[0]))
    scales = {name: np.load(theirs / "scale.npy") for name in ("state", "next_state")}
    ours_scaled = {name: scale_of(data.state_features) for name in scales}
    if data.action_features is not None:
        ours_scaled["action"], scales["action"] = scale_of(data.action_features), np.array([[0.0], [1.0]])
    names = ["reward", "propensity", "terminal", "time_diff", "state", "next_state", "action"]
    for name in [*names, *(("possible_actions", "possible_next_actions") if kind == "discrete" else ())]:
        first = np.asarray(data.column(name)[:], np.float64)
        second = np.asarray(np.load(theirs / f"{name}.npy"), np.float64)[order]
        if name in scales:
            goes_on = np.load(theirs / "terminal.npy")[order] == 0 if name == "next_state" else slice(None)
            first = (first * ours_scaled[name][1] + ours_scaled[name][0])[goes_on]
            second = (second * scales[name][1] + scales[name][0])[goes_on]
        same(name, kind, first, second)
    if data.action_features is not None:
        for name in ("possible_actions", "possible_next_actions"):
            mine = data.ragged(name)[:]
            offers = np.load(theirs / f"{name}.npy")[order]
            if name == "possible_next_actions":
                offers = offers[np.load(theirs / "terminal.npy")[order] == 0]
            same(name, kind, mine.values * ours_scaled["action"][1] + ours_scaled["action"][0], np.concatenate(offers))


def scale_of(features) -> np.ndarray:  # lockstep.data.features.Features
    """Mean and deviation of each feature [2, F]."""
    return np.array([(feature.mean, feature.stddev) for _, feature in features.items()]).T


def same(name: str, kind: str, first: np.ndarray, second: np.ndarray) -> None:
    """Raise unless two arrays hold the same numbers."""
    if first.shape != second.shape or not np.allclose(first, second, rtol=0, atol=1e-5):
        raise AssertionError(f"{kind}: {name} is not what pandas makes")


def measured(*words: str) -> dict[str, float]:
    """What a process of its own says of itself, so that peaks of memory are its own."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Generate, prepare, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--pandas-rows", type=int, default=300_000)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--directory", type=Path, help="for logs and prepared data (default: a temporary one)")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        who, kind, log, out, rows = args.one
        call = (
            by_lockstep(Path(log), Path(out)) if who == "lockstep" else by_pandas(Path(log), Path(out), kind, int(rows))
        )
        print(json.dumps(call))
        return
    lines = []
    for kind in args.kinds:
        with tempfile.TemporaryDirectory(dir=args.directory) as name:
            lines += rows_of_table(Path(name), kind, args.rows, args.pandas_rows)
    print(machine())
    print(table(TITLES, lines))


def rows_of_table(directory: Path, kind: str, rows: int, pandas_rows: int) -> list[tuple[str, ...]]:
    """Both ways, and a comparison of what they made."""
    write_log(directory / "log", kind, rows)
    ours = measured("--one", "lockstep", kind, str(directory / "log"), str(directory / "ours"), str(rows))
    found = [("lockstep", rows, ours)]
    if pandas_rows:
        write_log(directory / "few", kind, pandas_rows)
        few = [kind, str(directory / "few")]
        theirs = measured("--one", "pandas", *few, str(directory / "theirs"), str(pandas_rows))
        small = measured("--one", "lockstep", *few, str(directory / "small"), str(pandas_rows))
        compare(directory / "small", directory / "theirs", kind)
        found += [("pandas", pandas_rows, theirs), ("lockstep", pandas_rows, small)]
    base = found[1] if pandas_rows else found[0]
    return [
        (
            kind,
            who,
            f"{number:,}",
            f"{one['seconds']:.1f}",
            f"{one['cpu']:.1f}",
            f"{number / one['seconds']:,.0f}",
            f"{one['peak'] / 1e9:.2f}",
            f"{number / one['seconds'] * base[2]['seconds'] / base[1]:.1f}",
            f"{number / one['cpu'] * base[2]['cpu'] / base[1]:.1f}",
        )
        for who, number, one in found
    ]


if __name__ == "__main__":
    main()
