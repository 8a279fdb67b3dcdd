"""Whether reading keeps up with learning: rows per second of a reader and of the learner it feeds. A markdown table.

python benchmarks/offline_reader.py                                   1 and 10 million rows, 4 and 64 features
python benchmarks/offline_reader.py --rows 1000000 --features 4       a quicker look

Both run in this process on one thread, in turn; the ratio is the median over the turns. The learner is a 128-64 network
without models of reward and value, the quickest there is; it gets the same rows again and again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import machine, table

from lockstep import World
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.columns import columns, offsets_of
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.data.dataset_writer import DatasetWriter
from lockstep.data.features import Feature, Features
from lockstep.data.layout import determine_layout
from lockstep.data.reader import Reader
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.scoring.policy import OfflinePolicySpec, ScoringPolicy
from lockstep.world import stream

BATCH, ACTIONS, ACTION_SIZE, EPISODE = 1024, 4, 2, 100
BLOCK = 250_000
TURN_S = 0.5


def as_it_is(prefix: str, count: int) -> Features:
    return Features({f"{prefix}{i}": Feature(type="do_not_preprocess") for i in range(count)})


def block(kind: str, features: int, rows: int) -> dict[str, np.ndarray]:
    """All columns of some rows: noise, in episodes of equal length, four candidates in every row."""
    draws = stream(0, "benchmark")
    sizes = (features, ACTIONS if kind == "discrete" else ACTION_SIZE, 1)
    found = {}
    for name, (dtype, shape) in columns(kind, sizes).items():
        count = rows * ACTIONS if kind == "parametric" and name.startswith("possible") else rows
        if dtype == "<f4":
            found[name] = draws.standard_normal((count, *shape), dtype=np.float32)
        else:
            found[name] = np.ones((count, *shape), dtype)
    if kind == "parametric":
        for name in ("possible_actions", "possible_next_actions"):
            found[offsets_of(name)] = np.arange(rows + 1, dtype=np.int64) * ACTIONS
    last = np.arange(rows) % EPISODE == EPISODE - 1
    return found | {
        "terminal": last.astype(np.uint8),
        "continues": 1 - last.astype(np.uint8),
        "trajectory": np.arange(rows, dtype=np.int64) // EPISODE,
        "key": draws.integers(2**64, size=(rows, 2), dtype=np.uint64),
    }


def make(path: Path, kind: str, features: int, rows: int) -> Dataset:
    """Prepared data; the same block of rows again and again."""
    parametric = kind == "parametric"
    state, action = as_it_is("s", features), as_it_is("a", ACTION_SIZE) if parametric else None
    info = DatasetInfo(
        kind="parametric" if parametric else "discrete",
        num_rows=rows,
        num_trajectories=rows // EPISODE,
        state_features=state.ids,
        state_size=features,
        actions=() if parametric else tuple(f"action {i}" for i in range(ACTIONS)),
        action_features=action.ids if action else (),
        action_size=ACTION_SIZE if parametric else 0,
        metrics=("metric",),
        has_propensity=True,
    )
    one = block(kind, features, BLOCK)
    with DatasetWriter(path, kind, info.sizes) as writer:
        for _ in range(rows // BLOCK):
            writer.append(one)
        writer.finish(info, state, action, check={})
    return Dataset.open(path)


def learner_step(dataset: Dataset, reader: Reader) -> Callable[[], object]:
    """One gradient step on the reader's first batch."""
    parametric = dataset.info.kind == "parametric"
    config = OfflineDQNConfig(batch_size=BATCH, estimate=False)
    run = OfflineRun(data="any", algo="parametric_dqn" if parametric else "dqn", algorithm=config)
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=config,
    )
    learner = OfflineDQN(run, ScoringPolicy(about), Comm(World(), device="cpu"))
    parts, progress, caller_sums = reader.next()[0], Progress(1 << 40), np.zeros((1, 2))
    return lambda: learner.update(parts, caller_sums, progress)


def rows_per_second(call: Callable[[], object]) -> float:
    """Of calls that take a batch each, over half a second of processor time: others share the machine."""
    count, began = 0, time.process_time()
    while (passed := time.process_time() - began) < TURN_S:
        call()
        count += 1
    return count * BATCH / passed


def measured(dataset: Dataset, turns: int) -> dict[str, float]:
    """Rows per second of the reader and of the learner, and how many times more the reader gives than is taken."""
    reader = Reader(
        dataset,
        World(),
        determine_layout(dataset, lambda value, _: [value], World()),
        batch_size=BATCH,
        seed=0,
        epochs=1 << 30,
        n_step=1,
        gamma=0.99,
    )
    step = learner_step(dataset, reader)
    for call in (reader.next, step):
        rows_per_second(call)  # the first touch of a file is the disk's time
    read, learned = [], []
    for _ in range(turns):
        read.append(rows_per_second(reader.next))
        learned.append(rows_per_second(step))
    ratio = statistics.median(a / b for a, b in zip(read, learned, strict=True))
    return {"read": statistics.median(read), "learned": statistics.median(learned), "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--features", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--kinds", nargs="*", default=["discrete", "parametric"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make the data; default: a temporary one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for rows in args.rows:
        for features in args.features:
            for kind in args.kinds:
                with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                    dataset = make(Path(folder) / "data", kind, features, rows)
                    found = measured(dataset, args.turns)
                speeds = (f"{found[name] / 1e6:.2f}" for name in ("read", "learned"))
                lines.append([kind, f"{rows:,}", str(features), *speeds, f"{found['ratio']:.1f}"])
    head = ["actions", "rows", "features", "read, million rows/s", "learned, million rows/s", "ratio"]
    print(machine())
    print(table(head, lines))


if __name__ == "__main__":
    main()
