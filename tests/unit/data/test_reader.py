"""The reader: every row once per epoch for any number of ranks, a new order per epoch, resume."""

import numpy as np
import pytest

import made_data
from lockstep import ConfigError, World
from lockstep.data import reader as reader_module
from lockstep.data.dataset import Dataset
from lockstep.data.layout import Layout, determine_layout
from lockstep.data.reader import Reader

ROWS = 203


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset.open(made_data.discrete(tmp_path_factory.mktemp("reader") / "data", ROWS, part_rows=64))


@pytest.fixture(scope="module")
def parametric(tmp_path_factory):
    return Dataset.open(made_data.parametric(tmp_path_factory.mktemp("reader") / "data", ROWS, part_rows=64))


def world(rank=0, size=1, shards=None):
    return World(rank=rank, size=size, num_shards=shards or size, pinned=shards is not None)


def readers(dataset, size=1, shards=None, layout=None, **changes):
    """The reader of every rank."""
    settings = {"batch_size": 24, "seed": 3, "epochs": 2} | changes
    found = []
    for rank in range(size):
        here = world(rank, size, shards)
        found.append(
            Reader(
                dataset, here, layout or determine_layout(dataset, lambda value, _: [value] * size, here), **settings
            )
        )
    return found


def real(parts):
    """Rows of weight 1 in the parts of some shards."""
    return np.concatenate([part.index[part.weight > 0] for part in parts])


def batches(ranks, limit=None):
    """`(epoch, the rows of the global batch, sorted)` until the readers of all ranks are through."""
    found = []
    while not ranks[0].finished and (limit is None or len(found) < limit):
        epoch, told = ranks[0].epoch, [reader.next() for reader in ranks]
        rows = real([part for parts, _ in told for part in parts])
        assert {count for _, count in told} == {len(rows)}, "ranks were told different numbers of rows"
        assert len({(reader.epoch, reader.batch, reader.finished) for reader in ranks}) == 1
        found.append((epoch, np.sort(rows).tolist()))
    return found


@pytest.mark.parametrize(("size", "shards"), [(1, None), (2, None), (4, None), (1, 4), (3, 6), (2, 8), (4, 24)])
def test_every_row_is_read_once_per_epoch(dataset, size, shards):
    ranks = readers(dataset, size, shards)
    told = batches(ranks)
    assert len(told) == 2 * ranks[0].batches_per_epoch == 2 * 9
    for epoch in (0, 1):
        rows = [row for e, batch in told if e == epoch for row in batch]
        assert sorted(rows) == list(range(ROWS)), "a row is missing, or comes twice"
    assert sum(len(batch) for _, batch in told) == ranks[0].total_rows == 2 * ROWS
    assert [len(batch) for _, batch in told[:9]] == [24] * 8 + [ROWS - 8 * 24]


def test_global_batches_are_independent_of_world_size(dataset):
    alone_ = batches(readers(dataset))
    for size, shards in ((2, None), (4, None), (2, 4), (1, 8), (3, 3)):
        assert batches(readers(dataset, size, shards)) == alone_, (size, shards)


def test_shard_parts_are_independent_of_world_size(dataset):
    """With the number of shards fixed, a shard gets the same rows in the same order, from the same addresses."""
    one, two = readers(dataset, 1, 4), readers(dataset, 2, 4)
    while not one[0].finished:
        whole, halves = one[0].next()[0], [part for reader in two for part in reader.next()[0]]
        for a, b in zip(whole, halves, strict=True):
            for name in ("index", "state", "weight", "reward", "next_state"):
                assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
            assert a.state.ctypes.data % 64 == b.state.ctypes.data % 64 == 0


def test_epochs_and_seeds_have_different_orders(dataset):
    told = batches(readers(dataset))
    first, second = ([batch for e, batch in told if e == epoch] for epoch in (0, 1))
    assert all(a != b for a, b in zip(first, second, strict=True)), "two epochs are in the same order"
    other = batches(readers(dataset, seed=4))
    assert all(a != b for (_, a), (_, b) in zip(told, other, strict=True)), "the seed makes no difference"
    assert told == batches(readers(dataset)), "the same seed, another order"
    assert first[0] != list(range(24))


def test_shards_get_different_rows(dataset):
    parts, _ = readers(dataset, 1, 4)[0].next()
    assert len(parts) == 4
    assert all(len(part) == 6 for part in parts)
    assert len(np.unique(real(parts))) == 24


def test_padding_has_weight_zero_and_is_spread_over_shards(dataset):
    ranks = readers(dataset, 2, 4)
    for _ in range(8):
        told = [reader.next() for reader in ranks]
    told = [reader.next() for reader in ranks]
    parts = [part for parts, _ in told for part in parts]
    assert [int(part.weight.sum()) for part in parts] == [3, 3, 3, 2], "11 rows of 4 shards"
    assert {len(part) for part in parts} == {6}, "shapes depend on the data"
    assert told[0][1] == 11
    assert ranks[0].epoch == 1


