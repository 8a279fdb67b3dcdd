"""Names of settings in other libraries: the error suggests our setting."""

import collections
import re
import shlex
from dataclasses import fields, is_dataclass

import pytest

from lockstep.cli import main as cli
from lockstep.cli.parser import parser
from lockstep.cli.request import set_values
from lockstep.config.absent import ABSENT
from lockstep.config.renamed import known_settings, renaming_error
from lockstep.config.synonyms import SYNONYMS
from lockstep.config.variants import VARIANTS
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun, Run, from_dict, override

PPO, DQN = Run(task="CartPole-v1"), Run(task="CartPole-v1", algo="dqn")
SAC, TD3 = Run(task="Pendulum-v1", algo="sac"), Run(task="Pendulum-v1", algo="td3")
LOGGED = OfflineRun(data="data")
SAMPLES = ("0.5", "64", "1", "true", "linear", "[64, 64]", "relu", "cpu", "CartPole-v1", "ppo", "float32")

pytestmark = pytest.mark.usefixtures("here")


def train_flags():
    top = parser(collections.defaultdict(lambda: print))
    train = next(action for action in top._actions if action.dest == "command").choices["train"]
    return {flag for action in train._actions for flag in action.option_strings}


@pytest.mark.parametrize("word", SYNONYMS, ids=lambda word: word.setting + " " + word.names.split()[0])
def test_every_synonym_names_an_existing_setting_or_flag(word):
    if word.setting.startswith("--"):
        assert word.setting in train_flags()
    else:
        homes = [run for run in (PPO, DQN, SAC, TD3, LOGGED) if word.setting in known_settings(run)]
        assert homes
        assert all(not is_dataclass(known_settings(run)[word.setting]) for run in homes)


@pytest.mark.parametrize("word", SYNONYMS, ids=lambda word: word.setting + " " + word.names.split()[0])
def test_suggested_line_is_accepted(word):
    """For at least one sample value, by a run that has the setting."""
    if word.setting.startswith("--"):
        return
    run = next(run for run in (PPO, DQN, SAC, TD3, LOGGED) if word.setting in known_settings(run))
    lines = [renaming_error(word.names.split()[0], value, known_settings(run), "set") for value in SAMPLES]
    for line in filter(None, lines):
        typed = shlex.split(line.rpartition(": type ")[2])
        changes = {typed[0][2:]: typed[1]} if typed[0] in ("--task", "--algo") else dict([typed[1].split("=", 1)])
        try:
            override(run, changes)
            return
        except ConfigError:
            continue
    found = {synonym.setting for synonym in SYNONYMS if word.names.split()[0] in synonym.names.split()}
    assert word.value is not None or len(found) > 1, lines  # a value that cannot be told, or another synonym came first


