"""Losses of those who learn from logged data, against tables computed by hand: networks are tables, too."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.torch.comm import Comm
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.losses import imitation, outcome_losses
from lockstep.torch.scoring.choices import ActionMask
from lockstep.world import World
from offline_policies import policy_for

TABLES = json.loads((Path(__file__).parent / "offline_learning.json").read_text())
ACTIONS = ("a", "b", "c")


def cases(table):
    return pytest.mark.parametrize("case", TABLES[table], ids=[case["name"] for case in TABLES[table]])


def batch_of(case):
    """Rows from state 0 to state 1, states told by which number is 1."""
    n = len(case.get("reward", case.get("action")))
    columns = {
        "index": torch.arange(n),
        "state": torch.eye(2)[[0] * n],
        "next_state": torch.eye(2)[[1] * n],
        "action": torch.tensor(case.get("action", [0] * n)),
        "reward": torch.tensor(case.get("reward", [0] * n), dtype=torch.float32),
        "metrics": torch.tensor(case.get("metric", [0] * n), dtype=torch.float32).unsqueeze(1),
        "next_action": torch.tensor(case.get("next_action", [0] * n)),
        "possible_actions": mask_of(case.get("possible", [[1] * 3] * n)),
        "possible_next_actions": mask_of(case.get("possible_next", [[1] * 3] * n)),
        "weight": torch.ones(n),
    }
    for name in ("has_next_action", "not_terminal", "steps", "time_diff"):
        columns[name] = torch.tensor(case.get(name, [1] * n), dtype=torch.float32)
    return LoggedBatch(**columns, action_index=columns["action"])


def mask_of(possible):
    return ActionMask(torch.tensor(possible, dtype=torch.float32))


def set_table(network, table):
    """Make a network without hidden layers say `table` [states, numbers]."""
    with torch.no_grad():
        network.advantage.layers[0].weight.copy_(torch.tensor(table, dtype=torch.float32).flatten(1).T)
        network.advantage.layers[0].bias.zero_()


@pytest.fixture
def learner(tmp_path):
    """Makes one whose networks are the tables of a case."""

    def made(case, *, estimate=False):
        columns = made_data.discrete_columns(10, state_size=2)
        dataset = Dataset.open(made_data.write(tmp_path / "data", columns, actions=ACTIONS))
        config = OfflineDQNConfig(**case["config"], estimate=estimate)
        run = OfflineRun(data="any", algorithm=config, network=ScoreNetworkConfig(hidden=()))
        dqn = OfflineDQN(run, policy_for(run, dataset), Comm(World(), device="cpu"))
        set_table(dqn.scores, case["online"])
        set_table(dqn.target.networks[0], case.get("target", case["online"]))
        if "behaviour" in case:
            set_table(dqn.constrained.behaviour, np.log(case["behaviour"]))
        return dqn

    return made


def told(dqn, batch):
    """What the loss tells of each row: `[weights, of Q..., of others...]`."""
    return torch.stack([dqn.loss(batch.rows(i, 1), batch.rows(i, 1))[1] for i in range(len(batch.index))])


@cases("targets")
def test_target_table(case, learner):
    batch = batch_of(case)
    found = told(learner(case), batch)
    learned = case.get("learned", [1] * len(batch.index))
    assert found[:, 0].tolist() == [1] * len(learned)
    assert found[:, 1].tolist() == learned
    assert found[:, 4].tolist() == [wanted or 0 for wanted in case["wanted"]]


@cases("losses")
def test_loss_table(case, learner):
    dqn, batch = learner(case), batch_of(case)
    found = told(dqn, batch)
    total, sums = dqn.loss(batch, batch)
    torch.testing.assert_close(sums, found.sum(0))
    columns = {2: "wanted", 3: "q", 5: "error", 6: "conservative"}
    for column, name in columns.items():
        if name in case:
            np.testing.assert_allclose(found[:, column], case[name], rtol=1e-6, atol=1e-7, err_msg=name)
    alpha = case["config"].get("cql_alpha", 0)
    whole = sum(case["wanted"]) + alpha * sum(case.get("conservative", []))
    assert total.item() == pytest.approx(whole, rel=1e-6)


def test_padding_has_no_weight(learner):
    case = TABLES["losses"][0]
    dqn, batch = learner(case), batch_of(case)
    batch.weight[1] = 0
    total, sums = dqn.loss(batch, batch)
    assert (total.item(), sums[:4].tolist()) == (4.5, [1, 1, 4.5, 1])


@cases("imitation")
def test_imitation_table(case):
    batch = batch_of(case)
    logits = torch.tensor(np.log(case["weights"]), dtype=torch.float32).expand(len(batch.index), 3)
    loss = imitation(logits, batch, case["smoothing"])
    np.testing.assert_allclose(loss, [-math.log(p) for p in case["likelihood"]], rtol=1e-6)


@cases("outcomes")
def test_outcome_table(case, learner):
    dqn, batch = learner(case, estimate=True), batch_of(case)
    first = torch.zeros(2, 3, 2)
    set_table(dqn.heads.reward.network, first.tolist())
    set_table(dqn.heads.value.network, first.tolist())
    set_table(dqn.target.networks[1].network, case["value"])
    outcome = np.array([case["reward"], case["metric"]]).T
    found = told(dqn, batch)  # the models say 0: their loss is half the mean square of what they should say
    np.testing.assert_allclose(found[:, -2], (outcome**2).mean(1) / 2, rtol=1e-6)
    np.testing.assert_allclose(found[:, -1], (np.array(case["wanted"]) ** 2).mean(1) / 2, rtol=1e-6)


def test_models_learn_only_outcomes_of_logged_action(learner):
    """Not of the others: a gradient reaches the two numbers of one action alone."""
    case = TABLES["outcomes"][0] | {"action": [1, 1]}
    dqn, batch = learner(case, estimate=True), batch_of(case)
    choices = batch.possible_next_actions
    losses = outcome_losses(dqn.heads, dqn.target.networks[1], batch, choices, torch.zeros(2, 3), dqn.config)
    sum(loss.sum() for loss in losses).backward()
    for network in (dqn.heads.reward.network, dqn.heads.value.network):
        reached = network.advantage.layers[0].bias.grad.view(3, 2) != 0
        assert reached.tolist() == [[False, False], [True, True], [False, False]]
