"""Policy files of JAX: they come back as they were, and what does not fit is refused. Torch's are in tests/parity."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

import made_data
from lockstep.algorithms.dqn import DQNConfig
from lockstep.data.dataset import Dataset
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError, RunError
from lockstep.experience.normalize import RunningMoments
from lockstep.jax.export import load_player, load_policy, save_policy, start_from
from lockstep.jax.networks import Policy
from lockstep.jax.q_networks import QPolicy
from lockstep.jax.scoring.offline_policy import policy_of
from lockstep.run import NetworkConfig, OfflineRun, Run
from lockstep.session import policy_file
from lockstep.session.policy_file import POLICY_FILE
from offline_policies import SMALL, spec_for

BOX = EnvSpec(4, ActionSpec("continuous", (2,), (-1.0, -np.inf), (1.0, np.inf)), "next_step", True, 100.0, 50)
SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
IMAGES = EnvSpec(4 * 36 * 36, ActionSpec("discrete", (6,)), "next_step", True, image=(4, 36, 36), frames=4)
NETWORK = NetworkConfig(hidden=(8,), activation="elu", features=16, initial_log_std=-0.5)
C51 = DQNConfig(value_distribution="categorical", num_atoms=5, v_min=-1.0, v_max=2.0)
QUANTILES = DQNConfig(value_distribution="quantile", num_quantiles=5, noisy=True, dueling=True)


def made(spec, algorithm=None, seed=3, network=NETWORK):
    if algorithm is None:
        return Run(task="some-task", network=network), Policy(spec, network, seed)
    run = Run(task="some-task", algo="dqn", network=network, algorithm=algorithm)
    return run, QPolicy(spec, network, algorithm, seed)


def moments(size=4):
    one = RunningMoments(size)
    one.update(one.sums(np.random.default_rng(0).random((20, size)), np.ones(20)))
    return one


def observed(spec):
    random = np.random.default_rng(0).random((4, *spec.observation_shape))
    return (random * (255 if spec.image else 1)).astype(spec.observation_dtype)


def test_a_player_clips_as_its_run_did(tmp_path):
    run, policy = made(dataclasses.replace(SPEC, clip_observation=0.5))
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    spec, player = load_player(tmp_path)
    assert spec.clip_observation == 0.5
    seen = []

    def actor(rows):
        seen.append(rows)
        return np.zeros((1, 3), np.float32)

    player = dataclasses.replace(player, actor=actor)
    player.act(np.array([7, -7, 0.5, 0.25, 0, -0.5], np.float32))
    np.testing.assert_array_equal(seen, [[[0.5, -0.5, 0.5, 0.25, 0, -0.5]]])


@pytest.mark.parametrize(
    "spec", [pytest.param(SPEC, id="vectors"), pytest.param(IMAGES, marks=pytest.mark.slow, id="images")]
)
@pytest.mark.parametrize("algorithm", [None, DQNConfig(), C51, QUANTILES])
def test_loaded_policy_equals_saved_policy(tmp_path, spec, algorithm):
    run, policy = made(spec, algorithm)
    policy.params = jax.tree.map(jax.numpy.asarray, policy.params)
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    for path in (tmp_path, tmp_path / POLICY_FILE):
        loaded, observations = load_policy(path)
        assert type(loaded) is type(policy)
        assert observations is None
        assert loaded.spec == spec
        assert loaded.params.keys() == policy.params.keys()
        assert all(np.array_equal(loaded.params[name], value) for name, value in policy.params.items())
        for mine, theirs in zip(
            loaded.apply(loaded.params, observed(spec)), policy.apply(policy.params, observed(spec)), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == [POLICY_FILE]


def test_so_does_its_normalizer(tmp_path):
    run, policy = made(BOX)
    save_policy(tmp_path / POLICY_FILE, policy, moments(), run)
    loaded, observations = load_policy(tmp_path)
    assert loaded.spec == BOX
    assert loaded.params.keys() == policy.params.keys()
    for name, value in moments().state().items():
        np.testing.assert_array_equal(observations.state()[name], value)
    fresh, normalizer = made(BOX, seed=4)[1], RunningMoments(4)
    start_from(tmp_path, fresh, normalizer)
    assert normalizer.count == 20
    assert all(np.array_equal(fresh.params[name], value) for name, value in policy.params.items())


@pytest.mark.parametrize(
    ("saved", "mine", "words"),
    [
        (None, DQNConfig(), "a policy of algo=ppo, and this run has algo=dqn; use --algo ppo"),
        (DQNConfig(), None, "a policy of algo=dqn, and this run has algo=ppo; use --algo dqn"),
        (DQNConfig(), DQNConfig(dueling=True), r"network differs from this run's in network\.value\.layers\.0"),
        (DQNConfig(noisy=True), DQNConfig(), r"differs .* in network\.advantage\.layers\.0\.bias_std"),
        (
            C51,
            dataclasses.replace(QUANTILES, noisy=False, dueling=False),
            r"its network has value_distribution=categorical, and this run's quantile;",
        ),
        (C51, dataclasses.replace(C51, v_max=3.0), r"has v_max=.*, and this run's 3\.0; add --set v_max="),
        (C51, dataclasses.replace(C51, num_atoms=6), r"differs .* in network\.advantage"),
    ],
)
def test_start_from_different_policy_is_rejected(tmp_path, saved, mine, words):
    run, policy = made(SPEC, saved)
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    fresh = made(SPEC, mine, seed=4)[1]
    before = dict(fresh.params)
    with pytest.raises(ConfigError, match=words):
        start_from(tmp_path, fresh, None)
    assert fresh.params == before, "a part was taken"


def test_one_normalizer_of_two_is_refused(tmp_path):
    run, policy = made(BOX)
    save_policy(tmp_path / POLICY_FILE, policy, moments(), run)
    with pytest.raises(ConfigError, match="learned with normalize_observation=true, and this run has false"):
        start_from(tmp_path, policy, None)


def test_settings_without_parameters_may_differ(tmp_path):
    run, policy = made(SPEC, DQNConfig(noisy=True, epsilon_end=0.125))
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    start_from(tmp_path, made(SPEC, DQNConfig(noisy=True, noisy_std=0.1, v_max=3.0, gamma=0.9))[1], None)
    assert load_policy(tmp_path)[0].distribution.epsilon == 0.125


def test_what_cannot_be_read_or_written_is_one_clear_line(tmp_path):
    run, policy = made(SPEC)
    with pytest.raises(ConfigError, match=r"has no policy.safetensors and no checkpoint; a run writes its policy"):
        load_policy(tmp_path)
    path = tmp_path / POLICY_FILE
    path.write_bytes(b"\x80\x04 not safetensors")
    with pytest.raises(ConfigError, match="is not a Lockstep policy file, or is damaged"):
        load_policy(path)
    save_policy(path, policy, None, run)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="is not a Lockstep policy file, or is damaged"):
        load_policy(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        save_policy(tmp_path / "file" / POLICY_FILE, policy, None, run)


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_a_file_that_describes_another_network_is_refused(tmp_path, change):
    run, policy = made(SPEC)
    name = "network.actor.layers.0.bias"
    if change == "missing":
        del policy.params[name]
    elif change == "more":
        policy.params["network.extra"] = policy.params[name]
    else:
        policy.params[name] = policy.params[name][:-1]
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    with pytest.raises(ConfigError, match="does not hold the network that it describes, or is damaged"):
        load_policy(tmp_path)


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    run, policy = made(SPEC)
    about = policy_file.PolicySpec(task="some-task", spec=SPEC, network=run.network, algorithm=run.algorithm).to_dict()
    policy_file.write(tmp_path / POLICY_FILE, dict(policy.params), None, about | {"format": 4})
    with pytest.raises(ConfigError, match=r"written by a newer version \(format 4\); upgrade lockstep-rl"):
        load_policy(tmp_path)


def test_a_policy_of_a_log_is_read_or_refused_by_its_algorithm(tmp_path):
    dataset = Dataset.open(made_data.continuous(tmp_path / "data", 20))
    run = OfflineRun(data="any", algo="iql", network=SMALL)
    policy = policy_of(spec_for(run, dataset))
    save_policy(tmp_path / POLICY_FILE, policy, None, run)
    read, _ = load_policy(tmp_path)
    assert all(np.array_equal(array, policy.params[name]) for name, array in read.params.items())
    with pytest.raises(ConfigError, match="was trained on logged data and has no simulator to play in"):
        load_player(tmp_path)
    metadata, arrays = policy_file.read(tmp_path / POLICY_FILE)
    for changes, words in (
        ({"format": 2}, "written by a newer version"),
        ({"network": {"hidden": [4, 4], "activation": "relu"}}, "does not hold the network that it describes"),
        ({"algo": "offline/td3_bc", "algorithm": {}}, "algo=td3_bc, which ml_framework=jax does not have; use --ml-f"),
    ):
        policy_file.write(tmp_path / "other.safetensors", arrays, None, metadata | changes)
        with pytest.raises(ConfigError, match=words):
            load_policy(tmp_path / "other.safetensors")
