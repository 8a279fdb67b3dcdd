import math

import pytest
import torch

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.run import ScoreNetworkConfig
from lockstep.torch.q_networks import initialize
from lockstep.torch.scoring.choices import ActionMask
from lockstep.torch.scoring.networks import (
    LEFT_OUT,
    ConstrainedNetwork,
    OutcomeHeads,
    OutcomeNetwork,
    ScoreNetwork,
    likely,
    score_network,
)

CONFIG = ScoreNetworkConfig(hidden=(8, 5))
SCORES = torch.tensor([[1.0, 2.0, 3.0]] * 3)
POSSIBLE = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def drawn(network, seed=0):
    initialize(network, seed)
    return network


@pytest.mark.parametrize("hidden", [(), (8,), (8, 5), (8, 7, 5)])
@pytest.mark.parametrize("dueling", [False, True])
def test_any_depth_scores_every_action(hidden, dueling):
    network = drawn(ScoreNetwork(4, 3, ScoreNetworkConfig(hidden=hidden), dueling=dueling))
    scores = network(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    assert scores.shape == (6, 3)
    assert len(torch.unique(scores)) == 18
    layers = [m for m in network.modules() if isinstance(m, torch.nn.Linear)]
    assert len(layers) == len(hidden) + 1 + dueling * (1 if not hidden else 2)


def test_dueling_advantages_have_no_mean():
    network = drawn(ScoreNetwork(4, 3, CONFIG, dueling=True))
    state = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    value = network.value(network.body(state))
    torch.testing.assert_close(network(state).mean(1, keepdim=True), value)


def test_initial_scores_depend_only_on_seed():
    plain, constrained = (score_network(4, 3, CONFIG, OfflineDQNConfig(bcq_threshold=t)) for t in (None, 0.3))
    assert isinstance(plain, ScoreNetwork) and isinstance(constrained, ConstrainedNetwork)
    drawn(plain), drawn(constrained)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, constrained.scores.state_dict()[name])
        assert name.endswith("bias") or not torch.equal(value, constrained.behaviour.state_dict()[name])


def test_cloning_network_is_neither_constrained_nor_dueling():
    assert isinstance(score_network(4, 3, CONFIG, CloningConfig()), ScoreNetwork)
    assert score_network(4, 3, CONFIG, CloningConfig()).value is None
    assert score_network(4, 3, CONFIG, OfflineDQNConfig(dueling=True)).value is not None


def test_rare_actions_are_excluded_when_acting():
    network = drawn(ConstrainedNetwork(4, 3, CONFIG, dueling=False, threshold=0.5))
    state = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * 5
    with torch.no_grad():
        p = network.behaviour(state).softmax(1)
        left_out = p / p.amax(1, keepdim=True) < 0.5
        assert 0 < left_out.sum() < 100
        every = torch.ones(50, 3)
        assert torch.equal(network(state, every), torch.where(left_out, LEFT_OUT, network.scores(state)))


@pytest.mark.parametrize(("threshold", "wanted"), [(0.0, 3), (0.24, 3), (0.26, 2), (0.74, 2), (0.76, 1), (1.0, 1)])
def test_likely_compares_with_most_likely_action(threshold, wanted):
    logits = torch.tensor([[4.0, 3.0, 1.0]]).log()
    assert likely(logits + 7, threshold).sum() == wanted


def test_probability_of_the_greedy_policy():
    found = ActionMask(POSSIBLE).probability(SCORES, OfflineDQNConfig())
    assert found[:2].tolist() == [[0, 0, 1], [0, 1, 0]]
    assert found[2].isfinite().all()


def test_probability_of_the_softmax_policy():
    found = ActionMask(POSSIBLE).probability(SCORES, OfflineDQNConfig(policy="softmax", temperature=0.5))
    e = math.exp(2.0)
    torch.testing.assert_close(found[0], torch.tensor([1, e, e * e]) / (1 + e + e * e))
    torch.testing.assert_close(found[1], torch.tensor([1, e, 0]) / (1 + e))
    assert found[2].isfinite().all()


def test_softmax_of_excluded_scores():
    scores = torch.tensor([[1.0, LEFT_OUT, LEFT_OUT]])
    config = OfflineDQNConfig(policy="softmax", temperature=1e-3)
    assert ActionMask(torch.ones(1, 3)).probability(scores, config).tolist() == [[1, 0, 0]]


def test_heads_predict_reward_and_metrics_of_every_action():
    heads = drawn(OutcomeHeads(lambda: OutcomeNetwork(4, 3, 3, CONFIG)))
    state = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    assert heads.reward(state).shape == heads.value(state).shape == (6, 3, 3)
    assert not torch.equal(heads.reward(state), heads.value(state))
