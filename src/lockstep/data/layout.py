"""The layout of logged data on the nodes of a run: a copy on each node, or disjoint parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.distributed.agreement import Gather
from lockstep.errors import ConfigError
from lockstep.world import World

_KEYS_AT_ONCE = 1 << 20
"""Keys of a node that are compared per round: 16 MB per message, twice that in the memory of every rank."""
_ALL = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The rows of each node. Equal on all ranks, except `node`."""

    kind: Literal["same", "split"]
    rows_of_node: tuple[int, ...]
    """Rows of each node, in the order of the nodes."""
    node: int = 0
    """The node of this rank, an index into `rows_of_node`."""
    node_of_rank: tuple[int, ...] = (0,)
    """The node of every rank."""
    digest: str = ""
    """Digest of the data of all nodes."""
    description: str = ""
    """What the nodes hold, for the user; empty for one node."""

    @property
    def num_rows(self) -> int:
        """Distinct rows of all nodes."""
        return self.rows_of_node[0] if self.kind == "same" else sum(self.rows_of_node)

    def shards_of_node(self, node: int, world: World) -> list[int]:
        """The shards of a node, in order."""
        ranks = [rank for rank, its in enumerate(self.node_of_rank) if its == node]
        return [shard for rank in ranks for shard in world.shards_of(rank)]


def determine_layout(dataset: Dataset, gather: Gather, world: World, wanted: str = "auto") -> Layout:
    """Determine the layout of the data on all nodes; *collective*.

    Nodes hold copies if their digests are equal: the digest of keys and contents does not depend on the order of rows.
    They hold parts if they have no key in common. The first rank of each node represents it. `wanted` is `auto`, or the
    layout that the user expects: `same`, `shuffled_copies`, `split`.

    Raises:
        ConfigError: on all ranks: nodes hold overlapping parts, data of different schemas, or not the wanted layout.
    """
    gathered = gather([world.node_rank, _summary(dataset)], "data of all machines")
    nodes = sorted({int(node) for node, _ in gathered})
    leaders = [next(rank for rank, (node, _) in enumerate(gathered) if node == number) for number in nodes]
    summaries = [gathered[rank][1] for rank in leaders]
    for (node, summary), first in zip(gathered, (summaries[nodes.index(node)] for node, _ in gathered), strict=True):
        if summary != first:
            raise ConfigError(
                f"ranks of node {node} see different data under {summary['path']}; give all of them the same directory"
            )
    _check_schema(nodes, summaries)
    place: dict[str, Any] = {
        "rows_of_node": tuple(int(summary["num_rows"]) for summary in summaries),
        "node": nodes.index(world.node_rank),
        "node_of_rank": tuple(nodes.index(node) for node, _ in gathered),
        "digest": summaries[0]["digest"],
    }
    if len({summary["digest"] for summary in summaries}) == 1:
        return _same(summaries, wanted, place)
    _check_disjoint(dataset, gather, world, (nodes, leaders, summaries))
    counts = _listed(nodes, place["rows_of_node"])
    if wanted in ("same", "shuffled_copies"):
        raise ConfigError(
            f"data_layout={wanted}, but every node holds rows of its own: {counts}; copy the same data to all of "
            "them, or use data_layout=split"
        )
    description = f"every node holds its own part of the data ({counts}) and shuffles it locally"
    place["digest"] = " ".join(summary["digest"] for summary in summaries)
    return Layout(kind="split", description=description, **place)


def _same(summaries: list[dict[str, Any]], wanted: str, place: dict[str, Any]) -> Layout:
    if wanted == "split" and len(summaries) > 1:
        raise ConfigError(
            f"data_layout=split, but all {len(summaries)} nodes hold the same {summaries[0]['num_rows']} rows; give "
            "each its own part, or use data_layout=auto"
        )
    description = ""
    if len(summaries) > 1:
        description = f"all {len(summaries)} nodes hold the same {summaries[0]['num_rows']} rows"
        if wanted == "shuffled_copies":
            description += "; preparing sorted them, so the order of the logs makes no difference"
    return Layout(kind="same", description=description, **place)