def test_no_synonym_is_shadowed_by_a_setting():
    """A name that every algorithm has as a setting would never be looked up."""
    everywhere = set.intersection(*({*known_settings(run)} for run in (PPO, DQN, SAC, TD3, LOGGED)))
    parts = {item.name for run in (PPO, LOGGED) for item in fields(run) if is_dataclass(getattr(run, item.name))}
    for word in SYNONYMS:
        assert not set(word.names.split()) & (everywhere - parts), word


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("lr=3e-4", "--set learning_rate=3e-4"),
        ("n_envs=16", "--set num_envs=16"),
        ("n_steps=2048", "--set num_steps=2048"),
        ("ent_coef=0.01", "--set entropy_coef=0.01"),
        ("critic_coef=0.5", "--set value_coef=0.5"),
        ("value_loss_scale=1.0", "--set value_coef=2"),  # skrl weighs the squared error, ours half of it
        ("value_loss_coef=0.5", "--set value_coef=1"),
        ("vf_coef=0.5", "--set value_coef=VALUE"),  # CleanRL halves the squared error, Stable-Baselines3 does not
        ("gae=0.9", "--set gae_lambda=0.9"),
        ("tau=0.9", "--set gae_lambda=0.9"),
        ("clip=0.1", "--set clip_range=0.1"),
        ("clip_coef=0.2", "--set clip_range=0.2"),
        ("total_timesteps=1e6", "--set total_steps=1e6"),
        ("timesteps=1e6", "--set total_steps=16000000"),  # of each of 16 environments
        ("batch_size=64", "--set num_minibatches=32"),  # 16 * 128 / 64
        ("batch_size=100", "--set num_minibatches=VALUE"),
        ("algorithm.lr=3e-4", "--set learning_rate=3e-4"),
        ("anneal_lr=false", "--set learning_rate_schedule=constant"),
        ("init_noise_std=1.0", "--set initial_log_std=0"),
        ("clip_vloss=true", "--set value_clip_range=0.2"),
        ("net_arch=[64, 64]", "--set 'hidden=[64, 64]'"),
        ("net_arch={pi: [64], qf: [64]}", "--set hidden=VALUE"),
        ("policy_kwargs={net_arch: [64, 64]}", "--set hidden=VALUE"),
        ("update_every=64", "--set num_steps=4"),
        ("verbose=1", "--set log_every=VALUE"),
        ("ent_coef=auto", "--set entropy_coef=VALUE"),
        ("max_iterations=3", "--max-iterations 3"),
        ("ranks=2", "--ranks 2"),
        ("env=Pendulum-v1", "--task Pendulum-v1"),
    ],
)
def test_set_suggests_our_setting(given, line, capsys):
    assert cli.main(["train", "CartPole-v1", "--set", given]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep: error: unknown setting {given}; here it is ")
    assert said.endswith(f": type {line}\n")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("n_steps=3", "--set n_step=3"),
        ("tau=0.005", "--set target_rate=0.005"),
        ("update_after=1000", "--set learning_starts=1000"),
        ("polyak=0.005", "--set target_rate=0.005"),  # of skrl
        ("polyak=0.995", "--set target_rate=0.005"),  # of Spinning Up, the part that stays
        ("train_freq=4", "--set updates_per_step=0.25"),
        ("buffer_size=1e5", "--set capacity=1e5"),
        ("target_network_frequency=4000", "--set target_update_every=2000"),
        ("target_update_freq=500", "--set target_update_every=500"),
        ("exploration_fraction=0.1", "--set epsilon_steps=50000"),
        ("train_batch_size=64", "--set batch_size=64"),
    ],
)
def test_synonym_depends_on_the_algorithm(given, line, capsys):
    assert cli.main(["train", "CartPole-v1", "--algo", "dqn", "--set", given]) == 2
    assert capsys.readouterr().err.endswith(f": type {line}\n")


def test_policy_frequency_of_sac_is_no_delay():
    """In CleanRL's SAC, unlike its TD3, as many steps of the policy make up for the delay."""
    for run, line in ((SAC, "--set policy_delay=1"), (TD3, "--set policy_delay=2")):
        with pytest.raises(ConfigError, match=f"type {line}$"):
            override(run, {"policy_frequency": "2"})


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "Pendulum-v1", "--algo", "iql"], "lockstep offline train DATA --algo iql"),
        (["train", "CartPole-v1", "--set", "lstm_hidden_size=32"], "type --set recurrent_size=32"),
        (["train", "CartPole-v1", "--use-lstm"], "type --set recurrent=lstm"),
        (["train", "CartPole-v1", "--set", "seq_len=8"], "type --set sequence_length=8"),
        (["train", "CartPole-v1", "--set", "stack_num=4"], "type --set frame_stack=4"),
        (["offline", "train", "data", "--algo", "iql", "--expectile", "0.8"], "type --set expectile=0.8"),
        (["offline", "train", "data", "--algo", "td3_bc", "--temperature", "1"], "unknown argument --temperature"),
        (["train", "CartPole-v1", "--set", "num_envs=1e0", "--set", "num_step=1"], "num_step"),
        (["train", "CartPole-v1", "--set", "num_envs=null"], "num_envs=null must be a whole number"),
    ],
)
def test_answers_that_depend_on_algorithm_and_kind(words, answer, capsys):
    assert cli.main(words) == 2
    assert answer in capsys.readouterr().err


