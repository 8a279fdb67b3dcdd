"""Logs with impossible actions: learning, acting, evaluation and exported files exclude the same actions."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

import made_data
from lockstep import World
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.session.offline.estimate import estimate
from lockstep.session.offline.session import OfflineSession
from lockstep.torch.comm import Comm
from lockstep.torch.deploy.exported_file import SUFFIXES, run_program
from lockstep.torch.deploy.offline_export import export
from lockstep.torch.deploy.onnx_model import run_onnx
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.networks import LEFT_OUT
from offline_policies import draws, part, policy_for
from quick import others_slow

ALGORITHMS = {
    "dqn": OfflineDQNConfig(dueling=True),
    "dqn, softmax": OfflineDQNConfig(policy="softmax", temperature=0.3),
    "bcq": OfflineDQNConfig(bcq_threshold=0.7),
    "bcq, softmax": OfflineDQNConfig(bcq_threshold=0.7, policy="softmax", temperature=0.3),
    "cloning": CloningConfig(),
}
FAVOURITE = 2
"""The action of `favoured` that is taken wherever it is possible."""


def favoured(path, rows=600):
    """One decision each: action 2 is not possible in a fifth of the states and always taken elsewhere.

    Where it is not possible, the log takes 0 and 1 alike, and 1 gives more.
    """
    columns = made_data.discrete_columns(rows, state_size=3, metrics=0)
    random = np.random.default_rng(0)
    blocked = np.arange(rows) % 5 == 0
    action = np.where(blocked, random.integers(2, size=rows), FAVOURITE).astype(np.int32)
    mask = np.ones((rows, 3), np.uint8)
    mask[blocked, FAVOURITE] = 0
    columns["state"][:, 2] = blocked
    each, zeros = np.arange(rows), np.zeros(rows, np.uint8)
    columns |= {"trajectory": each, "sequence_number": 0 * each, "continues": zeros, "terminal": zeros + 1}
    columns |= {"action": action, "possible_actions": mask, "possible_next_actions": 0 * mask}
    columns |= {"reward": np.array([0.0, 1.0, 0.5], np.float32)[action]}
    columns |= {"next_action": np.full(rows, -1, np.int32), "propensity": np.where(blocked, 0.5, 1).astype(np.float32)}
    return Dataset.open(made_data.write(path, columns))


def policy(dataset, algorithm, seed=1):
    """A policy whose scores, and the behaviour model's, are far apart."""
    algo = "bc" if isinstance(algorithm, CloningConfig) else "dqn"
    run = OfflineRun(data="any", algo=algo, algorithm=algorithm, network=ScoreNetworkConfig(hidden=(8,)))
    made = policy_for(run, dataset, seed)
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter.mul_(2.0)
    return made, run


