"""Gradient steps on logged continuous actions against a plain reference, in float64: row by row, without a batch.

Each network has an optimizer of its own, and each critic is computed alone. Of the data only columns are taken over,
and of the learner only the random numbers of its steps.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import made_data
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.data.dataset import Dataset
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.offline.cql import ContinuousCQL
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.td3_bc import TD3BC
from lockstep.world import World, stream
from offline_policies import SMALL, draws, part, policy_for
from quick import others_slow

SHARDS, ROWS, STEPS, PADDING, SEED = 2, 4, 10, 1, 5
SAME = {"batch_size": SHARDS * ROWS, "learning_rate": 3e-3, "adam_eps": 1e-3, "gamma": 0.9, "target_rate": 0.1}
VARIANTS = {
    "iql": ("iql", IQLConfig(policy="sampled", max_weight=1.5, **SAME)),
    "iql one critic": ("iql", IQLConfig(num_critics=1, expectile=0.9, beta=1.0, reward_scale=0.5, **SAME)),
    "td3_bc": ("td3_bc", TD3BCConfig(noise_clip=0.2, reward_scale=2.0, **SAME)),
    "td3_bc every step": ("td3_bc", TD3BCConfig(policy_delay=1, alpha=0.5, num_critics=3, **SAME)),
    "cql": ("cql", CQLConfig(num_sampled_actions=2, cql_gap=0.5, cql_alpha=2.0, **SAME)),
    "cql fixed": ("cql", CQLConfig(num_sampled_actions=3, target_entropy=-0.3, policy="sampled", **SAME)),
}
CLASSES = {"iql": IQL, "td3_bc": TD3BC, "cql": ContinuousCQL}


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on threads that tests beside share take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise_of(shard, step, row, width, normals, uniforms=0):
    """The random numbers of one row of a shard's part: standard normal, and uniform in [-1, 1)."""
    generator = stream(SEED, f"offline noise {step}", shard)
    normal = generator.standard_normal((ROWS, normals, width), dtype=np.float32)
    uniform = 2 * generator.random((ROWS, uniforms, width), dtype=np.float32) - 1
    return torch.tensor(normal[row]).double(), torch.tensor(uniform[row]).double()


def layers(x, net):
    """Linear layers with ReLU between; the parameters in order of weight and bias."""
    for i in range(0, len(net), 2):
        x = net[i] @ (x if i == 0 else x.relu()) + net[i + 1]
    return x


