"""Gradient steps of SAC and TD3 against a plain reference in float64: one network at a time, torch's own distributions.

Two shards with unequal priorities live on one rank. Only what was drawn is taken over: the transitions with their
weights, the noise, and the seeds of dropout masks. Targets, losses, log-probabilities, gradients, Adam and the target
networks are computed anew.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.sac import SAC
from lockstep.torch.td3 import TD3
from lockstep.world import World

SIZE, ENVS, STEPS, SHARDS = 4, 2, 12, 2
LOW, HIGH = np.array([-2.0, 0.5]), np.array([2.0, 1.5])
SPEC = EnvSpec(SIZE, ActionSpec("continuous", (2,), tuple(LOW), tuple(HIGH)), "same_step", True)
BASE = {
    "num_steps": STEPS, "batch_size": 16, "capacity": 400, "learning_starts": 0, "gamma": 0.9, "learning_rate": 0.01,
    "updates_per_step": 2 / (STEPS * ENVS * SHARDS), "critic_learning_rate": 0.02, "target_rate": 0.1,
    "adam_eps": 1e-3,
}  # fmt: skip
PRIORITIZED = {"prioritized": True, "n_step": 3}
VARIANTS = {
    "sac": SACConfig(**BASE),
    "sac, one learning rate": SACConfig(**BASE | {"critic_learning_rate": None}),
    "sac, fixed temperature": SACConfig(**BASE, alpha=0.3, max_grad_norm=0.1),
    "sac, prioritized": SACConfig(**BASE, **PRIORITIZED, target_entropy=-0.5, initial_alpha=0.2),
    "redq": SACConfig(**BASE, num_critics=4, target_critics=2, policy_delay=2, policy_average=0.3),
    "layer norm": SACConfig(**BASE, layer_norm=True),
    "droq": SACConfig(**BASE, layer_norm=True, dropout=0.3, target_critics=2, policy_delay=2),
    "td3": TD3Config(**BASE),
    "td3, average": TD3Config(**BASE, policy_average=0.5, policy_delay=1),
    "td3, one learning rate": TD3Config(**BASE | {"critic_learning_rate": None}),
    "td3, prioritized": TD3Config(**BASE, **PRIORITIZED, noise_clip=0.1, max_grad_norm=0.1),
    "td3, dropout": TD3Config(**BASE, dropout=0.3),
    "ddpg": TD3Config(**BASE, num_critics=1, policy_delay=1, target_noise=0.0),
}


class Reference:
    """The algorithms written out, with a separate network for each critic."""

    def __init__(self, policy, config):
        self.c = config
        self.soft = isinstance(config, SACConfig)
        self.actor = self.copied(policy.actor.layers, None, None)
        norms = policy.critics.norms
        self.critics = [self.copied(policy.critics.layers, norms, c) for c in range(config.num_critics)]
        self.target_actor = self.copied(policy.actor.layers, None, None)
        self.average_actor = self.copied(policy.actor.layers, None, None)
        self.actor_steps = 0
        self.target_critics = [self.copied(policy.critics.layers, norms, c) for c in range(config.num_critics)]
        alpha = (config.alpha or config.initial_alpha) if self.soft else 1.0
        self.log_alpha = torch.tensor(math.log(alpha), dtype=torch.float64, requires_grad=True)
        learned = [self.log_alpha] if self.soft and config.alpha is None else []
        eps, rate = config.adam_eps, config.learning_rate
        self.actor_adam = torch.optim.Adam([*self.actor.parameters(), *learned], lr=rate, eps=eps)
        of_critics = [p for critic in self.critics for p in critic.parameters()]
        self.critic_adam = torch.optim.Adam(of_critics, lr=config.critic_learning_rate or rate, eps=eps)
        self.steps = 0
        self.masks = []

    def draw_masks(self, seeds, sizes, hidden):
        """What dropout keeps in the target, the learned and the policy's critics, [C, N, H] for each hidden layer.

        Each shard's generator draws them in this order, for the rows of its own part.
        """
        last = 1 if not self.soft and self.c.target_critics is None else self.c.num_critics
        uses = [self.c.num_critics, self.c.num_critics, last]
        if (self.steps + 1) % self.c.policy_delay:
            uses.pop()
        parts = []
        for seed, rows in zip(seeds, sizes, strict=True):
            generator = torch.Generator().manual_seed(seed)
            parts.append(
                [[torch.rand(c, rows, h, generator=generator) >= self.c.dropout for h in hidden] for c in uses]
            )
        self.masks = [[torch.cat(layer, 1) for layer in zip(*use, strict=True)] for use in zip(*parts, strict=True)]

    def q(self, critics, s, action, use):
        """Values [N] of the critics numbered so, their hidden units dropped by the masks of this use."""
        values = {}
        for c, critic in critics:
            x, masks = torch.cat([s, action], -1), iter(self.masks[use] if self.masks else [])
            for module in critic:
                x = module(x)
                mask = next(masks, None) if isinstance(module, nn.Linear) else None
                if mask is not None:
                    x = x * mask[c] / (1 - self.c.dropout)
            values[c] = x[:, 0]
        return list(values.values())

    @staticmethod
    def copied(layers, norms, critic):
        made = []
        for i, layer in enumerate(layers):
            weight, bias = (p if critic is None else p[critic] for p in (layer.weight, layer.bias))
            linear = nn.Linear(weight.shape[1], weight.shape[0]).double()
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            made.append(linear)
            if i < len(layers) - 1:
                made += [nn.LayerNorm(len(weight)).double()] if norms else []
                made.append(nn.ReLU())
        return nn.Sequential(*made)

    def drawn_action(self, s, noise):
        """An action in [-1, 1] and its log-probability."""
        mean, log_std = self.actor(s).chunk(2, -1)
        normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
        u = mean + log_std.clamp(-20, 2).exp() * noise
        # The cache keeps u: the inverse of tanh would lose digits.
        distribution = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
        action = distribution.transforms[0](u)
        return action, distribution.log_prob(action)

    def target(self, rows, noise, chosen):
        s = rows["next_observation"]
        if self.soft:
            action, log_prob = self.drawn_action(s, noise)
            bonus = -self.log_alpha.exp() * log_prob
        else:
            smoothing = (noise * self.c.target_noise).clamp(-self.c.noise_clip, self.c.noise_clip)
            action, bonus = (self.target_actor(s).tanh() + smoothing).clamp(-1, 1), 0.0
        q = self.q([(c, self.target_critics[c]) for c in chosen], s, action, 0)
        return rows["reward"] + rows["discount"] * (torch.stack(q).min(0).values + bonus)

    def step(self, rows, noise, chosen):
        """One gradient step: losses at the same parameters, then both optimizers, then the targets."""
        self.steps += 1
        c, s = self.c, rows["observation"]
        action = 2 * (rows["action"] - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
        with torch.no_grad():
            y = self.target(rows, noise[:, 0], chosen)
        q = self.q(enumerate(self.critics), s, action, 1)
        weight = rows["weight"] / rows["weight"].max()
        loss = sum((weight * (y - one).square()).mean() / 2 for one in q)
        of_critics = [p for critic in self.critics for p in critic.parameters()]
        gradients = torch.autograd.grad(loss, of_critics)
        moves = self.steps % c.policy_delay == 0
        if moves:
            self.policy_gradient(s, noise)
        self.stepped(self.critic_adam, of_critics, gradients)
        if moves:
            self.actor_adam.step()
        with torch.no_grad():
            pairs = list(zip(self.target_critics, self.critics, strict=True)) if self.soft or moves else []
            pairs += [(self.target_actor, self.actor)] if moves else []
            for target, online in pairs:
                for t, p in zip(target.parameters(), online.parameters(), strict=True):
                    t += c.target_rate * (p - t)
            if moves:
                rate = 1 / (1 + c.policy_average * self.actor_steps)
                self.actor_steps += 1
                for t, p in zip(self.average_actor.parameters(), self.actor.parameters(), strict=True):
                    t += rate * (p - t)
        return float(loss.detach()), float(y.mean())

    def policy_gradient(self, s, noise):
        c = self.c
        if self.soft:
            action, log_prob = self.drawn_action(s, noise[:, 1])
        else:
            action, log_prob = self.actor(s).tanh(), torch.zeros(len(s), dtype=torch.float64)
        used = self.critics[:1] if not self.soft and c.target_critics is None else self.critics
        q = torch.stack(self.q(enumerate(used), s, action, 2))
        q = q.min(0).values if c.target_critics is None else q.mean(0)
        loss = (self.log_alpha.detach().exp() * log_prob - q).mean()
        for p, g in zip(self.actor.parameters(), torch.autograd.grad(loss, list(self.actor.parameters())), strict=True):
            p.grad = g
        self.clipped([p.grad for p in self.actor.parameters()])
        if self.soft and c.alpha is None:
            goal = -2.0 if c.target_entropy is None else c.target_entropy
            self.log_alpha.grad = -(log_prob.detach() + goal).mean()

    def stepped(self, adam, parameters, gradients):
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.clone()
        self.clipped([p.grad for p in parameters])
        adam.step()

    def clipped(self, gradients):
        if self.c.max_grad_norm is not None:
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
            for g in gradients:
                g *= min(1.0, self.c.max_grad_norm / (norm + 1e-6))


def rollouts(number):
    """Random steps of both shards, with ends of both kinds."""
    made = []
    for shard in range(SHARDS):
        random = np.random.default_rng([number, shard])
        observation = random.normal(size=(STEPS + 1, ENVS, SIZE)).astype(np.float32)
        terminated, truncated = random.random((2, STEPS, ENVS)) < 0.1
        rows = [(t, np.flatnonzero(truncated[t] & ~terminated[t])) for t in range(STEPS)]
        final = [(t, env, random.normal(size=(len(env), SIZE)).astype(np.float32)) for t, env in rows if len(env)]
        reward = (random.normal(size=(STEPS, ENVS)) * (1 + 3 * shard)).astype(np.float32)
        action = random.uniform(LOW, HIGH, (STEPS, ENVS, 2)).astype(np.float32)
        weight = np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(observation, action, reward, terminated, terminated | truncated, weight, final))
    return made


def assert_equal_networks(policy, learner, reference):
    for name, layers, norms, mine in (
        ("critics", policy.critics.layers, policy.critics.norms, reference.critics),
        ("target", targets(learner).layers, targets(learner).norms, reference.target_critics),
    ):
        for c, critic in enumerate(mine):
            linear = [m for m in critic if isinstance(m, nn.Linear)]
            others = [m for m in critic if isinstance(m, nn.LayerNorm)]
            for layer, wanted in [*zip(layers, linear, strict=True), *zip(norms, others, strict=True)]:
                assert_near(layer.weight[c], wanted.weight, name)
                assert_near(layer.bias[c], wanted.bias, name)
    for actor, mine, name in (
        (policy.actor, reference.actor, "actor"),
        (learner.evaluated.actor, reference.average_actor, "average"),
    ):
        for layer, wanted in zip(actor.layers, [m for m in mine if isinstance(m, nn.Linear)], strict=True):
            assert_near(layer.weight, wanted.weight, name)
    if reference.soft:
        assert_near(policy.temperature.log_alpha, reference.log_alpha, "temperature")


def targets(learner):
    return learner.target if isinstance(learner, SAC) else learner.target.critics


def assert_near(value, wanted, name):
    torch.testing.assert_close(value.double(), wanted.detach(), rtol=0, atol=1e-5, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_steps_follow_the_equations(variant):
    config = VARIANTS[variant]
    soft = isinstance(config, SACConfig)
    network = NetworkConfig(hidden=(8, 5), activation="relu")
    run = Run(
        task="any", algo="sac" if soft else "td3", algorithm=replace(config), network=network, seed=7,
        num_envs=SHARDS * ENVS,
    )  # fmt: skip
    policy = ContinuousPolicy(SPEC, network, config, seed=1)
    reference = Reference(policy, config)
    progress = Progress(SHARDS * ENVS * STEPS * 10)
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        learner = (SAC if soft else TD3)(run, policy, comm)
        learner_step, drawn_seeds, losses, seeds = learner._step, learner.replays.seeds, [], []
        learner.replays.seeds = lambda: seeds

        def step(parts, drawn):
            columns = {name: torch.cat([p.columns()[name].double() for p in parts]) for name in parts[0].columns()}
            noise = columns.pop("noise")
            count = config.target_critics
            chosen = range(config.num_critics)
            if count is not None:
                chosen = learner.replays.target_critics(config.num_critics, count)
            if config.dropout:
                seeds[:] = drawn_seeds()
                reference.draw_masks(seeds, [len(part.reward) for part in parts], network.hidden)
            losses.append(reference.step(columns, noise, chosen))
            return learner_step(parts, drawn)

        learner._step = step
        for number in range(3):
            learner.update(rollouts(number), np.zeros((SHARDS, 0)), progress)
            assert len(losses) == 2 * (number + 1)
            assert_equal_networks(policy, learner, reference)
            metrics = learner.metrics.read()
            assert metrics["loss/value"] == pytest.approx(np.mean([loss for loss, _ in losses[-2:]]), rel=1e-3)
            assert metrics["value/target"] == pytest.approx(np.mean([y for _, y in losses[-2:]]), rel=1e-3)
            progress.env_steps += SHARDS * ENVS * STEPS