def test_names_of_the_user_keep_their_hyphens():
    given = ["reward-boost.add-to-cart=1", "env.kwargs.my-key.b-c=2", "num-envs=4", "feature-overrides.user-age=enum"]
    names = ["reward_boost.add-to-cart", "env.kwargs.my-key.b-c", "num_envs", "feature_overrides.user-age"]
    assert [*set_values(given)] == names


def test_the_last_value_of_a_name_counts():
    assert set_values(["gamma=0.9", "num-envs=4", "gamma=0.8", "num_envs=8"]) == {"gamma": "0.8", "num_envs": "8"}


def test_the_alpha_of_td3_bc_is_no_temperature():
    known = known_settings(OfflineRun(data="data", algo="td3_bc"))
    assert "alpha" in known and renaming_error("temperature", "1", known, "set") is None
    assert "which algo=td3_bc does not have" in (renaming_error("ent_coef", "1", known, "set") or "")


@pytest.mark.parametrize(("algo", "value"), [("td3_bc", "sampled"), ("td3_bc", "greedy")])
def test_our_policy_of_an_algorithm_that_has_none_is_no_kind_of_network(algo, value):
    run = OfflineRun(data="data", algo=algo)
    with pytest.raises(ConfigError, match=rf"^policy is a setting of .*iql.*, and this run trains with algo={algo}"):
        override(run, {"policy": value})
    with pytest.raises(ConfigError, match="here the kind of network follows from the observation: leave it out"):
        override(run, {"policy": "MlpPolicy"})


@pytest.mark.parametrize("word", ABSENT)
def test_words_without_a_counterpart_are_left_out(word, capsys):
    assert word not in {name for synonym in SYNONYMS for name in synonym.names.split()}
    for how in (["--set", f"{word}=some"], [f"--{word.replace('_', '-')}", "some"]):
        assert cli.main(["train", "CartPole-v1", *how]) == 2
        assert capsys.readouterr().err.endswith(f"; here {ABSENT[word]}: leave it out\n")


def test_layers_of_critics_have_a_setting_of_their_own(capsys):
    for given in ("net_arch={pi: [64], qf: [32]}", "policy_kwargs={net_arch: [64]}"):
        assert cli.main(["train", "Pendulum-v1", "--algo", "sac", "--set", given]) == 2
        assert "critic_hidden is that of critics alone" in capsys.readouterr().err


def test_automatic_temperature(capsys):
    assert cli.main(["train", "Pendulum-v1", "--algo", "sac", "--set", "ent_coef=auto"]) == 2
    assert capsys.readouterr().err.endswith("null learns it, from initial_alpha on): type --set alpha=null\n")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("log_alpha_init=0", "(not its logarithm): type --set initial_alpha=1"),
        ("log_alpha_init=-1", "(not its logarithm): type --set initial_alpha=0.367879"),
        ("init_alpha=0.5", "type --set initial_alpha=0.5"),
        ("autotune=true", "type --set alpha=null"),
        ("autotune=false", "type --set alpha=VALUE"),
    ],
)
def test_the_start_of_the_temperature(capsys, theirs, ours):
    assert cli.main(["train", "Pendulum-v1", "--algo", "sac", "--set", theirs]) == 2
    assert capsys.readouterr().err.endswith(f"{ours}\n")


def test_conversion_uses_other_settings_of_the_same_call(capsys):
    assert cli.main(["train", "CartPole-v1", "--num-envs", "4", "--set", "n_epochs=3", "--set", "batch_size=64"]) == 2
    assert "--set num_epochs=3" in capsys.readouterr().err
    assert cli.main(["train", "CartPole-v1", "--num-envs", "4", "--set", "batch_size=64"]) == 2
    assert "a minibatch is num_envs * num_steps / num_minibatches transitions" in (said := capsys.readouterr().err)
    assert said.endswith("--set num_minibatches=8\n")


