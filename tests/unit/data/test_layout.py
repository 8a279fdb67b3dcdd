"""Data of several nodes: copies, disjoint parts, and overlaps, which are rejected on all nodes."""

import threading

import numpy as np
import pytest

import made_data
from lockstep import ConfigError, World
from lockstep.data import layout as layout_module
from lockstep.data.dataset import Dataset
from lockstep.data.layout import Layout, determine_layout
from lockstep.distributed import messages


def together(datasets, node_of_rank=None, wanted="auto"):
    """What `determine_layout` returns or raises on every rank, each of which sees its data; ranks are threads."""
    nodes = node_of_rank or list(range(len(datasets)))
    size, told = len(nodes), [None] * len(nodes)
    barrier, sizes, found = threading.Barrier(size, timeout=20), [], [None] * size

    def gather_of(rank):
        def gather(value, tag):
            told[rank] = messages.encode([tag, value])
            barrier.wait()
            every = [messages.decode(value) for value in told]
            if rank == 0:
                sizes.append(sum(map(len, told)))
            barrier.wait()
            assert len({tag for tag, _ in every}) == 1, "ranks are in different collectives"
            return [value for _, value in every]

        return gather

    def one(rank):
        world = World(rank=rank, size=size, node_rank=nodes[rank], local_rank=0, local_size=1)
        try:
            found[rank] = determine_layout(datasets[rank], gather_of(rank), world, wanted)
        except ConfigError as error:
            found[rank] = str(error)
        except threading.BrokenBarrierError:
            found[rank] = "waited in vain"

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together.bytes = sizes
    return found


def some(columns, rows):
    """The columns of these rows, each a trajectory."""
    found = {name: column[rows] for name, column in columns.items()}
    count = len(found["key"])
    return found | {"trajectory": np.arange(count), "continues": np.zeros(count, np.uint8)}


@pytest.fixture
def data(tmp_path):
    columns, number = made_data.discrete_columns(), iter(range(100))

    def make(rows, **changes):
        folder = tmp_path / f"node_{next(number)}"
        return Dataset.open(made_data.write(folder / "data", some(columns, rows), part_rows=64, **changes))

    return make


def refused(found, *parts):
    """All ranks raised the same error, which contains `parts`."""
    assert len(set(map(str, found))) == 1, f"ranks disagree: {found}"
    assert isinstance(found[0], str), f"nobody refused it: {found[0]}"
    for part in parts:
        assert part in found[0], found[0]


def test_one_node_needs_no_comparison(data):
    dataset = data(np.arange(200))
    for wanted in ("auto", "same", "split", "shuffled_copies"):
        found = together([dataset, dataset], [0, 0], wanted)
        assert found[0] == found[1]
        assert (found[0].kind, found[0].rows_of_node, found[0].node_of_rank) == ("same", (200,), (0, 0))
        assert found[0].num_rows == 200
    assert determine_layout(dataset, lambda value, _: [value], World()).node_of_rank == (0,)


@pytest.mark.parametrize("wanted", ["auto", "same", "shuffled_copies"])
def test_copies_are_detected(data, wanted):
    found = together([data(np.arange(200)), data(np.arange(200))], wanted=wanted)
    assert [(x.kind, x.rows_of_node, x.node) for x in found] == [("same", (200, 200), 0), ("same", (200, 200), 1)]
    assert found[0].num_rows == 200
    assert "all 2 nodes hold the same 200 rows" in found[0].description
    assert ("sorted" in found[0].description) == (wanted == "shuffled_copies")


