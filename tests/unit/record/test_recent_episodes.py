"""The mean return of the last training episodes prefers no environment, no shard and no number of logs."""

import numpy as np
import pytest

from lockstep.record.episodes import KEPT, RecentEpisodes, RecentReturns


def told(updates_of_shards, log_after):
    """The mean at the end; `updates_of_shards` [shards][updates] has the returns of an update's episodes."""
    recent, shards = RecentReturns(), [RecentEpisodes() for _ in updates_of_shards]
    num_updates = len(updates_of_shards[0])
    for update in range(num_updates):
        for shard, updates in zip(shards, updates_of_shards, strict=True):
            shard.add(update, len(updates[update]), float(np.sum(updates[update])))
        if update + 1 in log_after or update + 1 == num_updates:
            recent.merge(np.stack([shard.row() for shard in shards]))
    return recent.mean()


def test_all_episodes_of_an_update_count_alike():
    pays_its_index = np.arange(3.0 * KEPT)
    assert told([[pays_its_index]], []) == pays_its_index.mean(), "the last hundred are those of some environments"
    first, second = np.split(pays_its_index, 2)
    assert told([[first], [second]], []) == pays_its_index.mean(), "those of the last shard"


def test_they_are_the_last_updates_with_a_hundred_together():
    updates = [[0.0] * 50, [1.0] * 60, [], [2.0] * 41]
    assert told([updates], []) == pytest.approx((60 + 82) / 101)
    assert told([[*updates, [3.0] * KEPT]], []) == 3.0
    assert told([[*updates, [3.0] * (KEPT - 1)]], []) == pytest.approx((82 + 3 * 99) / 140)


def test_before_the_first_episode_there_is_none():
    assert told([[[], []]], []) is None


def test_how_often_is_logged_changes_nothing():
    generator = np.random.default_rng(0)
    shards = [[generator.normal(size=generator.integers(0, 4)) for _ in range(300)] for _ in range(3)]
    once = told(shards, [])
    assert once == told(shards, range(300)) == told(shards, [7, 120, 121])
    joined = [np.concatenate(of_shards) for of_shards in zip(*shards, strict=True)]
    number = next(n for n in range(300) if sum(map(len, joined[-n - 1 :])) >= KEPT) + 1
    assert once == pytest.approx(np.concatenate(joined[-number:]).mean())


def test_what_is_kept_goes_on_elsewhere():
    recent, other = RecentReturns(), RecentReturns()
    for count in (70, 60, 10):
        recent.add(count, 2.0 * count)
    other.restore(recent.state())
    for one in (recent, other):
        one.add(45, 0.0)
    assert recent.mean() == other.mean() == pytest.approx(140 / 115)
