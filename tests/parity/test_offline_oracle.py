"""50 gradient steps on logged data against a plain reference, in float64: separate networks, optimizers and loops.

Of the data only columns are taken over: windows, next actions, targets and means are found anew, row by row.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import made_data
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.world import World
from offline_policies import SMALL, draws, part, policy_for
from quick import others_slow

SHARDS, ROWS, STEPS, EPOCHS = 2, 8, 50, 5
BASE = OfflineDQNConfig(
    batch_size=SHARDS * ROWS, learning_rate=3e-3, adam_eps=1e-3, gamma=0.9, target_rate=0.1, double=False
)
CLONING = CloningConfig(batch_size=SHARDS * ROWS, learning_rate=3e-3, adam_eps=1e-3, gamma=0.9, target_rate=0.1)
VARIANTS = {
    "max-q": {},
    "double dueling": {"double": True, "dueling": True, "loss": "huber", "max_grad_norm": 0.3},
    "sarsa": {"maxq": False, "cql_alpha": 0.5, "max_grad_norm": 0.5},
    "n-step": {"n_step": 3, "double": True, "policy": "softmax"},
    "time": {"use_time_diff": True, "time_diff_unit": 2.0, "learning_rate_schedule": "linear"},
    "boosted": {"reward_boost": {"right": 0.5}, "optimizer": "sgd", "l2_decay": 0.1, "learning_rate": 0.02},
    "bcq": {"bcq_threshold": 0.8, "double": True, "l2_decay": 0.01},
    "bcq softmax": {"bcq_threshold": 0.6, "policy": "softmax", "cql_alpha": 1.0},
    "bce": {"loss": "bce", "gamma": 0.0, "learning_rate_schedule": "exponential", "learning_rate_decay": 0.7},
    "no estimates": {"estimate": False, "max_grad_norm": 0.3},
    "cloning": {},
    "cloning smoothed": {"label_smoothing": 0.2, "policy": "greedy", "estimate": True},
}
QUICK = ("double dueling", "sarsa", "n-step", "bcq softmax", "bce", "cloning smoothed")


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on threads that tests beside share take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Reference:
    """Networks by name, each with an optimizer of its own."""

    def __init__(self, policy, config, columns, names):
        self.c, self.data = config, columns
        state = {name: value.double() for name, value in policy.state_dict().items()}
        roots = {"scores": "network.scores." if "network.scores.body.layers.0.weight" in state else "network."}
        roots |= {"behaviour": "network.behaviour.", "reward": "heads.reward.network.", "value": "heads.value.network."}
        self.nets, self.roots = {}, roots
        for name, root in roots.items():
            found = {k.removeprefix(root): v.clone() for k, v in state.items() if k.startswith(root)}
            if found:
                self.nets[name] = {k: v.requires_grad_() for k, v in found.items()}
        self.target = {n: {k: v.detach().clone() for k, v in net.items()} for n, net in self.nets.items()}
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        extra = {"eps": config.adam_eps} if config.optimizer == "adam" else {}
        self.optimizers = {
            n: kind(net.values(), lr=config.learning_rate, weight_decay=config.l2_decay, **extra)
            for n, net in self.nets.items()
        }
        self.boost = [getattr(config, "reward_boost", {}).get(name, 0.0) for name in names]

    def out(self, net, i, *, following=False):
        """What a network says of the state of row i, or of the state after it."""
        x = torch.tensor(self.data["next_state" if following else "state"][i]).double()
        x = (net["body.layers.0.weight"] @ x + net["body.layers.0.bias"]).relu()

        def stream(name):
            h = (net[f"{name}.layers.0.weight"] @ x + net[f"{name}.layers.0.bias"]).relu()
            return net[f"{name}.layers.1.weight"] @ h + net[f"{name}.layers.1.bias"]

        advantage = stream("advantage")
        return stream("value") + advantage - advantage.mean() if "value.layers.0.weight" in net else advantage

    def allowed(self, i):
        """Which actions may follow row i."""
        actions = [a for a, possible in enumerate(self.data["possible_next_actions"][i]) if possible]
        if getattr(self.c, "bcq_threshold", None) is not None:
            p = self.out(self.nets["behaviour"], i, following=True)[actions].softmax(0)
            actions = [a for a, of in zip(actions, p, strict=True) if of / p.max() >= self.c.bcq_threshold]
        return actions

    def window(self, i, n):
        """`(R, metrics, last row, rewards)` of at most n decisions from row i on."""
        reward, metrics, k = 0.0, 0.0, 0
        while True:
            reward += self.c.gamma**k * float(self.data["reward"][i + k])
            metrics = metrics + self.c.gamma**k * torch.tensor(self.data["metrics"][i + k]).double()
            k += 1
            if k == n or not self.data["continues"][i + k - 1]:
                return reward, metrics, i + k - 1, k

    def discount(self, i, last, steps):
        if self.data["terminal"][last]:
            return 0.0
        if getattr(self.c, "use_time_diff", False):
            return self.c.gamma ** (float(self.data["time_diff"][i]) / self.c.time_diff_unit)
        return self.c.gamma**steps

    def q_loss(self, i):
        """Of one row; None where SARSA has no next action."""
        c, q = self.c, self.out(self.nets["scores"], i)
        action = int(self.data["action"][i])
        reward, _, last, steps = self.window(i, c.n_step)
        y = reward + self.boost[action]
        if not self.data["terminal"][last]:
            if not c.maxq and self.data["next_action"][last] < 0:
                return None
            theirs = self.out(self.target["scores"], last, following=True)
            mine = self.out(self.nets["scores"], last, following=True) if c.double else theirs
            best = max(self.allowed(last), key=mine.tolist().__getitem__) if c.maxq else self.data["next_action"][last]
            y = y + self.discount(i, last, steps) * theirs[best].detach()
        if c.loss == "bce":
            loss = -(y * q[action].sigmoid().log() + (1 - y) * (1 - q[action].sigmoid()).log())
        else:
            error = (y - q[action]).abs()
            loss = error**2 / 2 if c.loss == "mse" or error < 1 else error - 0.5
        possible = [a for a, can in enumerate(self.data["possible_actions"][i]) if can]
        return loss + c.cql_alpha * (q[possible].exp().sum().log() - q[action])

    def imitation_loss(self, i, net, smoothing=0.0):
        possible = [a for a, can in enumerate(self.data["possible_actions"][i]) if can]
        p = self.out(net, i)[possible].softmax(0)
        wanted = torch.full_like(p, smoothing / len(possible))
        wanted[possible.index(int(self.data["action"][i]))] += 1 - smoothing
        return -(wanted * p.log()).sum()

    def head_losses(self, i):
        """Of the models of reward and value."""
        reward, metrics, _, _ = self.window(i, 1)
        outcome, action = torch.tensor([reward, *metrics]).double(), int(self.data["action"][i])
        goal, o = outcome, len(outcome)
        if not self.data["terminal"][i]:
            actions = self.allowed(i)
            scores = self.out(self.nets["scores"], i, following=True)[actions]
            pi = (scores / self.c.temperature).softmax(0)
            if self.c.policy == "greedy":
                pi = torch.eye(len(actions)).double()[scores.argmax()]
            theirs = self.out(self.target["value"], i, following=True).view(-1, o)[actions]
            goal = outcome + self.discount(i, i, 1) * (pi @ theirs).detach()
        for name, y in (("reward", outcome), ("value", goal)):
            told = self.out(self.nets[name], i).view(-1, o)[action]
            yield name, ((told - y) ** 2).mean() / 2

    def losses(self, i):
        """Of row i, by network."""
        if isinstance(self.c, CloningConfig):
            yield "scores", self.imitation_loss(i, self.nets["scores"], self.c.label_smoothing)
        elif (loss := self.q_loss(i)) is not None:
            yield "scores", loss
        if "behaviour" in self.nets:
            yield "behaviour", self.imitation_loss(i, self.nets["behaviour"])
        if "value" in self.nets:
            yield from self.head_losses(i)

    def step(self, index, rate):
        """One step of every optimizer, on rows that all weigh the same."""
        sums, counts = dict.fromkeys(self.nets, 0.0), dict.fromkeys(self.nets, 0)
        for i in index:
            for name, loss in self.losses(i):
                sums[name], counts[name] = sums[name] + loss, counts[name] + 1
        for name, optimizer in self.optimizers.items():
            optimizer.zero_grad()
            (sums[name] / counts[name]).backward()
            if name == "scores" and self.c.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.nets[name].values(), self.c.max_grad_norm)
            optimizer.param_groups[0]["lr"] = rate
        for optimizer in self.optimizers.values():  # after all gradients: losses look at each other's networks
            optimizer.step()
        with torch.no_grad():
            for name, net in self.nets.items():
                for key, value in net.items():
                    self.target[name][key] += self.c.target_rate * (value - self.target[name][key])
        return {name: total.item() / counts[name] for name, total in sums.items()}


def rate_of(c, step, total):
    if c.learning_rate_schedule == "exponential":
        return c.learning_rate * c.learning_rate_decay ** (step * EPOCHS // total)
    return c.learning_rate * (1 - step / total if c.learning_rate_schedule == "linear" else 1)


@pytest.mark.parametrize("variant", others_slow(VARIANTS, *QUICK))
def test_gradient_steps_are_those_of_the_equations(variant, tmp_path):
    cloning = variant.startswith("cloning")
    c = replace(CLONING if cloning else BASE, **VARIANTS[variant])
    columns = made_data.discrete_columns(120, seed=3, metrics=2)
    if c.gamma == 0:
        columns["reward"] = columns["reward"].clip(0, 1)
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    run = OfflineRun(data="any", algo="bc" if cloning else "dqn", algorithm=c, network=SMALL, epochs=EPOCHS)
    policy = policy_for(run, dataset, seed=1)
    reference = Reference(policy, c, columns, dataset.info.actions)
    progress, n_step = Progress(STEPS), getattr(c, "n_step", 1)
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        learner = Cloning(run, policy, comm) if cloning else OfflineDQN(run, policy, comm, dataset.rows)
        for step in range(STEPS):
            index = draws(120, [ROWS] * SHARDS, seed=step)
            parts = [part(dataset, rows, padding=3 * k, n_step=n_step, gamma=c.gamma) for k, rows in enumerate(index)]
            learner.update(parts, np.zeros((SHARDS, 0)), progress)
            told = reference.step([*index[0], *index[1][:-3]], rate_of(c, step, STEPS))
            progress.env_steps += 1
            metrics = learner.metrics.read()
            assert metrics["optim/learning_rate"] == pytest.approx(rate_of(c, step, STEPS))
            if "reward" in told:
                assert metrics["loss/reward"] == pytest.approx(told["reward"], rel=1e-3)
                assert metrics["loss/policy_value"] == pytest.approx(told["value"], rel=1e-3)
        moved = policy.state_dict()
        assert len(reference.nets) == 1 + (0 if not c.estimate else 2) + variant.startswith("bcq")
        for name, net in reference.nets.items():
            for key, value in net.items():
                assert_near(moved[reference.roots[name] + key], value, f"{name} {key}")
        if not cloning:
            for key, value in learner.target.networks[0].state_dict().items():
                assert_near(value, reference.target["scores"][key], f"target {key}")
        if c.estimate:
            for key, value in learner.target.networks[-1].network.state_dict().items():
                assert_near(value, reference.target["value"][key], f"target value {key}")


def assert_near(value, wanted, name):
    torch.testing.assert_close(value.double(), wanted.detach(), rtol=0, atol=1e-5, msg=lambda said: f"{name}: {said}")