def test_setting_of_another_algorithm_is_reported(capsys):
    assert cli.main(["train", "CartPole-v1", "--set", "buffer_size=10"]) == 2
    assert "here it is capacity, which algo=ppo does not have: leave it out" in capsys.readouterr().err
    assert cli.main(["train", "CartPole-v1", "--algo", "dqn", "--set", "num_epochs=10"]) == 2
    assert "num_epochs is a setting of ppo" in capsys.readouterr().err


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.names.split()[0])
def test_settings_of_an_algorithm_by_another_name_are_accepted(variant):
    answered = []
    for run in (PPO, LOGGED):
        try:
            override(run, {"algo": variant.names.split()[0]})
        except ConfigError as error:
            if f"here it is algo={variant.algo}" in str(error):
                answered.append(run)
    assert answered
    for run in answered:
        override(run, {"algo": variant.algo, **dict(setting.split("=", 1) for setting in variant.settings.split())})


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("ddpg", "algo=td3 with the settings num_critics=1, policy_delay=1, target_noise=0"),
        ("Recurrent-PPO", "algo=ppo with the setting network.recurrent=lstm"),
        ("RecurrentPPO", "algo=ppo with the setting network.recurrent=lstm"),
        ("SAC", "algo=sac"),
    ],
)
def test_algorithm_by_another_name(given, answer, capsys):
    for typed in (["--algo", given], ["--set", f"algo={given}"]):
        assert cli.main(["train", "Pendulum-v1", *typed]) == 2
        assert capsys.readouterr().err == f"lockstep: error: unknown algo={given}; here it is {answer}\n"


@pytest.mark.parametrize(
    ("arguments", "typed", "line"),
    [
        ("cartpole --lr 3e-4", "--lr 3e-4", "--set learning_rate=3e-4"),
        ("--lr=3e-4 cartpole", "--lr 3e-4", "--set learning_rate=3e-4"),
        ("cartpole --learning-rate 3e-4", "--learning-rate 3e-4", "--set learning_rate=3e-4"),
        ("cartpole --total-steps 1e6", "--total-steps 1e6", "--set total_steps=1e6"),
        ("cartpole --total_timesteps=1e6", "--total_timesteps 1e6", "--set total_steps=1e6"),
        ("--batch-size 64 cartpole_dqn", "--batch-size 64", "--set batch_size=64"),
        ("--batch-size 64 CartPole-v1 --num-envs 4", "--batch-size 64", "--set num_minibatches=8"),
        ("--double cartpole_dqn", "--double", "--set double=true"),
        ("--capture-video cartpole", "--capture-video", "--video"),
        ("--env-id CartPole-v1", "--env-id CartPole-v1", "--task CartPole-v1"),
        ("--logger wandb cartpole", "--logger wandb", "--set 'trackers=[wandb]'"),
        ("--logger tensorboard cartpole", "--logger tensorboard", "--set 'trackers=[]'"),
        ("--algorithm PPO cartpole", "--algorithm PPO", "--algo ppo"),
        ("--wandb cartpole", "--wandb", "--set 'trackers=[wandb]'"),
        ("--config my.yaml", "--config my.yaml", "--task my.yaml"),
        ("cartpole --max-grad-norm -1", "--max-grad-norm -1", "--set max_grad_norm=-1"),
        ("--tau 0.9 --algo dqn CartPole-v1", "--tau 0.9", "--set target_rate=0.9"),
    ],
)
def test_flag_suggests_our_setting(arguments, typed, line, capsys):
    assert cli.main(["train", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep: error: unknown argument {typed}; ")
    assert said.endswith(f": type {line}\n")


def test_names_in_a_mapping_of_a_section_are_explained(capsys):
    assert cli.main(["train", "cartpole", "--set", "algorithm={lr: 1}"]) == 2
    assert "unknown setting algorithm.lr=1; here it is learning_rate: type" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"algorithm\.leaning_rate; did you mean algorithm\.learning_rate or"):
        override(PPO, {"algorithm": "{leaning_rate: 1}"})
    with pytest.raises(ConfigError, match="did you mean algorithm or"):
        override(PPO, {"algoritm": "{gamma: 1}"})


def test_flags_of_offline_and_other_commands(capsys):
    assert cli.main(["offline", "train", "data", "--weight-decay", "0.1"]) == 2
    assert capsys.readouterr().err.endswith(": type --set l2_decay=0.1\n")
    assert cli.main(["chaos", "cartpole", "--lr", "3"]) == 2
    assert capsys.readouterr().err.endswith(": type --set learning_rate=3\n")
    assert cli.main(["chaos", "cartpole", "--resume", "run"]) == 2  # a flag of lockstep train alone
    assert "unknown argument --resume; see lockstep chaos --help" in capsys.readouterr().err
    assert cli.main(["evaluate", "runs/x", "--episode", "3"]) == 2
    assert "did you mean --episodes" in capsys.readouterr().err
    assert cli.main(["train", "cartpole", "--entropy-coeficient", "3"]) == 2
    assert "did you mean --set entropy_coef=VALUE?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"algorithm": {"lr": 3e-4}}, "`algorithm: {learning_rate: 0.0003}`"),
        ({"lr": 3e-4}, "`algorithm: {learning_rate: 0.0003}`"),
        ({"n_envs": 4}, "`num_envs: 4`"),
        ({"num_envs": 4, "batch_size": 64}, "`algorithm: {num_minibatches: 8}`"),
        ({"network": {"hidden_sizes": [64, 64]}}, "`network: {hidden: [64, 64]}`"),
        ({"algo": "dqn", "algorithm": {"tau": 0.005}}, "`algorithm: {target_rate: 0.005}`"),
    ],
)
def test_yaml_suggests_our_setting(data, line):
    with pytest.raises(ConfigError, match=re.escape(f": write {line}")):
        from_dict({"task": "CartPole-v1", **data})


