"""Parametric DQN against a plain reference in float64: lists padded to the longest, a loop over networks, torch's Adam.

Two shards live on one rank, the last rows of a minibatch only fill it up. Of the code under test only the prepared rows
and the first parameters are taken over.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.comm import Comm
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import World
from quick import others_slow

ROWS, BATCH, STEPS, SHARDS, PADDING = 300, 24, 50, 2, 3
BASE = OfflineDQNConfig(batch_size=BATCH, learning_rate=3e-3, gamma=0.9, target_rate=0.1, temperature=0.5)
VARIANTS = {
    "double": {},
    "max": {"double": False, "estimate": False},
    "sarsa": {"maxq": False, "loss": "huber"},
    "dueling cql": {"dueling": True, "cql_alpha": 0.7, "max_grad_norm": 0.5},
    "softmax n-step": {"policy": "softmax", "n_step": 3, "double": False},
    "time": {"use_time_diff": True, "time_diff_unit": 2.0, "policy": "softmax", "maxq": False, "cql_alpha": 0.2},
    "bce": {"loss": "bce", "gamma": 0.0},
    "sgd": {"optimizer": "sgd", "l2_decay": 0.01, "learning_rate": 0.02, "learning_rate_schedule": "linear"},
    "decay": {"l2_decay": 0.1, "learning_rate_schedule": "exponential", "learning_rate_decay": 0.5},
}
QUICK = ("double", "sarsa", "dueling cql", "softmax n-step")


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on threads that tests beside share take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Plain(nn.Module):
    """[s; a] through layers; and s alone, where there are two streams."""

    def __init__(self, network):
        super().__init__()
        self.bodies = nn.ModuleList(
            nn.Sequential(*[m for layer in mlp.layers for m in (copied(layer), nn.ReLU())][:-1])
            for mlp in (network.body, network.value)
            if mlp is not None
        )

    def forward(self, state, action):
        """[..., S] and [..., K] to [..., O]."""
        told = self.bodies[0](torch.cat([state, action], -1))
        return told if len(self.bodies) == 1 else told + self.bodies[1](state)


def copied(layer):
    made = nn.Linear(layer.in_features, layer.out_features, dtype=torch.float64)
    made.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    return made


class Reference:
    """Networks, targets and one optimizer for each network."""

    def __init__(self, policy, c):
        self.c = c
        self.networks = {"q": Plain(policy.network)}
        if policy.heads is not None:
            self.networks |= {"value": Plain(policy.heads.value), "reward": Plain(policy.heads.reward)}
        self.targets = {
            name: Plain(of)
            for name, of in (("q", policy.network), ("value", policy.heads and policy.heads.value))
            if of
        }
        kind = torch.optim.Adam if c.optimizer == "adam" else torch.optim.SGD
        self.optimizers = {
            name: kind(network.parameters(), lr=c.learning_rate, weight_decay=c.l2_decay)
            for name, network in self.networks.items()
        }

    def of_next(self, network, rows):
        """Of each next candidate [N, L, O], and where there is one [N, L]."""
        lists = padded(rows.possible_next_actions)
        state = torch.from_numpy(rows.next_state).double().unsqueeze(1).expand(-1, lists.shape[1], -1)
        exists = ~lists.isnan().any(-1)
        return network(state, lists.nan_to_num()), exists

    def discount(self, rows):
        exponent = rows.time_diff / self.c.time_diff_unit if self.c.use_time_diff else rows.steps
        return torch.from_numpy(rows.not_terminal * self.c.gamma**exponent).double()

    def target(self, rows):
        """y of each row."""
        with torch.no_grad():
            if self.c.maxq:
                theirs, exists = self.of_next(self.targets["q"], rows)
                judge = self.of_next(self.networks["q"], rows)[0] if self.c.double else theirs
                best = judge[..., 0].masked_fill(~exists, -torch.inf).argmax(1)
                following = theirs[torch.arange(len(best)), best, 0]
            else:
                state, action = (torch.from_numpy(x).double() for x in (rows.next_state, rows.next_action))
                following = self.targets["q"](state, action)[:, 0]
            return torch.from_numpy(rows.reward).double() + self.discount(rows) * following

    def losses(self, rows, one):
        """The mean loss of each network, by its name."""
        c, mine = self.c, self.networks
        weight = torch.from_numpy(rows.weight).double()
        state, action = (torch.from_numpy(x).double() for x in (rows.state, rows.action))
        q, y = mine["q"](state, action)[:, 0], self.target(rows)
        if c.loss == "bce":
            row = -y * q.sigmoid().log() - (1 - y) * (1 - q.sigmoid()).log()
        else:
            row = 0.5 * (y - q) ** 2 if c.loss == "mse" else nn.functional.smooth_l1_loss(q, y, reduction="none")
        if c.cql_alpha:
            lists = padded(rows.possible_actions)
            all_q = mine["q"](state.unsqueeze(1).expand(-1, lists.shape[1], -1), lists.nan_to_num())[..., 0]
            row = row + c.cql_alpha * (all_q.masked_fill(lists.isnan().any(-1), -torch.inf).logsumexp(1) - q)
        known = weight if c.maxq else weight * torch.from_numpy((rows.has_next_action > 0) | (rows.not_terminal == 0))
        found = {"q": (known * row).sum() / known.sum()}
        if c.estimate:
            outcome = torch.from_numpy(np.concatenate([one.reward[:, None], one.metrics], 1)).double()
            with torch.no_grad():
                values, exists = self.of_next(self.targets["value"], one)
                scores = self.of_next(mine["q"], one)[0][..., 0].masked_fill(~exists, -1e30)
                greedy = nn.functional.one_hot(scores.argmax(1), scores.shape[1]).double()
                policy = greedy if c.policy == "greedy" else (scores / c.temperature).softmax(1)
                goal = outcome + self.discount(one).unsqueeze(1) * (policy.unsqueeze(2) * values).sum(1)
            for name, wanted in (("reward", outcome), ("value", goal)):
                row = 0.5 * ((mine[name](state, action) - wanted) ** 2).mean(1)
                found[name] = (weight * row).sum() / weight.sum()
        return found

    def step(self, rows, one, fraction, epoch):
        c = self.c
        factor = {"linear": 1 - fraction, "exponential": c.learning_rate_decay**epoch}.get(
            c.learning_rate_schedule, 1.0
        )
        for name, loss in self.losses(rows, one).items():
            optimizer = self.optimizers[name]
            optimizer.param_groups[0]["lr"] = c.learning_rate * factor
            optimizer.zero_grad()
            loss.backward()
            if name == "q" and c.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(self.networks[name].parameters(), c.max_grad_norm)
            optimizer.step()
        for name, target in self.targets.items():
            for theirs, mine in zip(target.parameters(), self.networks[name].parameters(), strict=True):
                theirs.data += c.target_rate * (mine.data - theirs.data)


def padded(lists):
    """[N, L, K] of lists, NaN where there is no candidate."""
    parts = np.split(lists.values, lists.offsets[1:-1])
    found = np.full((len(parts), max(map(len, parts)), lists.values.shape[1]), np.nan)
    for i, part in enumerate(parts):
        found[i, : len(part)] = part
    return torch.from_numpy(found)


def made(tmp_path, c):
    columns = made_data.parametric_columns(ROWS, metrics=2)
    if c.loss == "bce":
        columns["reward"] = columns["reward"].clip(0, 1)
    return Dataset.open(made_data.write(tmp_path / "data", columns))


def drawn(dataset, c, random):
    """Rows of a minibatch for each shard; the last ones only fill it up."""
    index = random.integers(ROWS, size=BATCH)
    index[-PADDING:] = 0
    found = []
    for n_step in (c.n_step, 1):
        rows = dataset.rows(index, n_step=n_step, gamma=c.gamma)
        rows.weight[-PADDING:] = 0
        found.append(rows)
    return found


@pytest.mark.parametrize("variant", others_slow(VARIANTS, *QUICK))
def test_gradient_steps_are_those_of_the_equations(tmp_path, variant):
    c = replace(BASE, **VARIANTS[variant])
    dataset = made(tmp_path, c)
    run = OfflineRun(
        data="none", algo="parametric_dqn", algorithm=c, network=ScoreNetworkConfig(hidden=(9, 5)), epochs=4
    )
    features = {"state": dataset.state_features, "action": dataset.action_features}
    about = OfflinePolicySpec(info=dataset.info, **features, network=run.network, algo=run.algo, algorithm=c)
    policy, random = ScoringPolicy(about, seed=1), np.random.default_rng(0)
    reference, progress, half = Reference(policy, c), Progress(STEPS * BATCH), BATCH // SHARDS
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        dqn = OfflineDQN(run, policy, comm, dataset.rows)
        for step in range(STEPS):
            rows, one = drawn(dataset, c, random)
            parts = [rows.between(k * half, (k + 1) * half) for k in range(SHARDS)]
            statistics = np.arange(SHARDS * 2.0).reshape(SHARDS, 2)
            told = dqn.update(parts, statistics, progress)
            assert told.tolist() == statistics.sum(0).tolist()
            reference.step(rows, one, step / STEPS, step * 4 // STEPS)
            progress.env_steps += BATCH
    pairs = [("q", policy.network)]
    if policy.heads is not None:
        pairs += [("value", policy.heads.value), ("reward", policy.heads.reward)]
    for name, network in pairs:
        assert_near(network, reference.networks[name], name)
    for name, network in zip(reference.targets, dqn.target.networks, strict=True):
        assert_near(network, reference.targets[name], f"target of {name}")


def assert_near(network, wanted, name):
    found = [p for mlp in (network.body, network.value) if mlp is not None for p in mlp.parameters()]
    for i, (mine, theirs) in enumerate(zip(found, wanted.parameters(), strict=True)):
        torch.testing.assert_close(
            mine.detach().double(), theirs.detach(), rtol=0, atol=1e-5, msg=lambda said, i=i: f"{name} {i}: {said}"
        )
