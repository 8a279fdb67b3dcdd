"""One update of recurrent PPO against a plain implementation, environment by environment and step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.distributed.timers import Timers
from lockstep.envs.hidden_cartpole import HiddenCartpole
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import Collector, Rollout
from lockstep.run import NetworkConfig, Run, override
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy, actor_of
from lockstep.torch.ppo import PPO

STEPS, ENVS, LENGTH = 12, 3, 4
RUN = Run(
    task="lockstep/HiddenCartpole-v0",
    num_envs=ENVS,
    algorithm=PPOConfig(
        num_steps=STEPS, sequence_length=LENGTH, num_epochs=1, num_minibatches=1, learning_rate=1e-12,
        learning_rate_schedule="constant", max_grad_norm=None, normalize_advantage=False, gamma=0.9,
    ),
    network=NetworkConfig(hidden=(7,), recurrent="gru", recurrent_size=5),
)  # fmt: skip


class NextStep:
    """`HiddenCartpole` with next-step autoreset: the step after an end resets."""

    def __init__(self, num_envs: int) -> None:
        self._env = HiddenCartpole(num_envs, max_episode_steps=5)
        self.spec = RUN and self._env.spec.__class__(
            **{**{n: getattr(self._env.spec, n) for n in self._env.spec.__dataclass_fields__}, "autoreset": "next_step"}
        )
        self.num_envs = num_envs
        self._first = np.zeros((num_envs, 2), np.float32)
        self._resetting = np.zeros(num_envs, bool)

    def reset(self, seeds: list[int]) -> np.ndarray:
        return self._env.reset(seeds)

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        resetting = self._resetting.copy()
        state, steps = self._env._state.copy(), self._env._steps.copy()
        observation, reward, terminated, truncated, final = self._env.step(action)
        # Rows that reset keep the state that their episode began with.
        self._env._state[:, resetting], self._env._steps[resetting] = state[:, resetting], steps[resetting]
        ended = (terminated | truncated) & ~resetting
        shown = np.where(ended[:, None], final, observation)
        shown[resetting] = self._env._observe()[resetting]
        self._resetting = ended
        return shown, np.where(resetting, 0, reward), terminated & ~resetting, truncated & ~resetting, None

    def close(self) -> None:
        pass


class Trained:
    """A learner whose parameters stay as they are, and the rollouts of two updates."""

    def __init__(self, env: Any, **changes: Any) -> None:
        self.run = override(RUN, changes)
        self.comm = Comm(World(), device="cpu").__enter__()
        self.policy = Policy(env.spec, self.run.network, seed=3)
        self.ppo = PPO(self.run, self.policy, self.comm)
        collector = Collector(
            World(), [env], actor_of(self.policy, self.comm.device), self.policy.distribution,
            num_steps=STEPS, seed=0, timers=Timers(),
        )  # fmt: skip
        self.rollouts = list[Rollout]()
        for _ in range(2):
            (rollout,) = collector.collect()
            self.rollouts.append(Rollout(*(np.copy(getattr(rollout, n)) for n in _ARRAYS), list(rollout.final)))
            self.ppo.update([rollout], np.zeros((1, 1)))
        self.comm.__exit__(None, None, None)

    def gradient(self) -> dict[str, torch.Tensor]:
        return {name: p.grad.clone() for name, p in self.policy.named_parameters()}


_ARRAYS = ("observation", "action", "reward", "terminated", "ended", "weight")


def plain_gradient(trained: Trained, *, same_step: bool) -> dict[str, torch.Tensor]:  # noqa: C901  # plain
    """The gradient of the second update, by torch's own cells, one environment after another."""
    run, policy = trained.run, trained.policy
    c = run.algorithm
    reference = Policy(policy.spec, run.network)
    reference.load_state_dict(policy.state_dict())
    net = reference.recurrent
    kind = run.network.recurrent

    def cell(core: Any) -> torch.nn.Module:
        made = (torch.nn.GRU if kind == "gru" else torch.nn.LSTM)(core.num_inputs, core.num_features)
        made._parameters.update(dict(core.named_parameters()))
        made._flat_weights = [made._parameters[name] for name in made._flat_weights_names]
        return made

    cells = [cell(net.core)] + ([] if net.critic_core is None else [cell(net.critic_core)])

    def step(observation: np.ndarray, states: list[Any]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
        x = torch.from_numpy(observation)[None]
        x = x if net.body is None else net.body(x)
        found = [one(x, state) for one, state in zip(cells, states, strict=True)]
        return net.actor(found[0][0])[0], net.critic(found[-1][0])[0, 0], [state for _, state in found]

    def detached(states: list[Any]) -> list[Any]:
        return [
            None if s is None else tuple(p.detach() for p in s) if isinstance(s, tuple) else s.detach() for s in states
        ]

    objective, total = torch.zeros(()), 0.0
    for env in range(ENVS):
        states: list[Any] = [None] * len(cells)
        fresh: list[Any] = [None] * len(cells)
        for number, rollout in enumerate(trained.rollouts):
            finals = {
                int(t): row for t, rows, last in rollout.final for b, row in zip(rows, last, strict=True) if b == env
            }
            outputs, following = [], []
            for t in range(STEPS):
                if t % LENGTH == 0:
                    states = detached(states)
                if t > 0 or number > 0:
                    before = rollout if t > 0 else trained.rollouts[number - 1]
                    at = t - 1 if t > 0 else STEPS - 1
                    begins = before.ended[at, env] if same_step else before.weight[at, env] == 0
                    states = list(fresh) if begins else states
                parameters, value, states = step(rollout.observation[t, env], states)
                outputs.append((parameters, value))
                seen = finals.get(t, rollout.observation[t + 1, env])
                following.append(step(seen, states)[1].detach())
            advantage = torch.zeros(STEPS)
            carried = torch.zeros(())
            for t in reversed(range(STEPS)):
                ends = float(rollout.terminated[t, env])
                delta = rollout.reward[t, env] + c.gamma * following[t] * (1 - ends) - outputs[t][1].detach()
                carried = delta + c.gamma * c.gae_lambda * (1 - float(rollout.ended[t, env])) * carried
                advantage[t] = carried
            if number == 0:
                continue
            for t, (parameters, value) in enumerate(outputs):
                weight = float(rollout.weight[t, env])
                distribution = Categorical(logits=parameters)
                log_prob = distribution.log_prob(torch.tensor(rollout.action[t, env]))
                ratio = (log_prob - log_prob.detach()).exp()
                target = advantage[t] + value.detach()
                one = ratio * advantage[t] - 0.5 * c.value_coef * (value - target) ** 2
                objective = objective + weight * (one + c.entropy_coef * distribution.entropy())
                total += weight
    (-objective / total).backward()
    return {name: p.grad for name, p in reference.named_parameters()}


CASES = {
    "gru": {},
    "lstm": {"network.recurrent": "lstm"},
    "one body": {"network.shared": True},
}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_a_plain_implementation(name, autoreset):
    same_step = autoreset == "same_step"
    trained = Trained(HiddenCartpole(ENVS, max_episode_steps=5) if same_step else NextStep(ENVS), **CASES[name])
    first, second = trained.rollouts
    assert (second.ended & ~second.terminated).any(), "no episode was truncated; the test proves nothing"
    assert not first.ended[-1].all(), "no state is carried from one rollout to the next; the test proves nothing"
    found = trained.gradient()
    for key, expected in plain_gradient(trained, same_step=same_step).items():
        torch.testing.assert_close(found[key], expected, rtol=2e-3, atol=2e-5, msg=f"the gradient of {key} differs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.module": "a:B"}, "network.recurrent=gru: network.module=a:B is called with observations alone"),
        ({"symmetry": "a:b"}, "mirror image of a state of recurrent layers"),
        ({"precision": "bfloat16"}, "precision=bfloat16"),
        ({"num_steps": 74, "sequence_length": None}, "num_steps=74: .* sequences of 2 steps, .* use num_steps=96"),
        ({"network.recurrent": "none"}, "sequence_length=4 is for recurrent policies"),
        (
            {"network.recurrent": "none", "sequence_length": None, "network.recurrent_size": 128},
            "network.recurrent_size=128 is for recurrent policies; set network.recurrent to gru or lstm",
        ),
        (
            {
                "network.recurrent": "none",
                "sequence_length": None,
                "network.recurrent_size": 64,
                "network.recurrent_layers": 2,
            },
            "network.recurrent_layers=2 is for recurrent policies",
        ),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused_by_name(changes, message):
    from lockstep.session.task_checks import check_task

    with pytest.raises(ConfigError, match=message):
        check_task(override(RUN, changes), HiddenCartpole(1).spec)


