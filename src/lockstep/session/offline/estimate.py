"""Off-policy estimates of a policy from a log, computed on all ranks.

Each rank scores its own trajectories by the policy and its models, and sums the inputs of the estimators over groups of
them. Rank 0 joins the groups of all ranks in a fixed order. The results do not depend on the number of ranks: a rank
computes whole blocks of trajectories, and the blocks are the same for any number of ranks.

Shapes: N rows, K trajectories, G groups of them, A actions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.data.layout import Layout, determine_layout
from lockstep.data.packages import import_optional
from lockstep.distributed.comm import Comm
from lockstep.estimators.diagnose import LogStatistics
from lockstep.estimators.estimates import clipping_thresholds, estimates, group_sizes
from lockstep.estimators.result import Estimates
from lockstep.estimators.trajectories import Ints, Sums, summed
from lockstep.run import OfflineRun
from lockstep.session.offline.evaluator import PolicyEvaluator, Scorer
from lockstep.world import block

_BLOCK = 8192
"""The approximate number of rows of a block of trajectories."""
_READ = 1 << 20
"""Rows of a column that are read at once."""


@dataclass(frozen=True, slots=True)
class _LogCounts:
    """Counts of the whole log, equal on all ranks."""

    trajectories: int
    """On all nodes together."""
    statistics: LogStatistics
    unlogged: NDArray[np.int64]
    """Actions that do not occur in the log."""


def estimate(
    scorer: Scorer,
    dataset: Dataset,
    comm: Comm,
    run: OfflineRun,
    *,
    layout: Layout | None = None,
    heartbeat: Callable[[], object] = lambda: None,
) -> Estimates:
    """All estimates that the log supports, the same on every rank; collective.

    Args:
        scorer: the policy, with its models of reward and value if it has any.
        dataset: the log; must fit the policy (`policy_spec.check_fits`). Nodes may hold parts of it.
        comm: among all ranks.
        run: `seed`, and the discount.
        layout: of the log on all nodes, on every rank; default: determined here, which compares the data of all nodes.
        heartbeat: called after each block.

    Raises:
        ConfigError: on all ranks: without `layout`, nodes hold data that do not belong together (`determine_layout`).
    """
    if layout is None:
        layout = determine_layout(dataset, comm.gather_object, comm.world)
    if scorer.policy_spec.has_models:
        import_optional("scipy.optimize", "offline")  # on all ranks, before one of them needs it
    offsets = _trajectories(dataset)
    shared = _shared(dataset, offsets, comm, layout, scorer)
    groups = group_sizes(len(offsets) - 1, shared.trajectories)
    clip = clipping_thresholds(shared.statistics.rows, shared.trajectories)
    evaluator = PolicyEvaluator(scorer, dataset, run, with_ratio=shared.statistics.has_ratio, unlogged=shared.unlogged)
    parts: list[Sums] = []
    starts = np.concatenate([[0], np.cumsum(groups)])
    blocks = _blocks(offsets[starts])
    own = _share(len(blocks) - 1, comm, layout)
    for first, last in zip(blocks[own.start : own.stop], blocks[own.start + 1 : own.stop + 1], strict=True):
        rows = evaluator.decisions(offsets[starts[first] : starts[last] + 1])
        parts.append(summed(rows, groups[first:last], clip))
        heartbeat()
    mine = [Sums.joined(parts).to_dict()] if parts else []
    gathered: list[list[dict[str, Any]]] = comm.gather_object(mine, "estimates")
    found: dict[str, Any] = {}
    if comm.world.rank == 0:
        order = sorted(range(comm.world.size), key=lambda rank: (_part(layout, rank), rank))
        sums = Sums.joined([Sums(**part) for rank in order for part in gathered[rank]])
        found = {"data": str(dataset.path.absolute()), "digest": dataset.info.digest, "policy": evaluator.describe()}
        found |= estimates(sums, ("reward", *dataset.info.metrics), shared.statistics, seed=run.seed)
    return Estimates(comm.broadcast_object(found, tag="estimates found"))


def _trajectories(dataset: Dataset) -> Ints:
    """The start of each trajectory, and the end of the last one [K + 1]."""
    column, found, before = dataset.column("trajectory"), [np.zeros(0, np.int64)], -1
    for start in range(0, len(dataset), _READ):
        part = column[start : start + _READ]
        found.append(start + np.flatnonzero(np.diff(part, prepend=before)))
        before = int(part[-1])
    return np.concatenate([*found, [len(dataset)]]).astype(np.int64)


def _shared(dataset: Dataset, offsets: Ints, comm: Comm, layout: Layout, scorer: Scorer) -> _LogCounts:
    """Counts over the whole log: each rank counts its part of the rows."""
    own, continuous = _share(len(dataset), comm, layout), dataset.info.kind == "continuous"
    counts, logged = np.zeros(4, np.int64), np.zeros(len(dataset.info.actions), np.int64)
    unlisted = dataset.info.kind == "parametric" and not dataset.info.has_possible_actions
    inner = np.ones(len(dataset), np.bool_)
    inner[offsets[1:] - 1] = False  # whether a row is not the last of its trajectory
    for start in range(own.start, own.stop, _READ):
        part = slice(start, min(start + _READ, own.stop))
        propensity = dataset.column(dataset.propensity_column)[part]
        gaps = inner[part] & (dataset.column("continues")[part] == 0)
        certain = 0 if continuous else (propensity == 1.0).sum()
        counts += np.isnan(propensity).sum(), certain, gaps.sum(), unlisted
        if len(logged):
            logged += np.bincount(dataset.column("action")[part], minlength=len(logged))
    gathered = comm.gather_object([counts, logged], "log counted")
    totals = np.sum([rank[0] for rank in gathered], 0)
    # Nodes with the same rows are counted once.
    sizes: list[list[int]] = comm.gather_object([len(offsets) - 1, len(dataset)], "log measured")
    of_part = {_part(layout, rank): size for rank, size in enumerate(sizes)}
    trajectories, rows = np.sum(list(of_part.values()), 0).tolist()
    statistics = LogStatistics(
        rows=rows,
        no_propensity=int(totals[0]),
        certain=int(totals[1]),
        gaps=int(totals[2]),
        seen=scorer.policy_spec.info.digest == dataset.info.digest,
        continuous=continuous,
        no_density=scorer.policy_spec.no_density,
        no_choices=bool(totals[3]),
    )
    return _LogCounts(trajectories, statistics, np.flatnonzero(np.sum([rank[1] for rank in gathered], 0) == 0))


def _blocks(starts: Ints) -> list[int]:
    """The first group of each block, and the number of groups; a block starts every `_BLOCK` rows.

    Args:
        starts: [G + 1], the first row of each group, and the number of rows.
    """
    first = np.flatnonzero(np.diff(starts[:-1] // _BLOCK, prepend=-1))
    return [*first.tolist(), len(starts) - 1]


def _part(layout: Layout, rank: int) -> int:
    """The part of the log that a rank reads: that of its node, or 0 if all ranks read the same."""
    return layout.node_of_rank[rank] if layout.kind == "split" else 0


def _share(total: int, comm: Comm, layout: Layout) -> range:
    """This rank's range of the `total` pieces of its part, which are divided among the ranks of that part."""
    me = comm.world.rank
    ranks = [rank for rank in range(comm.world.size) if _part(layout, rank) == _part(layout, me)]
    return block(total, len(ranks), ranks.index(me))
