"""Functions called inside ranks by `test_offline_reader.py`: who reads which rows of prepared data."""

from pathlib import Path
from typing import Any

import numpy as np
from host_blocks import on_hosts

from lockstep.data.dataset import Dataset
from lockstep.data.layout import determine_layout
from lockstep.data.reader import Reader
from lockstep.errors import ConfigError
from lockstep.torch.comm import Comm


def read_each(rank: int, jobs: dict[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    return {name: read(rank, *job) for name, job in jobs.items()}


def read(
    rank: int, port: int, sizes: tuple[int, ...], paths: tuple[str, ...], batch_size: int, num_shards: int | None
) -> dict[str, Any]:
    """Two epochs; a message goes with every batch, as in training, so that unequal numbers of batches would hang.

    Args:
        rank: of this process.
        port: where ranks meet.
        sizes: how many ranks each machine has.
        paths: what each machine holds.
        batch_size: of the global batch.
        num_shards: fixed, or one for each rank.
    """
    world = on_hosts(rank, port, sizes).with_shards(num_shards)
    with Comm(world, device="cpu", timeout_s=20) as comm:
        dataset = Dataset.open(Path(paths[world.node_rank]))
        try:
            layout = determine_layout(dataset, comm.gather_object, world)
        except ConfigError as error:
            return {"refused": str(error)}
        reader = Reader(dataset, world, layout, batch_size=batch_size, seed=5, epochs=2)
        read: list[list[list[int]]] = [[], []]
        batches, counted = 0, 0
        while not reader.finished:
            epoch = reader.epoch
            parts, count = reader.next()
            index = np.concatenate([part.index[part.weight > 0] for part in parts])
            read[epoch].append(sorted(int(first) for first, _ in dataset.column("key")[index]))
            told = comm.gather_object([count, len(index)], "batch")
            assert {all_ in told[0][:1] for all_, _ in told} == {True}, "ranks count differently"
            assert sum(local for _, local in told) == count, "padding counts as rows"
            batches, counted = batches + 1, counted + count
        comm.check_different(reader.fingerprint())
        return {
            "layout": layout.kind,
            "batches": batches,
            "per_epoch": reader.batches_per_epoch,
            "counted": counted,
            "total": reader.total_rows,
            "read": read,
            "fingerprint": reader.fingerprint(),
        }
