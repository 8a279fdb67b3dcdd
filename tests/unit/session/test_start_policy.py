"""`--init-from` a policy that the run cannot start from is refused before there is a run directory."""

from dataclasses import replace

import pytest

import made_data
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.main import main
from lockstep.config.env import EnvConfig
from lockstep.data.dataset import Dataset
from lockstep.envs.make import env_spec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.run import OfflineRun, Run, override
from lockstep.session import start_policy
from lockstep.session.start_policy import check_start_policy
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.export import save_policy
from lockstep.torch.networks import Policy
from lockstep.torch.q_networks import QPolicy
from lockstep.train import train
from offline_policies import policy_for

PPO = Run(task="CartPole-v1")
DQN = Run(task="CartPole-v1", algo="dqn", algorithm=DQNConfig())
SPEC = env_spec("CartPole-v1", EnvConfig())


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Policy files of several kinds, and data, by name."""
    folder = tmp_path_factory.mktemp("policies")
    paths = {name: folder / name for name in ("ppo", "normalized", "dqn", "categorical", "log", "data", "other_data")}
    save_policy(paths["ppo"], Policy(SPEC, PPO.network, seed=1), None, PPO)
    save_policy(paths["normalized"], Policy(SPEC, PPO.network, seed=1), RunningMoments(4), PPO)
    save_policy(paths["dqn"], QPolicy(SPEC, DQN.network, DQN.algorithm), None, DQN)
    categorical = DQNConfig(value_distribution="categorical")
    save_policy(paths["categorical"], QPolicy(SPEC, DQN.network, categorical), None, DQN)
    made_data.discrete(paths["data"])
    made_data.discrete(paths["other_data"], state_size=7)
    logged = OfflineRun(data=str(paths["data"]))
    save_policy(paths["log"], policy_for(logged, Dataset.open(logged.data)), None, logged)
    return paths


NOT_NORMALIZED = Run(task="CartPole-v1", algorithm=PPOConfig(normalize_observation=False))


def other(run, algorithm=None, **network):
    """The run with other settings of its algorithm and network."""
    return replace(
        run,
        algorithm=replace(run.algorithm, **algorithm or {}),
        network=replace(run.network, **network),
    )


@pytest.mark.parametrize(
    ("name", "run", "words"),
    [
        (
            "ppo",
            other(PPO, hidden=(32, 32)),
            "its network has network.hidden=[64, 64], and this run's [32, 32]; add --set 'network.hidden=[64, 64]', or "
            "start without it",
        ),
        ("ppo", other(PPO, activation="relu"), "network.activation=tanh, and this run's relu; add --set network.activ"),
        ("ppo", other(PPO, recurrent="gru"), "network.recurrent=none, and this run's gru"),
        ("ppo", other(PPO, critic_hidden=(8,)), "network.critic_hidden=[64, 64], and this run's [8]"),
        ("ppo", other(PPO, shared=True), "network.shared=false, and this run's true"),
        ("dqn", other(DQN, {"dueling": True}), "its network has dueling=false, and this run's true"),
        ("ppo", DQN, "a policy of algo=ppo, and this run has algo=dqn; use --algo ppo, or start without it"),
        ("dqn", PPO, "a policy of algo=dqn, and this run has algo=ppo"),
        ("log", PPO, "it learned from a log, and this run learns from environments; leave it out"),
        ("ppo", OfflineRun, "it learned from environments, and this run learns from a log; leave it out"),
        ("log", "other_data", "its network differs from this run's in state features"),
        (
            "categorical",
            override(DQN, {"value_distribution": "categorical", "v_max": 5.0}),
            "its network has v_max=10.0, and this run's 5.0; add --set v_max=10.0, or start without it",
        ),
        ("categorical", DQN, "its network has value_distribution=categorical, and this run's none; add --set value_"),
        (
            "normalized",
            NOT_NORMALIZED,
            "its policy learned with normalize_observation=true, and this run has false; add --set "
            "normalize_observation=true, or start without it",
        ),
        (
            "ppo",
            Run(task="Acrobot-v1"),
            "it observes [4] and takes discrete actions of [2], and task=Acrobot-v1 observes [6] and takes discrete "
            "actions of [3]; use a policy of this task, or start without it",
        ),
        ("ppo", Run(task="Pendulum-v1"), "and task=Pendulum-v1 observes [3] and takes continuous actions of [1]"),
    ],
)
def test_it_names_what_differs(policies, name, run, words):
    if not isinstance(run, Run):
        run = OfflineRun(data=str(policies["data" if run is OfflineRun else run]))
    with pytest.raises(ConfigError) as caught:
        check_start_policy(policies[name], run)
    assert str(caught.value).startswith(f"--init-from {policies[name]}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("saved", "given", "words"),
    [
        (
            0.2,
            None,
            "is fixed (alpha=0.2), and this run's is learned (alpha=null); add --set alpha=0.2,",
        ),
        (
            None,
            0.1,
            "is learned (alpha=null), and this run's is fixed (alpha=0.1); add --set alpha=null,",
        ),
    ],
)
def test_a_fixed_and_a_learned_temperature_are_told_apart(tmp_path, saved, given, words):
    run = override(Run(task="Pendulum-v1"), {"algo": "sac", "alpha": saved})
    policy = ContinuousPolicy(env_spec(run.task, run.env), run.network, run.algorithm)
    save_policy(tmp_path / "policy", policy, None, run)
    check_start_policy(tmp_path / "policy", run)
    with pytest.raises(ConfigError) as caught:
        check_start_policy(tmp_path / "policy", override(run, {"alpha": given}))
    assert words in str(caught.value)


def test_the_deviation_that_is_added_to_the_output_of_a_network_is_the_same(tmp_path):
    """The policy had other deviations than the file, by a factor of e^2, and nothing was said."""
    first = override(Run(task="Pendulum-v1"), {"state_dependent_std": True, "initial_log_std": -2.0})
    later = override(first, {"initial_log_std": 0.0})
    spec = env_spec(first.task, first.env)
    save_policy(tmp_path / "policy", Policy(spec, first.network), None, first)
    check_start_policy(tmp_path / "policy", first)
    told = r"its network has network.initial_log_std=-2.0, and this run's 0.0; add --set network.initial_log_std=-2.0"
    with pytest.raises(ConfigError, match=told):
        check_start_policy(tmp_path / "policy", later)


def test_nothing_is_said_where_it_fits(policies):
    check_start_policy(policies["ppo"], PPO)
    check_start_policy(policies["ppo"], other(PPO, critic_hidden=(64, 64), shared=False, recurrent_size=8))
    check_start_policy(policies["dqn"], DQN)
    check_start_policy(policies["log"], OfflineRun(data=str(policies["data"])))


IMAGE = Run(task="lockstep/PixelPong-v0")
IMAGE_DQN = Run(task="lockstep/PixelPong-v0", algo="dqn")


@pytest.mark.parametrize(
    ("saved", "run", "words"),
    [
        (IMAGE, other(IMAGE, encoder="impala"), "network.encoder=nature, and this run's impala; add --set network.enc"),
        (IMAGE, other(IMAGE, features=64), "its network has network.features=512, and this run's 64"),
        (IMAGE, other(IMAGE, shared=False), "its network has network.shared=true, and this run's false"),
        (IMAGE, other(IMAGE, hidden=(8,), activation="relu", encoder="nature"), None),
        (
            other(IMAGE, encoder="mlp"),
            other(IMAGE, encoder="mlp", hidden=(8,)),
            "network.hidden=[64, 64], and this run's [8]",
        ),
        (IMAGE_DQN, other(IMAGE_DQN, features=64), "its network has network.features=512, and this run's 64"),
        (IMAGE_DQN, other(IMAGE_DQN, hidden=(8,), activation="relu", shared=True), None),
    ],
)
def test_networks_of_images_are_compared_by_their_settings(tmp_path, saved, run, words):
    spec = env_spec(saved.task, EnvConfig())
    if saved.algo == "dqn":
        policy = QPolicy(spec, saved.network, saved.algorithm)
    else:
        policy = Policy(spec, saved.network, seed=1)
    save_policy(tmp_path / "policy", policy, None, saved)
    if words is None:
        check_start_policy(tmp_path / "policy", run)
        return
    with pytest.raises(ConfigError) as caught:
        check_start_policy(tmp_path / "policy", run)
    assert words in str(caught.value)


@pytest.mark.parametrize("words", [[], ["--ranks", "2"], ["--max-restarts", "1"], ["--seeds", "0:2"]])
def test_no_run_directory_is_left(policies, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--algo", "dqn", "--init-from", str(policies["ppo"]), *words]) == 2
    assert "a policy of algo=ppo, and this run has algo=dqn" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_run_directory_is_left_by_learning_from_a_log(policies, tmp_path, capsys):
    command = ["offline", "train", str(policies["other_data"]), "--init-from", str(policies["log"])]
    assert main([*command, "--run-dir", str(tmp_path / "run")]) == 2
    assert "its network differs from this run's in state features" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ranks", [None, 2])
def test_no_run_directory_is_left_by_a_script(policies, tmp_path, ranks):
    with pytest.raises(ConfigError, match="a policy of algo=ppo, and this run has algo=dqn"):
        train(DQN, ranks=ranks, run_dir=tmp_path / "run", init_from=policies["ppo"])
    assert list(tmp_path.iterdir()) == []


def test_the_policy_is_checked_once_by_the_command_and_by_a_script(policies, tmp_path, monkeypatch):
    """The check reads the file and makes an environment."""
    checked = []

    def begin(*_):
        raise ConfigError("enough")

    monkeypatch.setattr(start_policy, "check_start_policy", lambda path, run: checked.append(path))
    monkeypatch.setattr("lockstep.launch.train._open", begin)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--init-from", str(policies["ppo"])]) == 2
    assert checked == [policies["ppo"]]
    with pytest.raises(ConfigError, match="enough"):
        train(PPO, init_from=policies["ppo"])
    assert checked == [policies["ppo"]] * 2