@pytest.mark.parametrize("wanted", ["auto", "split"])
@pytest.mark.parametrize("at_once", [1 << 20, 30])
def test_disjoint_parts_are_detected(data, wanted, at_once, monkeypatch):
    monkeypatch.setattr(layout_module, "_KEYS_AT_ONCE", at_once)
    found = together([data(np.arange(130)), data(np.arange(130, 200))], wanted=wanted)
    assert [(x.kind, x.rows_of_node, x.node) for x in found] == [("split", (130, 70), 0), ("split", (130, 70), 1)]
    assert found[0].num_rows == 200
    assert "node 0: 130 rows, node 1: 70 rows" in found[0].description
    assert found[0].digest == found[1].digest
    assert len(together.bytes) == 1 + -(-130 // at_once), "keys were not compared in rounds"
    assert max(together.bytes[1:]) < 2 * 2 * 16 * min(at_once, 130) + 500


def test_ranks_of_a_node_count_once(data):
    a, b = data(np.arange(130)), data(np.arange(130, 200))
    found = together([a, b, a, b], [4, 7, 4, 7])
    assert {(x.kind, x.rows_of_node, x.node_of_rank) for x in found} == {("split", (130, 70), (0, 1, 0, 1))}
    assert [x.node for x in found] == [0, 1, 0, 1]
    world = World(size=4, num_shards=6)
    assert [found[0].shards_of_node(node, world) for node in (0, 1)] == [[0, 1, 4], [2, 3, 5]]


@pytest.mark.parametrize("at_once", [1 << 20, 30])
def test_overlap_is_rejected_on_all_nodes(data, at_once, monkeypatch):
    monkeypatch.setattr(layout_module, "_KEYS_AT_ONCE", at_once)
    found = together([data(np.arange(130)), data(np.arange(129, 200))])
    refused(found, "nodes 0 and 1 have 1 rows in common", "node 0: 130 rows, node 1: 71 rows", "do not overlap")
    found = together([data(np.arange(100)), data(np.arange(100, 200)), data(np.arange(50, 150))])
    refused(found, "nodes 0 and 2 have 50 rows in common")


def test_incomplete_copy_is_rejected(data):
    for wanted in ("auto", "same", "split"):
        refused(together([data(np.arange(200)), data(np.arange(199))], wanted=wanted), "199 rows in common")


def test_copies_with_other_contents_are_rejected(data):
    one, other = data(np.arange(200)), data(np.arange(200), digest="of other rewards")
    refused(together([one, other]), "200 rows in common", "not copies of each other")


def test_both_words_of_keys_are_compared(tmp_path):
    """The first word alone is not the key."""
    columns = some(made_data.discrete_columns(), np.arange(200))
    other = columns | {"key": columns["key"] ^ np.array([0, 1], np.uint64)}
    paths = made_data.write(tmp_path / "a", columns), made_data.write(tmp_path / "b", other, digest="another")
    assert together([Dataset.open(path) for path in paths])[0].kind == "split"


def test_unexpected_layout_is_rejected(data):
    parts, copies = [data(np.arange(100)), data(np.arange(100, 200))], [data(np.arange(200)), data(np.arange(200))]
    for wanted in ("same", "shuffled_copies"):
        refused(together(parts, wanted=wanted), f"data_layout={wanted}", "node 0: 100 rows", "data_layout=split")
    refused(together(copies, wanted="split"), "data_layout=split", "all 2 nodes hold the same 200 rows")


def test_parts_with_different_schemas_are_rejected(data):
    first = data(np.arange(100))
    renamed = data(np.arange(100, 200), actions=("up", "left", "right"))
    refused(together([first, renamed]), "nodes 0 and 1", "different actions", "'up'", "the same --actions")
    options = {"max_episode_steps": None, "state_features": "its own words"}
    assert together([first, data(np.arange(100, 200), rules={"options": options})])[0].kind == "split"
    limited = data(np.arange(100, 200), rules={"options": {"max_episode_steps": 200}})
    refused(together([first, limited]), "different max_episode_steps", "None and 200", "the same --max-episode-steps")
    marked, unmarked = ({"rules": {"mark": mark}} for mark in ("possible_actions", "last_row"))
    early = data(np.arange(100), rules={})
    parts = [early, data(np.arange(100, 150), **marked), data(np.arange(150, 200), **marked)]
    assert together(parts)[0].kind == "split", "earlier data does not say what marks an end"
    parts[2] = data(np.arange(150, 200), **unmarked)
    refused(
        together(parts), "nodes 1 and 2", "different marks of an end", "possible_actions and last_row", "terminated"
    )
    named = data(np.arange(100, 200), metrics=("money",))
    refused(together([first, named]), "different metrics", "money", "--like")


def test_parts_with_different_normalization_are_rejected(data, monkeypatch):
    first = data(np.arange(100))
    as_it_is = made_data.as_it_is
    Feature, Features = made_data.Feature, made_data.Features  # noqa: N806

    def scaled(names):
        return Features({**dict(as_it_is(names).items()), "2": Feature(type="continuous", mean=1.0, stddev=2.0)})

    monkeypatch.setattr(made_data, "as_it_is", scaled)
    found = together([first, data(np.arange(100, 200))])
    refused(found, "nodes 0 and 1 hold data with different normalization", "the same --state-features")


def test_different_data_within_a_node_is_rejected(data):
    refused(together([data(np.arange(100)), data(np.arange(100, 200))], [0, 0]), "ranks of node 0 see different data")


def test_layout_is_immutable():
    layout = Layout(kind="split", rows_of_node=(5, 7), node_of_rank=(0, 1, 1), node=1)
    assert layout.num_rows == 12
    assert layout.shards_of_node(1, World(size=3)) == [1, 2]