class Reference:
    """Networks by name, each with an optimizer of its own."""

    def __init__(self, policy, config, columns):
        self.c, self.data = config, columns
        state = {name: value.detach().double().clone() for name, value in policy.state_dict().items()}
        self.nets = {"actor": self._net(state, "network.actor.body.layers.")}
        for k in range(config.num_critics):
            weights = [state[f"network.critics.layers.{i}.weight"][k] for i in range(3)]
            biases = [state[f"network.critics.layers.{i}.bias"][k] for i in range(3)]
            self.nets[f"critic {k}"] = [p for pair in zip(weights, biases, strict=True) for p in pair]
        for name, root in (
            ("value", "network.value."),
            ("reward model", "heads.reward.body."),
            ("value model", "heads.value.body."),
        ):
            if f"{root}layers.0.weight" in state:
                self.nets[name] = self._net(state, f"{root}layers.")
        for name in ("log_std", "log_alpha", "log_cql_alpha"):
            key = f"network.actor.{name}" if name == "log_std" else f"network.loss_weights.{name}"
            if key in state:
                self.nets[name] = [state[key]]
        self.nets = {name: [p.clone().requires_grad_() for p in net] for name, net in self.nets.items()}
        self.target = {name: [p.detach().clone() for p in net] for name, net in self.nets.items()}
        self.optimizers = {
            name: torch.optim.Adam(net, lr=config.learning_rate, eps=config.adam_eps) for name, net in self.nets.items()
        }

    @staticmethod
    def _net(state, root):
        count = sum(name.startswith(root) for name in state) // 2
        return [state[f"{root}{i}.{kind}"] for i in range(count) for kind in ("weight", "bias")]

    def column(self, name, i):
        return torch.tensor(self.data[name][i]).double()

    def q(self, nets, state, action):
        """Q of every critic."""
        return torch.stack(
            [layers(torch.cat([state, action]), nets[f"critic {k}"])[0] for k in range(self.c.num_critics)]
        )

    def discount(self, i):
        return 0.0 if self.data["terminal"][i] else self.c.gamma

    def td_losses(self, i, next_q):
        y = self.c.reward_scale * float(self.data["reward"][i]) + self.discount(i) * next_q
        q = self.q(self.nets, self.column("state", i), self.column("action", i))
        return {f"critic {k}": (y - q[k]) ** 2 / 2 for k in range(len(q))}, q

    def model_losses(self, i, next_action):
        """Of the models of reward and of the policy's value."""
        outcome = torch.tensor([self.data["reward"][i], *self.data["metrics"][i]]).double()
        following = layers(torch.cat([self.column("next_state", i), next_action]), self.target["value model"]).detach()
        goals = {"reward model": outcome, "value model": outcome + self.discount(i) * following}
        x = torch.cat([self.column("state", i), self.column("action", i)])
        return {name: ((layers(x, self.nets[name]) - goal) ** 2).mean() / 2 for name, goal in goals.items()}

    def gaussian(self, net, state):
        """Mean and log deviation of CQL's policy."""
        mean, log_std = layers(state, net).chunk(2)
        return mean, log_std.clamp(-20, 2)

    def squashed(self, parameters, noise):
        """tanh of a draw, and its log-density by the change of variables."""
        mean, log_std = parameters
        u = mean + log_std.exp() * noise
        log_normal = -(((u - mean) / log_std.exp()) ** 2) / 2 - log_std - math.log(2 * math.pi) / 2
        return u.tanh(), (log_normal - torch.log(1 - u.tanh() ** 2)).sum()

    # -- losses by network ---------------------------------------------------------------------------------------------

    def iql(self, i, shard, step, row):
        c, state, action, following = (
            self.c,
            self.column("state", i),
            self.column("action", i),
            self.column("next_state", i),
        )
        v = layers(state, self.nets["value"])[0]
        losses, _ = self.td_losses(i, layers(following, self.nets["value"])[0].detach())
        u = self.q(self.target, state, action).min() - v
        losses["value"] = (c.expectile if u > 0 else 1 - c.expectile) * u**2
        weight = min(math.exp(c.beta * u.item()), c.max_weight)
        normal = torch.distributions.Normal(layers(state, self.nets["actor"]).tanh(), self.nets["log_std"][0].exp())
        losses["actor"] = -weight * normal.log_prob(action).sum()
        next_action = layers(following, self.nets["actor"]).tanh().detach()
        if c.policy == "sampled":
            noise, _ = noise_of(shard, step, row, len(action), 1)
            next_action = (next_action + self.nets["log_std"][0].detach().exp() * noise[0]).clamp(-1, 1)
        return losses | self.model_losses(i, next_action)

    def td3_bc(self, i, shard, step, row):
        c, following = self.c, self.column("next_state", i)
        noise, _ = noise_of(shard, step, row, self.data["action"].shape[1], 1)
        smoothing = (c.target_noise * noise[0]).clamp(-c.noise_clip, c.noise_clip)
        next_action = (layers(following, self.target["actor"]).tanh() + smoothing).clamp(-1, 1)
        losses, _ = self.td_losses(i, self.q(self.target, following, next_action).min())
        return losses | self.model_losses(i, layers(following, self.nets["actor"]).tanh().detach())

    def cql(self, i, shard, step, row):
        c, state, following = self.c, self.column("state", i), self.column("next_state", i)
        width, count = self.data["action"].shape[1], c.num_sampled_actions
        normal, uniform = noise_of(shard, step, row, width, 2 + 2 * count, count)
        here, there = self.gaussian(self.nets["actor"], state), self.gaussian(self.nets["actor"], following)
        next_action = self.squashed(there, normal[1])[0].detach()
        losses, q = self.td_losses(i, self.q(self.target, following, next_action).min())
        sampled = [(action, torch.tensor(-width * math.log(2))) for action in uniform]
        sampled += [self.squashed(here, noise) for noise in normal[2 : 2 + count]]
        sampled += [self.squashed(there, noise) for noise in normal[2 + count :]]
        terms = [self.q(self.nets, state, a.detach()) - p.detach() for a, p in sampled]
        penalty = torch.stack(terms).exp().sum(0).log() - q
        learned = "log_cql_alpha" in self.nets
        alpha = self.nets["log_cql_alpha"][0].exp() if learned else torch.tensor(c.cql_alpha)
        losses = {name: loss + alpha.detach() * penalty[k] for k, (name, loss) in enumerate(losses.items())}
        if learned:
            losses["log_cql_alpha"] = -alpha * (penalty.mean().detach() - c.cql_gap)
        action, log_prob = self.squashed(here, normal[0])
        log_alpha, target = self.nets["log_alpha"][0], -width if c.target_entropy is None else c.target_entropy
        losses["actor"] = log_alpha.detach().exp() * log_prob - self.q(self.nets, state, action).min()
        losses["log_alpha"] = -log_alpha * (log_prob.detach() + target)
        if c.policy == "greedy":
            next_action = there[0].tanh().detach()
        return losses | self.model_losses(i, next_action)

    def step(self, algo, index, step):
        """One step of every optimizer on the rows of all shards; `index` has the real rows of each shard."""
        rows = [(i, shard, row) for shard, part in enumerate(index) for row, i in enumerate(part)]
        found = [getattr(self, algo)(i, shard, step, row) for i, shard, row in rows]
        shared = {"actor": ("actor", "log_std")}  # a loss of two parts of the policy
        gradients = {}
        for name in found[0]:
            mean = sum(losses[name] for losses in found) / len(found)
            owners = [owner for owner in shared.get(name, (name,)) if owner in self.nets]
            parameters = [p for owner in owners for p in self.nets[owner]]
            found_here = torch.autograd.grad(mean, parameters, retain_graph=True)
            gradients |= dict(zip(parameters, found_here, strict=True))
        self._apply(gradients)
        if algo == "td3_bc":
            if (step + 1) % self.c.policy_delay:
                return
            self._step_of_td3_policy([i for i, _, _ in rows])
        with torch.no_grad():
            for name, net in self.nets.items():
                for target, p in zip(self.target[name], net, strict=True):
                    target += self.c.target_rate * (p - target)

    def _step_of_td3_policy(self, rows):
        """By the critics after their step, normalized by the mean over all rows of all shards."""
        states = [self.column("state", i) for i in rows]
        actions = [layers(state, self.nets["actor"]).tanh() for state in states]
        q = torch.stack([self.q(self.nets, s, a)[0] for s, a in zip(states, actions, strict=True)])
        imitation = torch.stack(
            [((a - self.column("action", i)) ** 2).mean() for a, i in zip(actions, rows, strict=True)]
        )
        loss = -self.c.alpha / q.abs().mean().detach() * q.mean() + imitation.mean()
        self._apply(dict(zip(self.nets["actor"], torch.autograd.grad(loss, self.nets["actor"]), strict=True)))

    def _apply(self, gradients):
        for optimizer in self.optimizers.values():
            listed = optimizer.param_groups[0]["params"]
            if all(p in gradients for p in listed):
                for p in listed:
                    p.grad = gradients[p]
                optimizer.step()


