"""The replay buffers of a rank's shards."""

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.session.shard_replays import importance_weights


def test_importance_exponent_rises_with_the_run():
    config = DQNConfig(prioritized=True, importance_exponent=0.5)
    found = importance_weights(config, np.array([0.25, 0.125]), size=16, fraction=0.5)  # beta 0.75, N P = 4 and 2
    np.testing.assert_allclose(found, [4**-0.75, 2**-0.75], rtol=1e-6)
    assert found.dtype == np.float32


def test_uniform_replay_has_weights_of_one():
    assert importance_weights(DQNConfig(), np.array([0.25, 0.125]), 16, 0.5).tolist() == [1.0, 1.0]
