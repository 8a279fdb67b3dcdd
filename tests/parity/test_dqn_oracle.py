"""Gradient steps of DQN against a plain reference, written from the papers' equations, in float64, without its parts.

Two shards with unequal priorities live on one rank. The replay's draws are taken over, and nothing else: returns over n
steps, probabilities, weights, targets, losses, gradients, Adam and the target network are found anew.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.dqn import DQN
from lockstep.torch.q_networks import QPolicy
from lockstep.world import World, stream

SIZE, ACTIONS, ENVS, STEPS, SHARDS, SEED = 4, 3, 2, 12, 2, 7
SPEC = EnvSpec(SIZE, ActionSpec("discrete", (ACTIONS,)), "same_step", True)
BASE = DQNConfig(
    num_steps=STEPS, batch_size=16, capacity=400, learning_starts=0, updates_per_step=1 / (STEPS * ENVS * SHARDS),
    learning_rate=0.01, gamma=0.9, double=False, num_atoms=11, v_min=-4.0, v_max=4.0, num_quantiles=5,
    target_update_every=2, max_grad_norm=None,
)  # fmt: skip
ALL = {"double": True, "dueling": True, "n_step": 3, "prioritized": True}
VARIANTS = {
    "dqn": {},
    "mse": {"loss": "mse", "max_grad_norm": 0.05},
    "double dueling n-step": {"double": True, "dueling": True, "n_step": 3, "max_grad_norm": 10.0},
    "soft target": {"double": True, "target_rate": 0.1},
    "c51": {"value_distribution": "categorical"},
    "qr": {"value_distribution": "quantile", "double": True},
    "per": {"double": True, "n_step": 2, "prioritized": True, "max_grad_norm": 0.5},
    "per qr": {**ALL, "value_distribution": "quantile"},
    "rainbow": {**ALL, "value_distribution": "categorical", "noisy": True, "max_grad_norm": 0.5},
}


def rollouts(number):
    """Steps of both shards: random ones, with ends of both kinds; those of number + 1 go on from those of number."""
    made = []
    for shard in range(SHARDS):
        random = np.random.default_rng([number, shard])
        first = np.random.default_rng([number - 1, shard]).normal(size=(ENVS, SIZE)) if number else None
        last = random.normal(size=(ENVS, SIZE))  # drawn first, so that the next rollout knows it
        observation = random.normal(size=(STEPS + 1, ENVS, SIZE))
        observation[0], observation[-1] = observation[0] if first is None else first, last
        terminated, truncated = random.random((2, STEPS, ENVS)) < 0.12
        rows = [(t, np.flatnonzero(truncated[t] & ~terminated[t])) for t in range(STEPS)]
        final = [(t, env, random.normal(size=(len(env), SIZE)).astype(np.float32)) for t, env in rows if len(env)]
        reward = (random.normal(size=(STEPS, ENVS)) * (1 + 3 * shard)).astype(np.float32)
        action = random.integers(ACTIONS, size=(STEPS, ENVS))
        ended, weight = terminated | truncated, np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(observation.astype(np.float32), action, reward, terminated, ended, weight, final))
    return made


class Memory:
    """What one shard has seen, step by step."""

    def __init__(self):
        self.steps = [[] for _ in range(ENVS)]
        self.priority = {}
        self.largest = 1.0

    def take(self, rollout):
        finals = {(t, env): last[i] for t, envs, last in rollout.final for i, env in enumerate(envs)}
        for t in range(STEPS):
            for env, steps in enumerate(self.steps):
                after = finals.get((t, env), rollout.observation[t + 1, env])
                columns = rollout.observation, rollout.action, rollout.reward, rollout.terminated, rollout.ended
                steps.append((*(column[t, env] for column in columns), after))

    def transitions(self, c):
        """By first observation: `(s, a, R, s', discount)` of all whose n steps, or whose episode's end, are there."""
        found = {}
        for steps in self.steps:
            for t, (observation, action, *_) in enumerate(steps):
                total, discount = 0.0, 1.0
                for k, (_, _, reward, terminated, ended, after) in enumerate(steps[t : t + c.n_step]):
                    total, discount = total + discount * float(reward), discount * c.gamma
                    if ended or k == c.n_step - 1:
                        row = observation, int(action), total, after, 0.0 if terminated else discount
                        found[tuple(observation.tolist())] = row
                        break
        for key in found:  # what was never drawn has the largest priority so far
            self.priority.setdefault(key, self.largest)
        return found