def test_prefetching_changes_no_batch(dataset, monkeypatch):
    whole = batches(readers(dataset, 2))
    monkeypatch.setattr(reader_module, "_PREFETCH_BYTES", 0)
    ranks = readers(dataset, 2)
    assert ranks[0]._batches_per_read == 1
    assert batches(ranks) == whole
    monkeypatch.setattr(reader_module, "_PREFETCH_BYTES", 3 * 12 * dataset.row_bytes)
    ranks = readers(dataset, 2)
    assert ranks[0]._batches_per_read == 3
    assert batches(ranks) == whole


def test_ragged_parts_match_their_rows(parametric):
    reader = readers(parametric, 1, 2, n_step=3, gamma=0.9)[0]
    while not reader.finished:
        for part in reader.next()[0]:
            alone_ = parametric.rows(part.index, n_step=3, gamma=0.9)
            for name in ("possible_actions", "possible_next_actions"):
                ours, theirs = getattr(part, name), getattr(alone_, name)
                assert ours.values.tobytes() == theirs.values.tobytes()
                assert np.array_equal(ours.offsets, theirs.offsets)
            assert part.reward.tobytes() == alone_.reward.tobytes()
            assert part.steps.tobytes() == alone_.steps.tobytes()


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped_after", [0, 1, 5, 9, 13, 18])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_resume_continues_within_an_epoch(dataset, stopped_after, size):
    whole = batches(readers(dataset, 2, 4))
    stopped = readers(dataset, 2, 4)
    assert batches(stopped, stopped_after) == whole[:stopped_after]
    states = {
        shard: reader.shard_state(k)
        for rank, reader in enumerate(stopped)
        for k, shard in enumerate(world(rank, 2, 4).shards)
    }
    resumed = readers(dataset, size, 4)
    for rank, reader in enumerate(resumed):
        for k, shard in enumerate(world(rank, size, 4).shards):
            assert reader.restore_shard(k, states[shard], 0) is True
    assert batches(resumed) == whole[stopped_after:]


def test_old_checkpoint_resumes_with_its_permutation(dataset, monkeypatch):
    """A checkpoint without `rounds` is of permutations of 6 rounds: rows would repeat in others."""
    with monkeypatch.context() as earlier:
        earlier.setattr(reader_module, "ROUNDS", 6)
        whole = batches(readers(dataset))
        stopped = readers(dataset)
        batches(stopped, 4)
    state = stopped[0].shard_state(0)
    assert state.pop("rounds") == 6
    resumed = readers(dataset)
    resumed[0].restore_shard(0, state, 0)
    assert batches(resumed) == whole[4:]
    assert whole != batches(readers(dataset))


def test_restore_discards_prefetched_batches(dataset):
    reader = readers(dataset)[0]
    state, first = reader.shard_state(0), reader.next()[0][0].index
    reader.next()
    reader.restore_shard(0, state, 0)
    assert np.array_equal(reader.next()[0][0].index, first)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"batch_size": 48}, "batch_size was 24 and is now 48"), ({"seed": 4}, "seed was 3 and is now 4")],
)
def test_resume_with_other_batches_is_rejected(dataset, changes, match):
    state = readers(dataset)[0].shard_state(0)
    with pytest.raises(ConfigError, match=match):
        readers(dataset, **changes)[0].restore_shard(0, state, 0)


def test_resume_with_other_data_is_rejected(dataset, tmp_path):
    state = readers(dataset)[0].shard_state(0)
    other = Dataset.open(made_data.discrete(tmp_path / "data", ROWS, seed=1))
    with pytest.raises(ConfigError, match=r"data was .* and is now .*; resume with the data"):
        readers(other)[0].restore_shard(0, state, 0)


def test_resume_with_other_normalization_is_rejected(dataset):
    state, other = readers(dataset)[0].shard_state(0), Dataset.open(dataset.path)
    other.features_digest = "another"
    with pytest.raises(ConfigError, match=r"normalization was .* and is now another; resume with the data"):
        readers(other)[0].restore_shard(0, state, 0)


def test_resume_with_more_epochs_continues(dataset):
    reader = readers(dataset, epochs=1)[0]
    while not reader.finished:
        reader.next()
    with pytest.raises(ValueError, match="all 1 epochs"):
        reader.next()
    longer = readers(dataset, epochs=2)[0]
    longer.restore_shard(0, reader.shard_state(0), 0)
    assert batches([longer]) == batches(readers(dataset))[9:]


# -- few rows ----------------------------------------------------------------------------------------------------------


def test_more_ranks_than_rows_are_rejected(tmp_path):
    dataset = Dataset.open(made_data.discrete(tmp_path / "data", 3))
    with pytest.raises(ConfigError, match=r"data=.*data holds 3 rows for 4 shards \(4 ranks\); use at most 3 ranks"):
        readers(dataset, 4)
    with pytest.raises(ConfigError, match=r"3 rows for 8 shards \(1 rank\); use at most 3 shards \(num_shards\), or"):
        readers(dataset, shards=8)
    assert len(readers(dataset, 3)) == 3
    none = Dataset.open(made_data.discrete(tmp_path / "more", 4))
    for reader in (ranks := readers(none, 4, batch_size=64)):
        reader.next()
    assert len({reader.fingerprint() for reader in ranks}) == 4, "ranks with one row each seem to read the same"