def _summary(dataset: Dataset) -> dict[str, Any]:
    info = dataset.info
    return {
        "path": str(dataset.path),
        "num_rows": info.num_rows,
        "digest": info.digest,
        "kind": info.kind,
        "state features": list(info.state_features),
        "action features": list(info.action_features),
        "actions": list(info.actions),
        "metrics": list(info.metrics),
        "normalization": dataset.features_digest,
        "max_episode_steps": dict(info.rules.get("options", {})).get("max_episode_steps"),
        _MARK: info.rules.get("mark"),
    }


_MARK = "marks of an end"
"""What marks the last decision of an episode as terminal; None in data of versions that did not record it."""
_REMEDIES = {
    "actions": "prepare every part with the same --actions",
    "normalization": "prepare every part with the same --state-features (and --action-features), such as those that "
    "preparing wrote on the first node",
    "max_episode_steps": "prepare all of them with the same --max-episode-steps",
    _MARK: "mark ends alike in the logs of every part, such as by a column terminated, and prepare them again",
}
_REMEDY = "prepare every part from logs of the same schema, with the same --like DIR"


def _check_schema(nodes: list[int], summaries: list[dict[str, Any]]) -> None:
    for name in [key for key in summaries[0] if key not in ("path", "num_rows", "digest")]:
        found = zip(nodes, summaries, strict=True)
        known = [(node, summary) for node, summary in found if name != _MARK or summary[name] is not None]
        for node, summary in known[1:]:
            first, expected = known[0][0], known[0][1][name]
            if summary[name] != expected:
                values = "" if name == "normalization" else f": {expected} and {summary[name]}"
                raise ConfigError(
                    f"nodes {first} and {node} hold data with different {name} under {summary['path']}{values}; "
                    f"{_REMEDIES.get(name, _REMEDY)}"
                )


def _check_disjoint(
    dataset: Dataset, gather: Gather, world: World, seen: tuple[list[int], list[int], list[dict[str, Any]]]
) -> None:
    """Reject nodes that have keys in common; *collective*. Keys are compared in ranges of their first word."""
    nodes, leaders, summaries = seen
    most = max(int(summary["num_rows"]) for summary in summaries)
    rounds, common = max(-(-most // _KEYS_AT_ONCE), 1), dict[tuple[int, int], int]()
    for number in range(rounds):
        low, high = _ALL * number // rounds, _ALL * (number + 1) // rounds
        mine = dataset.keys_between(low, high) if world.rank in leaders else np.zeros((0, 2), np.uint64)
        gathered = gather(mine, "keys of the data")
        for a, b in combinations(range(len(leaders)), 2):
            if count := _num_common(gathered[leaders[a]], gathered[leaders[b]]):
                common[a, b] = common.get((a, b), 0) + count
    if common:
        (a, b), count = max(common.items(), key=lambda item: item[1])
        rows = _listed(nodes, (int(summary["num_rows"]) for summary in summaries))
        raise ConfigError(
            f"nodes {nodes[a]} and {nodes[b]} have {count} rows in common under {summaries[0]['path']} but are not "
            f"copies of each other ({rows}); give every node the same data, or parts that do not overlap"
        )


def _num_common(keys: NDArray[np.uint64], others: NDArray[np.uint64]) -> int:
    """Number of keys [m, 2] that both have. The second word is compared only where the first is equal."""
    first = np.intersect1d(keys[:, 0], others[:, 0])
    if not first.size:
        return 0
    found = [{(int(a), int(b)) for a, b in some[np.isin(some[:, 0], first)]} for some in (keys, others)]
    return len(found[0] & found[1])


def _listed(nodes: list[int], rows: Iterable[int]) -> str:
    return ", ".join(f"node {node}: {count} rows" for node, count in zip(nodes, rows, strict=True))