@pytest.mark.parametrize("variant", others_slow(VARIANTS, "iql", "td3_bc", "cql"))
def test_gradient_steps_are_those_of_the_equations(variant, tmp_path):
    algo, config = VARIANTS[variant]
    columns = made_data.continuous_columns(60, seed=3, metrics=2)
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    run = OfflineRun(data="any", algo=algo, algorithm=replace(config), network=SMALL, seed=SEED)
    policy = policy_for(run, dataset, seed=1)
    with torch.no_grad():  # heads start near 0, where Q and the policy are too small to tell much
        for parameter in policy.network.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    reference = Reference(policy, config, columns)
    progress = Progress(STEPS)
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        learner = CLASSES[algo](run, policy, comm)
        for step in range(STEPS):
            index = draws(60, [ROWS] * SHARDS, seed=step)
            parts = [part(dataset, rows, padding=PADDING * k) for k, rows in enumerate(index)]
            learner.update(parts, np.zeros((SHARDS, 0)), progress)
            reference.step(algo, [index[0], index[1][:-PADDING]], step)
            progress.env_steps += 1
            progress.updates += 1
        moved = Reference(policy, config, columns)  # reads the parameters that the learner ended with
        assert moved.nets.keys() == reference.nets.keys() and "value model" in moved.nets
        for name, net in reference.nets.items():
            for ours, wanted in zip(moved.nets[name], net, strict=True):
                torch.testing.assert_close(
                    ours, wanted, rtol=0, atol=2e-5, msg=lambda said, name=name: f"{name}: {said}"
                )
        last = learner.target.networks[0].layers[2]
        for k, wanted in enumerate(torch.cat([p.reshape(-1) for p in reference.target["critic 0"][-2:]])):
            found = torch.cat([last.weight[0].reshape(-1), last.bias[0]])
            torch.testing.assert_close(found[k].double(), wanted, rtol=0, atol=2e-5)