def test_batch_larger_than_the_data_warns(dataset):
    ranks = readers(dataset, 2, batch_size=512)
    assert "batch_size=512 is more than the 203 rows" in ranks[0].warnings[0]
    told = batches(ranks)
    assert [batch for _, batch in told] == [list(range(ROWS))] * 2
    assert readers(dataset)[0].warnings == []


def test_indivisible_batch_is_rejected(dataset):
    with pytest.raises(ConfigError, match="batch_size=25 does not divide among 2 shards; use 24 or 26"):
        readers(dataset, 2, batch_size=25)


def test_fingerprints_differ_between_ranks(dataset):
    ranks = readers(dataset, 2)
    again = readers(dataset, 2)
    for reader in (*ranks, *again):
        reader.next()
    first = [reader.fingerprint() for reader in ranks]
    assert first[0] != first[1]
    assert first == [reader.fingerprint() for reader in again]
    ranks[0].next()
    assert ranks[0].fingerprint() == first[0], "it is of the first batch"


def test_fingerprints_differ_between_ranks_at_padding(dataset):
    ranks = readers(dataset, 4, batch_size=100)  # 203 rows: the last batch has 3
    for reader in ranks:
        reader.restore_shard(0, reader.shard_state(0) | {"batch": 2}, 0)
        reader.next()
    assert len({reader.fingerprint() for reader in ranks}) == 4


def test_no_episodes_are_reported(dataset):
    reader = readers(dataset, 1, 3)[0]
    assert [len(x.returns) + len(x.lengths) for x in reader.episodes] == [0, 0, 0]


# -- split data --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Two machines: one with 203 rows, one with 50."""
    folder = tmp_path_factory.mktemp("split")
    return [Dataset.open(made_data.discrete(folder / f"{n}", n, seed=n)) for n in (ROWS, 50)]


def split_readers(halves, node_of_rank, shards=None, **changes):
    """One reader for each rank, that sees the data of its machine."""
    size, found = len(node_of_rank), []
    for rank, node in enumerate(node_of_rank):
        layout = Layout(
            kind="split", rows_of_node=(ROWS, 50), node=node, node_of_rank=tuple(node_of_rank), digest="both"
        )
        settings = {"batch_size": 24, "seed": 3, "epochs": 2} | changes
        found.append(Reader(halves[node], world(rank, size, shards), layout, **settings))
    return found


@pytest.mark.parametrize(("node_of_rank", "shards"), [((0, 1), None), ((0, 0, 1), None), ((0, 1, 0, 1), 8)])
def test_unequal_parts_are_padded(halves, node_of_rank, shards):
    ranks = split_readers(halves, node_of_rank, shards)
    share = 24 * node_of_rank.count(0) // len(node_of_rank)
    assert {reader.batches_per_epoch for reader in ranks} == {-(-ROWS // share)}
    assert {reader.rows_per_epoch for reader in ranks} == {ROWS + 50}
    seen, total = {0: [], 1: []}, 0
    while not ranks[0].finished:
        epoch, told = ranks[0].epoch, [reader.next() for reader in ranks]
        for node, (parts, _) in zip(node_of_rank, told, strict=True):
            seen[node].append((epoch, real(parts)))
            assert {len(part) for part in parts} == {24 // (shards or len(ranks))}
        assert {count for _, count in told} == {sum(len(real(parts)) for parts, _ in told)}
        total += told[0][1]
    assert total == ranks[0].total_rows == 2 * (ROWS + 50)
    for node, rows in ((0, ROWS), (1, 50)):
        for epoch in (0, 1):
            found = np.concatenate([index for e, index in seen[node] if e == epoch])
            assert np.array_equal(np.sort(found), np.arange(rows)), (node, epoch)
    assert all(reader.finished for reader in ranks)


def test_split_data_resumes_within_an_epoch(halves):
    whole, stopped = split_readers(halves, (0, 1)), split_readers(halves, (0, 1))
    for _ in range(7):
        for reader in (*whole, *stopped):
            reader.next()
    resumed = split_readers(halves, (0, 1))
    for reader, old in zip(resumed, stopped, strict=True):
        reader.restore_shard(0, old.shard_state(0), 0)
    while not whole[0].finished:
        for a, b in zip(whole, resumed, strict=True):
            assert np.array_equal(a.next()[0][0].index, b.next()[0][0].index)


def test_split_data_does_not_resume_on_other_nodes(halves):
    state = split_readers(halves, (0, 0, 1))[0].shard_state(0)
    with pytest.raises(ConfigError, match="shards of the machines was"):
        split_readers(halves, (0, 1, 1))[0].restore_shard(0, state, 0)


def test_node_with_fewer_rows_than_shards_is_rejected(halves):
    with pytest.raises(ConfigError, match=r"of node 1 holds 50 rows for 51 shards \(52 ranks\)"):
        split_readers(halves, (0, *[1] * 51), batch_size=52)


def test_split_data_warns(halves):
    assert "every machine holds its own part" in split_readers(halves, (0, 1))[0].warnings[0]
