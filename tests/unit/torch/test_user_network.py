"""A network of the user's: what it may have, and when it is in training mode."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.distributed.timers import Timers
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.device_rollout import TensorCollector
from lockstep.torch.dqn import DQN
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.export import load_policy, save_policy, start_from
from lockstep.torch.networks import Policy, actor_of
from lockstep.torch.ppo import PPO
from lockstep.torch.q_networks import QPolicy
from lockstep.world import World

SPEC = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STEPS, ENVS = 8, 4


class Two(nn.Module):
    """Outputs for PPO of one hidden layer."""

    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.body = nn.Linear(observation_size, 8)
        self.actor, self.critic = nn.Linear(8, num_outputs), nn.Linear(8, 1)

    def hidden(self, observation):
        return self.body(observation)

    def forward(self, observation):
        hidden = self.hidden(observation)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Flattens(Two):
    """As many networks do; it takes no 0 rows."""

    def hidden(self, observation):
        return self.body(observation.view(observation.shape[0], -1))


class PartlyBfloat16(Two):
    """A part that was trained elsewhere, and is not trained here."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.body = nn.Linear(observation_size, 8, dtype=torch.bfloat16).requires_grad_(False)

    def hidden(self, observation):
        return self.body(observation.bfloat16()).float()


class Dropout(Two):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.dropout = nn.Dropout(0.5)

    def hidden(self, observation):
        return self.dropout(self.body(observation))


class FunctionalDropout(Two):
    def hidden(self, observation):
        return F.dropout(self.body(observation), 0.5, self.training)


class RecurrentDropout(Two):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.body = nn.LSTM(observation_size, 8, num_layers=2, dropout=0.5)

    def hidden(self, observation):
        return self.body(observation.unsqueeze(0))[0].squeeze(0)


class NoDropout(Dropout):
    """As layers of torch are that were asked for no dropout."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.dropout = nn.Dropout(0.0)


class Normalized(Two):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.norm = nn.BatchNorm1d(8)

    def hidden(self, observation):
        return self.norm(self.body(observation))


class KeepsState(Two):
    """A recurrent network that keeps its state itself, and begins it anew for another number of rows."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.body, self.state = nn.GRUCell(observation_size, 8), None

    def hidden(self, observation):
        if self.state is None or len(self.state) != len(observation):
            self.state = torch.zeros(len(observation), 8)
        self.state = self.body(observation, self.state.detach())
        return self.state


class KeepsObservation(Two):
    """Observes the step before, too."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(2 * observation_size, num_outputs)
        self.before = None

    def hidden(self, observation):
        before, self.before = self.before, observation
        return super().hidden(torch.cat([observation, torch.zeros_like(observation) if before is None else before], 1))


class KeepsMean(Two):
    """Normalizes by a mean of its own, which each call changes."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.register_buffer("mean", torch.zeros(observation_size))

    def hidden(self, observation):
        self.mean = 0.9 * self.mean + 0.1 * observation.mean(0)
        return super().hidden(observation - self.mean)


class KeepsFeatures(Two):
    """Keeps what it computed, and does not use it again."""

    def hidden(self, observation):
        self.features = super().hidden(observation)
        return self.features


class StateOfValues(KeepsState):
    """Outputs for DQN."""

    def forward(self, observation):
        return super().forward(observation)[0]


class DropoutOfValues(nn.Module):
    """Outputs for DQN."""

    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observation_size, num_outputs), nn.Dropout(0.5))

    def forward(self, observation):
        return self.layers(observation)


class Mixed(Two):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.critic.double()

    def forward(self, observation):
        hidden = self.hidden(observation)
        return self.actor(hidden), self.critic(hidden.double()).squeeze(-1)


class Half(Two):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.bfloat16()


class Modes(Two):
    """Remembers whether it was in training mode, at each call."""

    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.modes = []

    def hidden(self, observation):
        self.modes.append(self.training)
        return self.body(observation)


class ModesOfValues(Modes):
    def forward(self, observation):
        return super().forward(observation)[0]


def own(name):
    return NetworkConfig(module=f"{__file__}:{name}")


def rollout():
    draw = np.random.default_rng(0)
    observation = draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32)
    reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32)
    ended, weight = np.zeros((STEPS, ENVS), bool), np.ones((STEPS, ENVS), np.float32)
    ended[3] = True
    final = [(3, np.arange(ENVS), observation[3])]
    return Rollout(observation, draw.integers(0, 2, (STEPS, ENVS)), reward, ended & False, ended, weight, final)


@pytest.mark.parametrize("name", ["Dropout", "FunctionalDropout", "RecurrentDropout"])
def test_dropout_is_refused_in_training_and_still_acts(name):
    with pytest.raises(ConfigError, match=rf"network\.module=.*:{name} draws random numbers .*leave its dropout out"):
        Policy(SPEC, own(name))
    actor = actor_of(Policy(SPEC, own(name), trains=False), torch.device("cpu"))
    observation = np.ones((5, 3), np.float32)
    assert (actor(observation) == actor(observation)).all()


def test_dropout_is_refused_in_dqn():
    with pytest.raises(ConfigError, match="leave its dropout out"):
        QPolicy(SPEC, own("DropoutOfValues"), DQNConfig())
    QPolicy(SPEC, own("DropoutOfValues"), DQNConfig(), trains=False)


