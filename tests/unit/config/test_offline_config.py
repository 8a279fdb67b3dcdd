"""What the settings of learning from logged data refuse."""

import pytest

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun

WRONG = [
    ({"gamma": 1.1}, "gamma=1.1 must lie in"),
    ({"gamma": float("nan")}, "gamma=nan must lie in"),
    ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ({"learning_rate": 0.0}, "learning_rate=0.0 must be greater than 0"),
    ({"temperature": 0.0}, "temperature=0.0 must be greater than 0"),
    ({"target_rate": 0.0}, "target_rate=0.0 must lie in"),
    ({"l2_decay": -1.0}, "l2_decay=-1.0 must be at least 0"),
    ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 must be greater than 0, or null"),
    ({"learning_rate_decay": 0.5}, "learning_rate_decay=0.5 is only used with learning_rate_schedule=exponential"),
    ({"n_step": 0}, "n_step=0 must be at least 1"),
    ({"n_step": 2, "use_time_diff": True}, "n_step=2 and use_time_diff=true contradict each other"),
    ({"n_step": 2, "reward_boost": {"a": 1.0}}, "sums the rewards of several; use n_step=1"),
    ({"reward_boost": {"a": float("inf")}}, "reward_boost of action a is inf; it must be a finite number"),
    ({"time_diff_unit": 0.0}, "time_diff_unit=0.0 must be greater than 0"),
    ({"time_diff_unit": 60.0}, "time_diff_unit=60.0 is only used with use_time_diff=true"),
    ({"cql_alpha": -0.1}, "cql_alpha=-0.1 must be at least 0"),
    ({"loss": "bce"}, "loss=bce needs gamma=0"),
    ({"bcq_threshold": 1.5}, "bcq_threshold=1.5 must lie in"),
    ({"bcq_threshold": 0.5, "maxq": False}, "it needs maxq=true"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_refused(changes, words):
    with pytest.raises(ConfigError) as caught:
        OfflineDQNConfig(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("label_smoothing", 1.0), ("gamma", 2.0), ("target_rate", -1.0)])
def test_cloning_refuses(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value} must lie in"):
        CloningConfig(**{name: value})


@pytest.mark.parametrize("name", ["cql_gap", "target_entropy"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_cql_refuses_to_aim_at_what_is_not_finite(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value} must be finite, or null"):
        CQLConfig(**{name: value})
    assert getattr(CQLConfig(**{name: -2.0}), name) == -2.0


def test_batch_size_must_divide_among_the_shards():
    with pytest.raises(ConfigError, match="batch_size=10 does not divide among 4 shards; use 8 or 12"):
        OfflineDQNConfig(batch_size=10).rows(4)
    assert OfflineDQNConfig(batch_size=12).rows(4) == 3


def test_a_clone_does_as_often_as_the_log():
    assert (CloningConfig().policy, CloningConfig().temperature) == ("softmax", 1.0)


@pytest.mark.parametrize(
    "asked",
    [
        *({"evaluate_every": 100}, {"evaluate_episodes": 3}, {"evaluate_video": True}),
        *({"evaluate_greedy": False}, {"stop_return": 9.0}, {"stop_when_solved": False}),
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_needs_a_simulator_is_refused_without_one(asked):
    OfflineRun(data="data", task="CartPole-v1", **asked)
    with pytest.raises(ConfigError, match="is for episodes in a simulator, and this run has none; add --task ID"):
        OfflineRun(data="data", **asked)