def test_python_override_suggests_our_setting():
    with pytest.raises(ConfigError, match=r"unknown setting lr=0.0003; here it is learning_rate: write learning_rate="):
        override(PPO, {"lr": 3e-4})


def test_environment_arguments_are_not_checked():
    assert override(PPO, {"env.kwargs.lr": "3"}).env.kwargs == {"lr": 3}
    assert from_dict({"task": "a", "env": {"kwargs": {"lr": 3}}}).env.kwargs == {"lr": 3}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trian cartpole", "lockstep train"),
        ("offline preparre log", "lockstep offline prepare"),
        ("eval runs/x", "lockstep evaluate"),
        ("resume runs/x", "lockstep train --resume"),
        ("help", "lockstep --help"),
        ("cartpole --ranks 2", "lockstep train cartpole"),
        ("CartPole-v1", "lockstep train CartPole-v1"),
    ],
)
def test_unknown_command_suggests_a_similar_one(typed, meant, capsys):
    assert cli.main(typed.split()) == 2
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


def test_unknown_command_without_match_lists_all(capsys):
    assert cli.main(["zzz"]) == 2
    assert "lockstep has no command zzz; commands are train, sweep, bench" in capsys.readouterr().err


def test_help_shows_common_settings_with_current_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    told = capsys.readouterr().out.partition("settings that are changed most")[2].partition("example:")[0]
    rows = {row.split()[0]: row for row in told.splitlines() if row.startswith("  ")}
    count = 0
    for line in told.splitlines()[1:]:
        place = told.index(line)
        run = SAC if place >= told.index(rows["sac,"]) else DQN if place >= told.index(rows["dqn"]) else PPO
        for name, value in re.findall(r"(\w+)=(\[[^]]*\]|\S+)", line):
            assert override(run, {name: value}) == run, name
            count += 1
    assert count >= 12