class Reference:
    """Parameters, target, Adam; one method per equation."""

    def __init__(self, policy, c):
        self.streams = ["advantage", "value"] if c.dueling else ["advantage"]
        self.c, self.z = c, torch.linspace(c.v_min, c.v_max, c.num_atoms, dtype=torch.float64)
        self.theta = {name: value.double().requires_grad_() for name, value in policy.state_dict().items()}
        self.target = {name: value.detach().clone() for name, value in self.theta.items()}
        self.adam = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in self.theta.items()}
        self.categorical, self.steps = c.value_distribution == "categorical", 0

    def noise(self, theta, name):
        """Weights with noise: w + s * f(e_out) f(e_in)^T."""
        numbers = iter(stream(SEED, name, self.steps).standard_normal(10_000, np.float32))
        noisy = dict(theta)
        for layer in (f"network.{s}.layers.{i}" for s in self.streams for i in (0, 1)):
            out, size = theta[f"{layer}.weight"].shape
            e_in, e_out = (torch.tensor([next(numbers) for _ in range(n)]).double() for n in (size, out))
            e_in, e_out = (e.sign() * e.abs().sqrt() for e in (e_in, e_out))
            noisy[f"{layer}.weight"] = theta[f"{layer}.weight"] + theta[f"{layer}.weight_std"] * e_out.outer(e_in)
            noisy[f"{layer}.bias"] = theta[f"{layer}.bias"] + theta[f"{layer}.bias_std"] * e_out
        return noisy

    def network(self, theta, s):
        """[N, A, Z]: V + A - mean A, of logits, of quantiles, or of one number."""

        def linear(layer, x):
            return x @ theta[f"network.{layer}.weight"].T + theta[f"network.{layer}.bias"]

        hidden = linear("encoder.layers.0", s).tanh()
        heads = [linear(f"{name}.layers.1", linear(f"{name}.layers.0", hidden).tanh()) for name in self.streams]
        advantage = heads[0].view(len(s), ACTIONS, -1)
        return advantage if len(heads) == 1 else heads[1].unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)

    def q(self, outputs):
        return (outputs.softmax(-1) * self.z).sum(-1) if self.categorical else outputs.mean(-1)

    def losses(self, rows):
        """Of each row, and its priority."""
        s, a, reward, after, discount = (torch.tensor(np.array(x)) for x in zip(*rows, strict=True))
        theta, target, i = self.theta, self.target, torch.arange(len(rows))
        judge = theta
        if self.c.noisy:
            judge = self.noise(theta, "noise of choice")
            theta, target = self.noise(theta, "noise"), self.noise(target, "noise of target")
        with torch.no_grad():
            theirs = self.network(target, after.double())
            best = self.q(self.network(judge, after.double()) if self.c.double else theirs).argmax(-1)
            theirs = theirs[i, best]
        mine = self.network(theta, s.double())[i, a]
        if self.categorical:
            loss = torch.stack([self.cross_entropy(*row) for row in zip(mine, theirs, reward, discount, strict=True)])
        else:
            y = reward.unsqueeze(1) + discount.unsqueeze(1) * theirs
            loss = torch.stack([self.regression(*row) for row in zip(mine, y, strict=True)])
            if self.c.value_distribution == "none":
                return loss, (y - mine).abs().squeeze(1)
        return loss, loss

    def cross_entropy(self, logits, next_logits, reward, discount):
        """Projection of r + discount z on the atoms, each atom's mass shared between its two neighbours."""
        c, m = self.c, torch.zeros(self.c.num_atoms, dtype=torch.float64)
        step = (c.v_max - c.v_min) / (c.num_atoms - 1)
        for p, z in zip(next_logits.softmax(0), self.z, strict=True):
            b = (float((reward + discount * z).clamp(c.v_min, c.v_max)) - c.v_min) / step
            low = min(math.floor(b), c.num_atoms - 2)
            m[low] += p * (low + 1 - b)
            m[low + 1] += p * (b - low)
        return -(m * logits.log_softmax(0)).sum()

    def regression(self, mine, y):
        """Squares, Huber's loss, or that of quantile regression: of each number of `mine` with each of `y`."""
        if self.c.loss == "mse" and self.c.value_distribution == "none":
            return (y - mine).square().sum() / 2
        total = 0.0
        for i, theta in enumerate(mine):
            for goal in y:
                error, size = goal - theta, abs((goal - theta).item())
                huber = error**2 / 2 if size <= 1 else error.abs() - 0.5
                above = (i + 0.5) / len(mine) - (error.item() < 0)
                total = total + huber * (1.0 if self.c.value_distribution == "none" else abs(above)) / len(y)
        return total

    def step(self, loss):
        """Clip by the norm, Adam, target."""
        c, self.steps = self.c, self.steps + 1
        gradients = torch.autograd.grad(loss, list(self.theta.values()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        scale = 1.0 if c.max_grad_norm is None else min(1.0, c.max_grad_norm / (norm + 1e-6))
        with torch.no_grad():
            for name, gradient in zip(self.theta, gradients, strict=True):
                m, v = self.adam[name]
                m.mul_(0.9).add_(0.1 * scale * gradient)
                v.mul_(0.999).add_(0.001 * (scale * gradient) ** 2)
                m_hat, v_hat = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
                self.theta[name] -= c.learning_rate * m_hat / (v_hat.sqrt() + c.adam_eps)
            rate = c.target_rate or float(self.steps % c.target_update_every == 0)
            for name, value in self.theta.items():
                self.target[name] += rate * (value - self.target[name])
        return norm


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_are_those_of_the_equations(variant):
    c = replace(BASE, **VARIANTS[variant])
    run = Run(
        task="any", algo="dqn", algorithm=c, network=NetworkConfig(hidden=(8, 5)), seed=SEED, num_envs=SHARDS * ENVS
    )
    policy = QPolicy(SPEC, run.network, c, seed=1)
    reference, memories = Reference(policy, c), [Memory() for _ in range(SHARDS)]
    progress = Progress(SHARDS * ENVS * STEPS * 10)
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        dqn = DQN(run, policy, comm)
        drawn = [recorded(replay) for replay in dqn.replays.buffers]
        for number in range(4):
            made = rollouts(number)
            dqn.update(made, np.zeros((SHARDS, 0)), progress)
            for memory, rollout in zip(memories, made, strict=True):
                memory.take(rollout)
            beta = c.importance_exponent + (1 - c.importance_exponent) * progress.fraction
            norm = learned(reference, memories, [keys.pop() for keys in drawn], beta if c.prioritized else 0.0)
            for name, value in policy.state_dict().items():
                assert_near(value, reference.theta[name], f"{name} after {number + 1} steps")
            for name, value in dqn.target.state_dict().items():
                assert_near(value, reference.target[name], f"{name} of the target after {number + 1} steps")
            assert dqn.metrics.read()["optim/grad_norm"] == pytest.approx(norm, rel=1e-3)
            progress.env_steps += SHARDS * ENVS * STEPS


def recorded(replay):
    """The first observations of what a replay draws, by which the reference finds its own transitions."""
    draws, sample = [], replay.sample

    def kept(rows, generator):
        transitions = sample(rows, generator)
        draws.append([tuple(row.tolist()) for row in transitions.observation])
        return transitions

    replay.sample = kept
    return draws


def learned(reference, memories, keys, beta):
    """One gradient step on what was drawn, with weights (N P)^-beta / max over both shards; new priorities."""
    c, found = reference.c, [memory.transitions(reference.c) for memory in memories]
    rows, weights = [], []
    for memory, transitions, drawn in zip(memories, found, keys, strict=True):
        total = sum(memory.priority[key] for key in transitions)
        for key in drawn:
            probability = memory.priority[key] / total / len(memories)
            weights.append((sum(map(len, found)) * probability) ** -beta)
            rows.append(transitions[key])
    loss, priority = reference.losses(rows)
    norm = reference.step((torch.tensor(weights) / max(weights) * loss).sum() / len(rows))
    if c.prioritized:
        of_rows = iter(priority.tolist())
        for memory, drawn in zip(memories, keys, strict=True):
            for key in drawn:
                memory.priority[key] = (next(of_rows) + c.priority_eps) ** c.priority_exponent
                memory.largest = max(memory.largest, memory.priority[key])
    return norm


def assert_near(value, wanted, name):
    torch.testing.assert_close(value.double(), wanted.detach(), rtol=0, atol=1e-5, msg=lambda said: f"{name}: {said}")