def test_a_probability_of_0_drops_nothing():
    Policy(SPEC, own("NoDropout"))


@pytest.mark.parametrize("name", ["KeepsState", "KeepsObservation", "KeepsMean"])
def test_what_depends_on_earlier_calls_is_refused_in_training_and_still_acts(name):
    with pytest.raises(
        ConfigError, match=rf"network\.module=.*:{name} gave other outputs .* keeps something .*use network\.recurrent"
    ):
        Policy(SPEC, own(name))
    actor_of(Policy(SPEC, own(name), trains=False), torch.device("cpu"))(np.ones((2, 3), np.float32))


def test_what_depends_on_earlier_calls_is_refused_in_dqn():
    with pytest.raises(ConfigError, match="gave other outputs for the same observations"):
        QPolicy(SPEC, own("StateOfValues"), DQNConfig())


@pytest.mark.parametrize("name", ["KeepsFeatures", "Normalized", "NoDropout"])
def test_what_gives_the_same_in_each_call_is_accepted(name):
    Policy(SPEC, own(name))


@pytest.mark.parametrize(("name", "types"), [("Mixed", "float32 and float64"), ("Half", "bfloat16")])
def test_parameters_that_fit_in_no_one_buffer_are_refused(name, types):
    with pytest.raises(ConfigError, match=f"{name} has trained parameters of {types}; give all of them one type"):
        Policy(SPEC, own(name))


def test_the_check_changes_no_buffer():
    assert int(Policy(SPEC, own("Normalized")).network.norm.num_batches_tracked) == 0


@pytest.mark.parametrize("name", ["Dropout", "PartlyBfloat16"])
def test_policy_files_of_own_networks_still_act(name, tmp_path):
    policy = Policy(SPEC, own(name), trains=False)
    save_policy(tmp_path / "policy.safetensors", policy, None, Run(task="t", network=own(name)))
    loaded, _ = load_policy(tmp_path)
    observation = torch.ones(5, 3)
    assert torch.equal(loaded(observation)[0], policy(observation)[0])


def test_a_policy_without_dropout_starts_from_one_with_it(tmp_path):
    source, mine = Policy(SPEC, own("Dropout"), trains=False), Policy(SPEC, own("Two"), seed=1)
    save_policy(tmp_path / "policy.safetensors", source, None, Run(task="t", network=own("Dropout")))
    start_from(tmp_path, mine, None)
    assert torch.equal(mine.network.body.weight, source.network.body.weight)


def test_ppo_with_environments_on_the_host_trains_in_its_loss_alone():
    config = PPOConfig(num_steps=STEPS, num_epochs=2, num_minibatches=2)
    run = Run(task="t", num_envs=ENVS, total_steps=1000, algorithm=config, network=own("Modes"))
    policy = Policy(SPEC, run.network)
    ppo = PPO(run, policy, Comm(World(), device="cpu"))
    policy.network.modes.clear()
    actor_of(policy, torch.device("cpu"))(np.zeros((ENVS, 3), np.float32))
    assert policy.network.modes == [False]
    policy.network.modes.clear()
    ppo.update([rollout()], np.zeros((1, 0)))
    assert policy.network.modes == [False, False, *[True] * 4], "the rollout, final observations, 4 gradient steps"
    assert not policy.network.training


def on_tensors(network):
    """A policy with this network, and the collector of its rollouts in environments on tensors."""
    task = "lockstep/Cartpole-v0"
    env = make_tensor_env(task, EnvConfig(), ENVS, torch.device("cpu"))
    run = Run(task=task, num_envs=ENVS, total_steps=1000, algorithm=PPOConfig(num_steps=STEPS), network=own(network))
    policy = Policy(env.spec, run.network)
    comm = Comm(World(), device="cpu")
    normalizers = PPO(run, policy, comm).normalizers
    return policy, TensorCollector(
        comm, [env], policy, normalizers, num_steps=STEPS, gamma=0.9, seed=0, timers=Timers()
    )


def test_a_rollout_on_tensors_in_which_no_episode_ended_calls_no_network_with_0_rows():
    _, collector = on_tensors("Flattens")
    (rollout,) = collector.collect()
    assert not rollout.evaluated.ended.any()


def test_ppo_with_environments_on_tensors_acts_in_evaluation_mode():
    policy, collector = on_tensors("Modes")
    policy.network.modes.clear()
    collector.collect()
    assert len(policy.network.modes) > STEPS
    assert not any(policy.network.modes)


def test_dqn_trains_in_its_loss_alone_and_never_the_target():
    config = DQNConfig(num_steps=STEPS, batch_size=16, capacity=64, learning_starts=0, updates_per_step=2 / 32)
    run = Run(task="t", algo="dqn", num_envs=ENVS, total_steps=1000, algorithm=config, network=own("ModesOfValues"))
    policy = QPolicy(SPEC, run.network, config)
    dqn = DQN(run, policy, Comm(World(), device="cpu"))
    networks = policy.network, dqn.target.network
    for network in networks:
        network.modes.clear()
    actor_of(policy, torch.device("cpu"))(np.zeros((ENVS, 3), np.float32))
    dqn.update([rollout()], np.zeros((1, 0)), Progress(1000))
    (acting, *learning), of_target = (network.modes for network in networks)
    assert not acting
    assert learning
    assert all(learning)
    assert of_target == [False, False]
    assert not policy.network.training