@pytest.mark.parametrize(
    "changes", [{"num_steps": 5}, {"num_steps": 34}, {"num_steps": 37, "sequence_length": 1}], ids=str
)
def test_short_sequences_of_short_rollouts_or_by_name_are_taken(changes):
    from lockstep.session.task_checks import check_task

    check_task(override(RUN, {"sequence_length": None} | changes), HiddenCartpole(1).spec)


def test_recurrent_dqn_is_refused():
    from lockstep.session.task_checks import check_task

    run = Run(task="CartPole-v1", algo="dqn", network=NetworkConfig(recurrent="gru"))
    with pytest.raises(ConfigError, match="algo=dqn has no recurrent policies; use algo=ppo"):
        check_task(run, HiddenCartpole(1).spec)


def test_sequences_must_divide_rollouts_and_minibatches():
    with pytest.raises(ConfigError, match="sequence_length=5 does not divide num_steps=12"):
        override(RUN, {"sequence_length": 5})
    with pytest.raises(ConfigError, match="is not a whole number of sequences of 4 steps"):
        override(RUN, {"num_minibatches": 6}).minibatch_rows(World())
    assert override(RUN, {"sequence_length": None}).sequence_length == 12
    assert override(RUN, {"sequence_length": None, "num_steps": 128}).sequence_length == 32
    assert override(RUN, {"sequence_length": None, "num_steps": 100}).sequence_length == 25