def chosen(made, dataset, rows=slice(None)):
    """What the policy takes [N, A], by loops over rows and over the actions that are possible there."""
    state = torch.from_numpy(dataset.column("state")[np.arange(len(dataset))[rows]])
    possible = dataset.column("possible_actions")[np.arange(len(dataset))[rows]]
    config, network, found = made.policy_spec.algorithm, made.network, []
    with torch.no_grad():
        constrained = getattr(config, "bcq_threshold", None) is not None
        scores = (network.scores if constrained else network)(state)
        behaviour = network.behaviour(state) if constrained else None
    for i, mask in enumerate(possible):
        actions = np.flatnonzero(mask)
        if behaviour is not None:
            p = behaviour[i][actions].softmax(0).numpy()
            actions = actions[p / p.max() >= config.bcq_threshold]
        q = scores[i][actions]
        pi = (q / config.temperature).softmax(0) if config.policy == "softmax" else torch.eye(len(q))[q.argmax()]
        found.append(np.zeros(mask.shape))
        found[-1][actions] = pi
    return np.array(found)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Every action is impossible now and then."""
    return Dataset.open(made_data.discrete(tmp_path_factory.mktemp("made") / "data", 400))


def test_bcq_chooses_only_possible_actions(tmp_path):
    """As the target of Q-learning does: the log's favourite is that of the actions that are possible."""
    dataset = favoured(tmp_path / "data")
    config = OfflineDQNConfig(bcq_threshold=0.3, batch_size=64, learning_rate=0.01, max_grad_norm=10.0)
    run = OfflineRun(data="any", algorithm=config, network=ScoreNetworkConfig(hidden=(16,)))
    dqn = OfflineDQN(run, policy_for(run, dataset), Comm(World(), device="cpu"))
    for step in range(200):
        dqn.update([part(dataset, draws(len(dataset), [64], seed=step)[0])], np.zeros((1, 0)), Progress(64 * 200))
    state = torch.from_numpy(dataset.column("state")[np.arange(len(dataset))])
    possible = torch.from_numpy(dataset.column("possible_actions")[np.arange(len(dataset))].astype(np.float32))
    blocked = possible[:, FAVOURITE] == 0
    with torch.no_grad():
        q = dqn.scores(state)
        taken = dqn.policy.probability(dqn.policy.scores(state, possible), possible)
    assert (q[blocked, 1] > q[blocked, 0]).all(), "Q has not learned"
    assert (taken[blocked, 1] == 1).all(), "takes an action that Q does not prefer among the possible ones"
    assert (taken[~blocked, FAVOURITE] == 1).all(), "the log takes nothing else there"


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_excluded_actions_have_score_left_out(dataset, algorithm):
    made, _ = policy(dataset, algorithm)
    state = torch.from_numpy(dataset.column("state")[np.arange(len(dataset))])
    possible = torch.from_numpy(dataset.column("possible_actions")[np.arange(len(dataset))].astype(np.float32))
    with torch.no_grad():
        scores = made.scores(state, possible)
    wanted = chosen(made, dataset)
    assert (scores[possible == 0] == LEFT_OUT).all()
    assert ((scores == LEFT_OUT) & (possible > 0)).any() == (getattr(algorithm, "bcq_threshold", None) is not None)
    np.testing.assert_allclose(made.probability(scores, possible), wanted, atol=1e-6)
    if algorithm.policy == "greedy":
        assert (scores.argmax(-1).numpy() == wanted.argmax(-1)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_estimates_use_probabilities_of_policy(dataset, algorithm):
    made, run = policy(dataset, algorithm)
    with Comm(World(), device="cpu") as comm:
        told = estimate(PolicyScorer(made, run), dataset, comm, run).to_dict()
    pi, column = chosen(made, dataset), lambda name: dataset.column(name)[np.arange(len(dataset))]
    rho = pi[np.arange(len(dataset)), column("action")] / column("propensity")
    found = told["estimates"]["reward"]["decision_ips"]["value"]
    assert found == pytest.approx((rho * column("reward")).mean(), rel=1e-4)


@pytest.mark.parametrize("name", others_slow(ALGORITHMS, "bcq, softmax"))
@pytest.mark.parametrize("to", others_slow(SUFFIXES, "torch"))
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_exported_file_chooses_same_actions(dataset, tmp_path, to, name):
    algorithm = ALGORITHMS[name]
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made, _ = policy(dataset, algorithm)
    done = export(made, dataset, tmp_path / f"policy{SUFFIXES[to]}", to)
    assert (done.rows, done.num_same_action) == (400, 400)
    run = run_onnx if to == "onnx" else run_program
    value = dataset.column("state")[np.arange(400)].astype(np.float64)
    possible = dataset.column("possible_actions")[np.arange(400)] != 0
    for rows in (slice(0, 400), slice(7, 8)):
        told = {"state_value": value[rows], "state_presence": np.ones(value[rows].shape, np.bool_)}
        out = run(done.path, told | {"possible_actions": possible[rows]})
        wanted = chosen(made, dataset, rows)
        assert possible[rows][np.arange(len(wanted)), out["action"]].all(), "chooses an action that is not possible"
        np.testing.assert_allclose(out["probability"], wanted, atol=1e-5)
        if algorithm.policy == "greedy":
            assert (out["action"] == wanted.argmax(-1)).all()
    out = run(done.path, {**told, "possible_actions": np.zeros((1, 3), np.bool_)})
    assert (out["probability"] == 0).all(), "a state in which nothing is possible"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"has_impossible_actions": True}, True),
        ({"has_impossible_actions": False}, False),
        ({"has_impossible_actions": None}, True),
        ({"has_impossible_actions": None, "has_possible_actions": False}, False),
    ],
)
def test_possible_actions_is_input_only_if_log_restricts_actions(dataset, said, wanted):
    """Data of a version that did not count them have a list of possible actions or none."""
    info = replace(dataset.info, **said)
    assert info.restricts_actions == wanted
    plain = info.to_dict()
    if said["has_impossible_actions"] is None:
        del plain["has_impossible_actions"]
    assert DatasetInfo.from_dict(plain) == info


def test_restriction_on_another_node_counts(dataset):
    """Machines may hold parts of a log; the policy file is written by one of them."""
    session = object.__new__(OfflineSession)
    session.run = OfflineRun(data=str(dataset.path))
    session.world, session._spec, session.summary = World(), None, {}
    session.journal = SimpleNamespace(say=print, warn=print)
    for others in (False, True):
        gather = (lambda o: lambda one, tag: [one, ("", o)] if tag == "data" else [one])(others)
        session.comm = SimpleNamespace(gather_object=gather)
        with patch.object(DatasetInfo, "restricts_actions", property(lambda info: bool(info.has_impossible_actions))):
            session.open_data()
            assert session.policy_spec.info.restricts_actions == others


def test_all_actions_are_possible_without_input(dataset, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made, _ = policy(dataset, OfflineDQNConfig())
    made.policy_spec = replace(made.policy_spec, info=replace(made.info, has_impossible_actions=False))
    done = export(made, dataset, tmp_path / "policy.onnx", "onnx")
    value = dataset.column("state")[np.arange(50)].astype(np.float64)
    out = run_onnx(done.path, {"state_value": value, "state_presence": np.ones(value.shape, np.bool_)})
    with torch.no_grad():
        scores = made.network(torch.from_numpy(value).float())
    np.testing.assert_allclose(out["scores"], scores, rtol=1e-5, atol=1e-5)
