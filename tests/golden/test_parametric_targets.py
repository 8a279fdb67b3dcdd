"""What Q-learning on candidates compares its network with: a table computed by hand, rows of 0, 1 and 3 candidates.

Q(s, a) = s + 2 a of the network that learns, Q'(s, a) = 3 s - a of the target network, gamma = 1/2.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.columns import Ragged
from lockstep.data.features import Feature, Features
from lockstep.data.info import DatasetInfo
from lockstep.data.rows import Rows
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.comm import Comm
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.scoring.policy import ScoringPolicy

BASE = OfflineDQNConfig(gamma=0.5, estimate=False, double=True)
INFO = DatasetInfo(
    kind="parametric", num_rows=3, num_trajectories=1, state_features=("0",), state_size=1, action_features=("9",),
    action_size=1, metrics=("clicks",), has_possible_actions=True,
)  # fmt: skip
ROWS = ("terminal", "one candidate", "three candidates")


def ragged(*lists):
    values = np.array([x for one in lists for x in one], np.float32).reshape(-1, 1)
    return Ragged(values, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def rows(**changes):
    """The table. The last row's next action is known, that of the second is not, the first has none."""
    single = {
        "reward": [1, 2, 0], "not_terminal": [0, 1, 1], "steps": [1, 1, 1], "time_diff": [1, 1, 1],
        "propensity": [1, 1, 1], "weight": [1, 1, 1], "has_next_action": [0, 0, 1],
    }  # fmt: skip
    column = {"state": [1, 2, 0], "action": [1, 0, 1], "metrics": [5, 6, 7], "next_state": [0, 1, 2]}
    column["next_action"] = [0, 0, 0]
    found = {name: np.array(changes.pop(name, value), np.float32) for name, value in single.items()}
    found |= {name: np.array(changes.pop(name, value), np.float32)[:, None] for name, value in column.items()}
    lists = {"possible_actions": ragged([0, 1], [0], [1, -1, 2]), "possible_next_actions": ragged([], [4], [1, -1, 0])}
    index = {"index": [0, 1, 2], "action_index": [1, 0, 0]}
    found |= {name: np.array(value, np.int64) for name, value in index.items()} | lists | changes
    return Rows(**found)


def set_linear(network, of_state, of_action):
    """Make it w s + v a."""
    (layer,) = network.body.layers
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([of_state, of_action]).T)
        layer.bias.zero_()


def learner(config=BASE, **settings):
    run = OfflineRun(data="none", algo="parametric_dqn", algorithm=config, network=ScoreNetworkConfig(hidden=()))
    features = [Features({name: Feature(type="do_not_preprocess")}) for name in "09"]
    about = OfflinePolicySpec(
        info=INFO, state=features[0], action=features[1], network=run.network, algo=run.algo, algorithm=config
    )
    dqn = OfflineDQN(run, ScoringPolicy(about), Comm(device="cpu"))
    set_linear(dqn.scores, [1.0], [2.0])
    set_linear(dqn.target.networks[0], [3.0], [-1.0])
    if config.estimate:
        set_linear(dqn.heads.reward, [1.0, 0.0], [0.0, 1.0])
        set_linear(dqn.heads.value, [2.0, 0.0], [0.0, 2.0])
        set_linear(dqn.target.networks[1], [1.0, 10.0], [1.0, -1.0])
    return dqn


def told(config, given, i):
    """The sums of row `i` alone, of the whole batch."""
    weight = np.zeros(3, np.float32)
    weight[i] = 1
    given = replace(given, weight=weight)
    batch = LoggedBatch.of(given, torch.device("cpu"))
    total, sums = learner(config).loss(batch, batch)
    return float(total.detach()), dict(
        zip(("weight", "learned", "loss", "q", "target", "error", "rest"), sums.tolist(), strict=False)
    )