class OneBadObservation:
    """Four environments whose episodes have five steps; one number of step 3 is not finite."""

    spec = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", separately_seedable=True)
    num_envs = 4

    def __init__(self) -> None:
        self._steps, self._draw = 0, np.random.default_rng(0)

    def reset(self, seeds: list[int]) -> np.ndarray:
        return self._draw.standard_normal((4, 3), np.float32)

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        self._steps += 1
        observation = self._draw.standard_normal((4, 3), np.float32)
        if self._steps == 3:
            observation[0, 1] = np.nan
        end = np.full(4, self._steps % 5 == 0)
        return observation, np.ones(4, np.float32), end, np.zeros(4, bool), observation

    def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_bad_observation_costs_one_update(kind, shared):
    """A state that is not finite, times 0, is not finite: a reset by a product would keep it for good."""
    changes = {"network.recurrent": kind, "network.shared": shared, "num_steps": 16, "non_finite": "skip"}
    run = override(RUN, {"num_envs": 4, **changes})
    ppo = PPO(run, Policy(OneBadObservation.spec, run.network), Comm(World(), device="cpu"))
    collector = Collector(
        World(), [OneBadObservation()], actor_of(ppo.policy, torch.device("cpu")), ppo.policy.distribution,
        num_steps=16, seed=0, timers=Timers(), report_non_finite=True,
    )  # fmt: skip
    skipped = []
    for _ in range(4):
        ppo.update(collector.collect(), np.zeros((1, 0)))
        skipped.append(ppo.metrics.read()["optim/skipped"])
    assert skipped == [1.0, 0.0, 0.0, 0.0]
