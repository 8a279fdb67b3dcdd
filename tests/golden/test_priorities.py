"""Probabilities of prioritized draws, by hand: within a shard, and of a minibatch drawn from unequal shards."""

import numpy as np
import pytest

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.replay import Replay
from lockstep.world import stream

SPEC = EnvSpec(1, ActionSpec("discrete", (2,)), "next_step", separately_seedable=True)


def add(replay, observation):
    no = np.zeros(1, bool)
    replay.add(np.zeros(1, int), np.zeros(1, np.float32), no, no, np.array([[observation]], np.float32), None)


# alpha, and of two shards the TD errors and the probabilities within the shard: (|e| + eps)^alpha / sum, eps = 0.25.
PRIORITIES = [
    (1.0, [2.75, -0.75], [0.75, 0.25], [0.75, 0.75, 0.75, 0.75], [0.25] * 4),
    (0.5, [3.75, 0.75], [2 / 3, 1 / 3], [-8.75, 0.0], [6 / 7, 1 / 7]),  # 2 and 1; 3 and 1/2
    (0.0, [100.0, 1.0], [0.5, 0.5], [0.0, 7.0, 1.0], [1 / 3] * 3),
]


@pytest.mark.parametrize(("exponent", *"abcd"), PRIORITIES)
def test_probabilities_of_unequal_shards(exponent, a, b, c, d):
    drawn_from_all = []
    for shard, (errors, wanted) in enumerate([(a, b), (c, d)]):
        replay = Replay(
            SPEC,
            1,
            10,
            n_step=1,
            gamma=0.5,
            prioritized=True,
            priority_exponent=exponent,
            priority_eps=0.25,
        )
        replay.begin(np.zeros((1, 1), np.float32))
        for i in range(len(errors)):
            add(replay, i + 1)
        generator = stream(0, "sample", shard)
        drawn = replay.sample(100, generator)
        assert drawn.probability.tolist() == [1 / len(errors)] * 100  # all are new, and equal
        by_observation = dict(zip(drawn.observation[:, 0].astype(int).tolist(), drawn.index.tolist(), strict=True))
        replay.update_priorities(np.array([by_observation[i] for i in range(len(errors))]), np.array(errors))
        drawn = replay.sample(30_000, generator)
        told = dict(zip(drawn.observation[:, 0].astype(int).tolist(), drawn.probability.tolist(), strict=True))
        assert [told[i] for i in range(len(errors))] == pytest.approx(wanted, rel=1e-12)
        counted = np.bincount(drawn.observation[:, 0].astype(int)) / 30_000
        assert counted.tolist() == pytest.approx(wanted, abs=1e-3)  # one draw from each of equal parts: nearly exact
        drawn_from_all += [share / 2 for share in counted]  # each shard gives half of the global minibatch
        assert told[0] / 2 == pytest.approx(drawn_from_all[-len(errors)], abs=1e-3)
    assert sum(drawn_from_all) == pytest.approx(1.0)


def test_new_transitions_have_largest_priority():
    replay = Replay(SPEC, 1, 10, n_step=1, gamma=0.5, prioritized=True, priority_exponent=1.0, priority_eps=0.0)
    replay.begin(np.zeros((1, 1), np.float32))
    add(replay, 1)
    (first,) = set(replay.sample(4, stream(0, "sample")).index.tolist())
    for error, of_the_old, of_the_new in [(6.0, 0.5, 0.5), (2.0, 0.25, 0.75)]:  # 6 of 12, then 2 of 2 + 6
        replay.update_priorities(np.array([first]), np.array([error]))
        if error == 6.0:
            add(replay, 2)
        drawn = replay.sample(8, stream(0, "sample"))
        told = dict(zip(drawn.index.tolist(), drawn.probability.tolist(), strict=True))
        assert told[first] == pytest.approx(of_the_old)
        assert [p for index, p in told.items() if index != first] == pytest.approx([of_the_new])


def test_non_finite_error_keeps_priority():
    replay = Replay(SPEC, 1, 10, n_step=1, gamma=0.5, prioritized=True, priority_exponent=1.0, priority_eps=0.0)
    replay.begin(np.zeros((1, 1), np.float32))
    add(replay, 1)
    add(replay, 2)
    index = np.unique(replay.sample(8, stream(0, "sample")).index)
    replay.update_priorities(index, np.array([3.0, 1.0]))
    replay.update_priorities(index, np.array([np.nan, np.inf]))
    drawn = replay.sample(8, stream(0, "sample"))
    assert set(zip(drawn.index.tolist(), drawn.probability.tolist(), strict=True)) == {
        (index[0], 0.75),
        (index[1], 0.25),
    }