TARGETS = {
    # r + 1/2 Q'(s', argmax Q): 1; 2 + (3 - 4) / 2; the candidate 1, which Q likes best: (6 - 1) / 2
    "double": ({}, {}, [1.0, 1.5, 2.5]),
    # the candidate -1, which Q' likes best: (6 + 1) / 2
    "max": ({"double": False}, {}, [1.0, 1.5, 3.5]),
    # the candidate 0, which was taken: 6 / 2
    "sarsa": ({"maxq": False}, {}, [1.0, None, 3.0]),
    "steps": ({}, {"steps": [3, 2, 2]}, [1.0, 1.75, 1.25]),
    "time": ({"use_time_diff": True, "time_diff_unit": 1.5}, {"time_diff": [1, 4.5, 3]}, [1.0, 1.875, 1.25]),
    "no discount": ({"gamma": 0.0}, {}, [1.0, 2.0, 0.0]),
    # both are best: the first counts
    "tie": ({}, {"possible_next_actions": ragged([], [4, 4], [0, 0, -1])}, [1.0, 1.5, 3.0]),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("i", range(3), ids=ROWS)
def test_target_and_loss_table(name, i):
    settings, columns, wanted = TARGETS[name]
    total, sums = told(replace(BASE, **settings), rows(**columns), i)
    q = [3.0, 2.0, 2.0][i]
    if wanted[i] is None:  # SARSA knows no target there, and says so by the weight
        assert (total, sums["weight"], sums["learned"], sums["loss"]) == (0, 1, 0, 0)
        return
    assert (sums["weight"], sums["learned"], sums["q"], sums["target"]) == (1, 1, q, wanted[i])
    assert sums["error"] == abs(wanted[i] - q)
    assert total == sums["loss"] == 0.5 * (wanted[i] - q) ** 2


@pytest.mark.parametrize(("loss", "wanted"), [("mse", 2.0), ("huber", 1.5)])
def test_losses_of_an_error_of_2(loss, wanted):
    assert told(replace(BASE, loss=loss), rows(), 0)[0] == wanted


def test_cross_entropy_of_a_probability():
    given = rows(reward=[1, 0, 0.25])
    for i, (q, y) in enumerate([(3.0, 1.0), (2.0, 0.0), (2.0, 0.25)]):
        p = 1 / (1 + math.exp(-q))
        total, sums = told(replace(BASE, loss="bce", gamma=0.0), given, i)
        assert total == pytest.approx(-y * math.log(p) - (1 - y) * math.log(1 - p))
        assert sums["q"] == pytest.approx(p), "the score is told as the probability that it stands for"


@pytest.mark.parametrize(
    ("i", "penalty"),
    [
        (0, math.log(math.exp(1) + math.exp(3)) - 3),  # Q(1, 0), Q(1, 1); the second was done
        (1, 0.0),  # nothing else was possible
        (2, math.log(math.exp(2) + math.exp(-2) + math.exp(4)) - 2),  # Q(0, 1), Q(0, -1), Q(0, 2); the first was done
    ],
    ids=ROWS,
)
def test_conservative_penalty_table(i, penalty):
    plain, _ = told(BASE, rows(), i)
    total, sums = told(replace(BASE, cql_alpha=0.25), rows(), i)
    assert sums["rest"] == pytest.approx(penalty, abs=1e-6)
    assert total == pytest.approx(plain + 0.25 * penalty, abs=1e-6)


def outcome_losses(policy, given=None):
    """Of the three rows: losses of the models of the reward and of the policy's value."""
    config = replace(BASE, estimate=True, policy=policy, temperature=2.0)
    found = []
    for i in range(3):
        weight = np.zeros(3, np.float32)
        weight[i] = 1
        batch = LoggedBatch.of(replace(given or rows(), weight=weight), torch.device("cpu"))
        found.append(learner(config).loss(batch, batch)[1][-2:].tolist())
    return found


def mean_of_squares(found, wanted):
    return sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) / 4


def test_models_of_outcomes_table():
    """R(s, a) = (s, a), Q_pi(s, a) = (2 s, 2 a), Q'_pi(s, a) = (s + a, 10 s - a); outcomes are (reward, metric)."""
    wanted = [
        [mean_of_squares((1, 1), (1, 5)), mean_of_squares((2, 2), (1, 5))],
        [mean_of_squares((2, 0), (2, 6)), mean_of_squares((4, 0), (2 + 5 / 2, 6 + 6 / 2))],
        # the policy takes candidate 1
        [mean_of_squares((0, 1), (0, 7)), mean_of_squares((0, 2), (0 + 3 / 2, 7 + 19 / 2))],
    ]
    np.testing.assert_allclose(outcome_losses("greedy"), wanted, rtol=1e-6)


def test_value_of_a_softmax_policy():
    """pi = softmax(Q / 2) over the candidates 1, -1 and 0 of the last row, where Q = 4, 0, 2."""
    p = np.exp([2, 0, 1]) / np.exp([2, 0, 1]).sum()
    following = [float(p @ [3, 1, 2]), float(p @ [19, 21, 20])]
    wanted = mean_of_squares((0, 2), (following[0] / 2, 7 + following[1] / 2))
    assert outcome_losses("softmax")[2][1] == pytest.approx(wanted, rel=1e-6)
    assert outcome_losses("softmax")[:2] == outcome_losses("greedy")[:2], "one candidate, or none, leaves no choice"


def test_models_of_outcomes_learn_from_one_step():
    """Whatever the window of Q: the reward at once, and the policy's own value after it."""
    config = replace(BASE, estimate=True, n_step=3)
    one = LoggedBatch.of(rows(), torch.device("cpu"))
    several = LoggedBatch.of(rows(reward=[9, 9, 9], steps=[3, 3, 3], metrics=[9, 9, 9]), torch.device("cpu"))
    found, alone = learner(config).loss(several, one)[1], learner(config).loss(one, one)[1]
    assert found[-2:].tolist() == alone[-2:].tolist()
    assert found[4] != alone[4], "the target of Q is of the whole window"
