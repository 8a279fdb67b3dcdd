"""A policy trained in one backend is evaluated by the other, and another training starts from it."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch
from networks_alike import observed, perturbed, spec_of

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.cli import main as cli
from lockstep.cli.evaluate import evaluate_run
from lockstep.envs.make import env_spec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax import export
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.networks import Policy
from lockstep.jax.q_networks import QPolicy
from lockstep.run import EnvConfig, NetworkConfig, Run, dump
from lockstep.session.policy_file import POLICY_FILE
from lockstep.torch import export as torch_export
from lockstep.torch.continuous_policy import ContinuousPolicy as TorchContinuousPolicy
from lockstep.torch.networks import Policy as TorchPolicy
from lockstep.torch.q_networks import QPolicy as TorchQPolicy
from quick import others_slow

NETWORK = NetworkConfig(hidden=(8,), features=16)
RAINBOW = DQNConfig(value_distribution="categorical", num_atoms=5, noisy=True, dueling=True)
KINDS = {
    "ppo": (spec_of("continuous"), None),
    "ppo images": (spec_of(image=(3, 40, 44)), None),
    "dqn": (spec_of(), DQNConfig()),
    "dqn images": (spec_of(image=(3, 40, 44)), RAINBOW),
    "sac": (spec_of("continuous"), SACConfig(num_critics=3, layer_norm=True)),
    "td3": (spec_of("continuous"), TD3Config()),
}


def run_of(algorithm):
    if algorithm is None:
        return Run(task="some-task", network=NETWORK)
    algo = {DQNConfig: "dqn", SACConfig: "sac", TD3Config: "td3"}[type(algorithm)]
    return Run(task="some-task", algo=algo, network=NETWORK, algorithm=algorithm)


def of_torch(spec, algorithm, seed=3):
    policy = made(TorchPolicy, TorchQPolicy, TorchContinuousPolicy, spec, algorithm, seed)
    perturbed(policy, seed)
    return policy


def of_jax(spec, algorithm, seed=4):
    return made(Policy, QPolicy, ContinuousPolicy, spec, algorithm, seed)


def made(plain, q, continuous, spec, algorithm, seed):
    """A policy of the class for the algorithm: of PPO, of DQN, or of SAC and TD3."""
    if algorithm is None:
        return plain(spec, NETWORK, seed)
    return (q if isinstance(algorithm, DQNConfig) else continuous)(spec, NETWORK, algorithm, seed)


def moments(size):
    one = RunningMoments(size)
    one.update(one.sums(np.random.default_rng(0).random((20, size)), np.ones(20)))
    return one


def acts(policy, observation):
    """What a policy of either backend makes of observations."""
    if isinstance(policy, torch.nn.Module):
        return policy(torch.from_numpy(observation))[0].detach().numpy()
    return np.asarray(policy.apply(policy.params, observation)[0])


@pytest.mark.parametrize("kind", others_slow(KINDS, "ppo images", "dqn", "sac"))
@pytest.mark.parametrize("start", [False, True], ids=["loaded", "started from"])
@pytest.mark.parametrize("to", ["jax", "torch"])
def test_a_policy_of_one_is_a_policy_of_the_other(tmp_path, kind, start, to):
    spec, algorithm = KINDS[kind]
    normalizer = None if spec.image or algorithm else moments(spec.observation_size)
    source, save, there, other = (
        (of_torch(spec, algorithm), torch_export.save_policy, export, of_jax(spec, algorithm))
        if to == "jax"
        else (of_jax(spec, algorithm), export.save_policy, torch_export, of_torch(spec, algorithm))
    )
    save(tmp_path / POLICY_FILE, source, normalizer, run_of(algorithm))
    if start:
        loaded, observations = other, normalizer and RunningMoments(spec.observation_size)
        there.start_from(tmp_path, loaded, observations)
    else:
        loaded, observations = there.load_policy(tmp_path)
    assert type(loaded) is type(other)
    assert loaded.spec == spec
    np.testing.assert_allclose(acts(loaded, observed(spec)), acts(source, observed(spec)), rtol=1e-5, atol=1e-5)
    assert (observations is None) == (normalizer is None)
    if normalizer is not None:
        np.testing.assert_array_equal(observations.mean, normalizer.mean)
        assert observations.count == 20


@pytest.mark.parametrize("to", ["jax", "torch"])
def test_the_statistics_of_a_critic_of_one_are_those_of_the_other(tmp_path, to):
    spec, held = spec_of("continuous"), {"returns": moments(1), "values": moments(1)}
    save, there, mine = torch_export.save_policy, export, of_jax(spec, None)
    source = of_torch(spec, None)
    if to == "torch":
        save, there, mine, source = export.save_policy, torch_export, source, mine
    save(tmp_path / POLICY_FILE, source, None, run_of(None), critic_moments=held)
    found = {name: RunningMoments(1) for name in held}
    assert there.start_from(tmp_path, mine, None, found) == []
    for name, one in held.items():
        for key, array in one.state().items():
            np.testing.assert_array_equal(found[name].state()[key], array, err_msg=f"{name}.{key}")
    assert there.load_policy(tmp_path)[1] is None, "they are not the normalizer of observations"


def test_the_same_policy_is_the_same_file_but_for_what_wrote_it(tmp_path):
    """Byte for byte: watchers, fingerprints and caches need not know which backend wrote it."""
    spec, algorithm = KINDS["dqn images"]
    theirs, mine = of_torch(spec, algorithm), of_jax(spec, algorithm)
    torch_export.save_policy(tmp_path / "torch", theirs, None, run_of(algorithm))
    export.start_from(tmp_path / "torch", mine, None)
    export.save_policy(tmp_path / "jax", mine, None, run_of(algorithm))
    assert (tmp_path / "torch").read_bytes() == (tmp_path / "jax").read_bytes()


def test_the_same_mistakes_have_the_same_words(tmp_path):
    saved = {"dqn": (RAINBOW, DQNConfig(v_max=3.0, **{f: getattr(RAINBOW, f) for f in ("noisy", "dueling")}))}
    cases = [(None, DQNConfig()), (DQNConfig(), None), saved["dqn"], (RAINBOW, dataclasses.replace(RAINBOW, v_max=3.0))]
    spec = spec_of()
    for source, mine in cases:
        torch_export.save_policy(tmp_path / POLICY_FILE, of_torch(spec, source), None, run_of(source))
        said = []
        for start, policy in (
            (torch_export.start_from, of_torch(spec, mine)),
            (export.start_from, of_jax(spec, mine)),
        ):
            with pytest.raises(ConfigError) as error:
                start(tmp_path, policy, None)
            said.append(str(error.value))
        assert said[0] == said[1]


@pytest.mark.parametrize("trained_by", ["torch", "jax"])
@pytest.mark.parametrize("sampled", [False, True])
def test_lockstep_evaluate_plays_the_same_episodes_by_either(tmp_path, trained_by, sampled):
    run = Run(task="CartPole-v1", network=NETWORK, ml_framework=trained_by, env=EnvConfig(max_episode_steps=60))
    spec = env_spec(run.task, run.env)
    policy, save = (
        (of_torch(spec, None), torch_export.save_policy)
        if trained_by == "torch"
        else (of_jax(spec, None), export.save_policy)
    )
    save(tmp_path / POLICY_FILE, policy, moments(4), run)
    (tmp_path / "run.yaml").write_text(dump(run))
    played = [evaluate_run(tmp_path, episodes=6, greedy=not sampled, ml_framework=name) for name in ("torch", "jax")]
    assert played[0] == played[1]
    assert len(played[0]["returns"]) == 6
    assert len(set(played[0]["returns"])) > 1, "every episode was alike: nothing was compared"
    default = evaluate_run(tmp_path, episodes=6, greedy=not sampled)
    assert default == played[0]


@pytest.mark.parametrize("trained_by", ["torch", "jax"])
def test_the_backend_that_acts_is_the_one_asked_for(tmp_path, monkeypatch, trained_by):
    run = Run(task="CartPole-v1", network=NETWORK, ml_framework=trained_by, env=EnvConfig(max_episode_steps=5))
    export.save_policy(tmp_path / POLICY_FILE, of_jax(env_spec(run.task, run.env), None), None, run)
    (tmp_path / "run.yaml").write_text(dump(run))
    asked = []
    for name, module in (("torch", torch_export), ("jax", export)):
        load = module.player_from
        monkeypatch.setattr(module, "player_from", lambda *a, n=name, f=load: asked.append(n) or f(*a))
    for name in (None, "torch", "jax"):
        evaluate_run(tmp_path, episodes=1, ml_framework=name)
    assert asked == [trained_by, "torch", "jax"]


def test_the_command_says_which_backend_acts(tmp_path, capsys):
    run = Run(task="CartPole-v1", network=NETWORK, env=EnvConfig(max_episode_steps=20))
    spec = env_spec(run.task, run.env)
    torch_export.save_policy(tmp_path / POLICY_FILE, of_torch(spec, None), None, run)
    (tmp_path / "run.yaml").write_text(dump(run))
    assert cli.main(["evaluate", str(tmp_path), "--episodes", "2", "--ml-framework", "jax", "--video"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("CartPole-v1: return ")
    assert (tmp_path / "videos" / "evaluate.gif").stat().st_size > 1000
    assert cli.main(["evaluate", str(tmp_path), "--ml-framework", "tensorflow"]) == 2


def test_a_network_of_ones_own_is_of_one_backend(tmp_path):
    run = Run(task="CartPole-v1", network=NetworkConfig(module=f"{__file__}:TorchOnly"))
    policy = TorchPolicy(env_spec(run.task, run.env), run.network)
    torch_export.save_policy(tmp_path / POLICY_FILE, policy, None, run)
    with pytest.raises(ConfigError, match=r"TorchOnly made a TorchOnly without init\(seed\) and apply"):
        export.load_policy(tmp_path)


class TorchOnly(torch.nn.Module):
    """A network for torch."""

    def __init__(self, observation_size, num_parameters):
        super().__init__()
        self.layer = torch.nn.Linear(observation_size, num_parameters)

    def forward(self, observation):
        parameters = self.layer(observation)
        return parameters, parameters[:, 0]
