"""Policy files of both algorithms, for vectors and images, and of older versions."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import made_data
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig, Run, ScoreNetworkConfig
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.export import load_policy, save_policy, start_from
from lockstep.torch.flat import FlatParameters
from lockstep.torch.networks import Policy
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.scoring.offline_policy import save_offline_policy
from lockstep.torch.scoring.policy import ScoringPolicy

SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
IMAGES = EnvSpec(4 * 36 * 36, ActionSpec("discrete", (6,)), "next_step", True, image=(4, 36, 36), frames=4)
NETWORK = NetworkConfig(hidden=(8,), encoder="auto", features=16)
HEADS = [
    DQNConfig(value_distribution=kind, num_atoms=5, v_min=-1.0, v_max=2.0, num_quantiles=5, dueling=d, noisy=n)
    for kind, d, n in itertools.product(("none", "categorical", "quantile"), (False, True), (False, True))
]


def made(spec, algorithm, seed=3, network=NETWORK):
    algo = "ppo" if algorithm is None else "dqn"
    run = Run(task="some-task", algo=algo, network=network) if algorithm is None else None
    run = run or Run(task="some-task", algo=algo, network=network, algorithm=algorithm)
    policy = Policy(spec, network, seed) if algorithm is None else QPolicy(spec, network, algorithm, seed)
    return run, policy


def seen(spec):
    random = np.random.default_rng(0).random((4, *spec.observation_shape))
    return torch.from_numpy((random * (255 if spec.image else 1)).astype(spec.observation_dtype))


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("algorithm", [None, *HEADS])
def test_loaded_policy_equals_saved_policy(tmp_path, spec, algorithm):
    run, policy = made(spec, algorithm)
    FlatParameters(policy)  # views of one buffer must be written as tensors of their own
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    loaded, observations = load_policy(tmp_path)
    theirs = loaded.spec
    assert type(loaded) is type(policy)
    assert observations is None
    assert theirs == spec
    assert loaded.state_dict().keys() == policy.state_dict().keys()
    with torch.no_grad():
        for a, b in zip(loaded(seen(spec)), policy(seen(spec)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_noise_is_not_saved(tmp_path):
    """The saved and evaluated network is the one without noise."""
    run, policy = made(SPEC, DQNConfig(noisy=True))
    quiet = policy(seen(SPEC))[0]
    policy.set_noise(np.random.default_rng(0).standard_normal(policy.num_noise, np.float32))
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    assert torch.equal(load_policy(tmp_path)[0](seen(SPEC))[0], quiet)


@pytest.mark.parametrize("algorithm", [None, *HEADS])
def test_run_starts_from_saved_policy(tmp_path, algorithm):
    run, policy = made(SPEC, algorithm)
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    _, fresh = made(SPEC, algorithm, seed=4)
    start_from(tmp_path, fresh, None)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), policy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("saved", "mine", "words"),
    [
        (None, DQNConfig(), "a policy of algo=ppo, and this run has algo=dqn; use --algo ppo"),
        (DQNConfig(), None, "a policy of algo=dqn, and this run has algo=ppo; use --algo dqn"),
        (DQNConfig(), DQNConfig(dueling=True), r"network differs from this run's in network\.value\.layers\.0"),
        (DQNConfig(noisy=True), DQNConfig(), r"differs .* in network\.advantage\.layers\.0\.bias_std"),
        (HEADS[4], HEADS[8], r"its network has value_distribution=.*; add --set value_distribution="),
        (HEADS[4], dataclasses.replace(HEADS[4], v_max=3.0), r"has v_max=.*, and this run's 3\.0; add --set v_max="),
        (HEADS[4], dataclasses.replace(HEADS[4], num_atoms=6), r"differs .* in network\.advantage"),
    ],
)
def test_start_from_different_policy_is_rejected(tmp_path, saved, mine, words):
    run, policy = made(SPEC, saved)
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    with pytest.raises(ConfigError, match=words):
        start_from(tmp_path, made(SPEC, mine)[1], None)


def test_file_holds_final_epsilon(tmp_path):
    run, policy = made(SPEC, DQNConfig(epsilon_end=0.125))
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    assert load_policy(tmp_path)[0].distribution.epsilon == policy.distribution.epsilon == 0.125


def test_settings_without_parameters_may_differ(tmp_path):
    run, policy = made(SPEC, DQNConfig(noisy=True))
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    start_from(tmp_path, made(SPEC, DQNConfig(noisy=True, noisy_std=0.1, v_max=3.0, gamma=0.9))[1], None)


def about(spec, **changes):
    """What versions before 2 wrote: no algorithm, no images, `shared` without a third state."""
    network = {"hidden": [8], "activation": "tanh", "shared": True, "module": None, "initial_log_std": 0.0}
    old = {name: value for name, value in spec.to_dict().items() if name not in ("image", "frames")}
    return {"format": 1, "task": "some-task", "network": network, "spec": old} | changes


def test_older_file_is_read(tmp_path):
    policy = Policy(SPEC, NetworkConfig(hidden=(8,), shared=True), seed=3)
    tensors = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    save_file(tensors, tmp_path / "policy.safetensors", metadata={"lockstep": json.dumps(about(SPEC))})
    loaded, _ = load_policy(tmp_path)
    spec = loaded.spec
    assert isinstance(loaded, Policy)
    assert spec == SPEC
    assert torch.equal(loaded(seen(SPEC))[0], policy(seen(SPEC))[0])


def test_newer_file_is_rejected(tmp_path):
    written = json.dumps(about(SPEC, format=4, surprise="something new"))
    save_file({"a": torch.zeros(1)}, tmp_path / "policy.safetensors", metadata={"lockstep": written})
    with pytest.raises(ConfigError, match=r"written by a newer version \(format 4\); upgrade lockstep-rl"):
        load_policy(tmp_path)


def test_log_policy_and_env_policy_cannot_start_each_other(tmp_path):
    from_log = policy_from_log(tmp_path / "data", "dqn", OfflineDQNConfig())
    (tmp_path / "log").mkdir()
    save_offline_policy(tmp_path / "log" / "policy.safetensors", from_log)
    run, policy = made(SPEC, DQNConfig())
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    with pytest.raises(ConfigError, match="it learned from a log, and this run learns from environments"):
        start_from(tmp_path / "log", policy, None)
    with pytest.raises(ConfigError, match="it learned from environments, and this run learns from a log"):
        start_from(tmp_path, from_log, None)
    cloned = policy_from_log(tmp_path / "again", "bc", CloningConfig())
    with pytest.raises(ConfigError, match="a policy of algo=dqn, and this run has algo=bc; use --algo dqn"):
        start_from(tmp_path / "log", cloned, None)


def policy_from_log(path, algo, config):
    """A fresh policy for made data."""
    data = Dataset.open(made_data.discrete(path))
    info, network = data.info, ScoreNetworkConfig(hidden=(8,))
    return ScoringPolicy(
        OfflinePolicySpec(
            info=info, state=data.state_features, action=None, network=network, algo=algo, algorithm=config
        ),
        seed=1,
    )
