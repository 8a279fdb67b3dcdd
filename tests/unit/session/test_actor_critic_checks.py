"""SAC and TD3 refuse by name what they cannot learn: the setting, its value, the way out."""

import dataclasses

import pytest

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.errors import ConfigError
from lockstep.run import Run, override
from lockstep.session.task_checks import check_task

BOUNDED = ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))
SPEC = EnvSpec(3, BOUNDED, "same_step", True)


@pytest.mark.parametrize("algo", ["sac", "td3"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action": ActionSpec("discrete", (3,))}, ["needs continuous actions", "--algo dqn"]),
        ({"action": ActionSpec("multi_discrete", (3, 2))}, ["needs continuous actions", "--algo ppo"]),
        (
            {"action": dataclasses.replace(BOUNDED, high=(1.0, float("inf")))},
            ["finite bounds", "dimension 1", "inf", "env.clip_action"],
        ),
        ({"image": (1, 8, 8), "observation_size": 64}, ["images", "--algo ppo"]),
        (
            {"image_parts": (ImagePart(0, (1, 4, 4)),), "observation_size": 19},
            ["images", "network.encoder=mlp", "--algo ppo", "env.policy_keys"],
        ),
        ({"critic_size": 4}, ["critics alone", "--algo ppo", "env.critic_keys"]),
    ],
)
def test_unsupported_task_is_refused(algo, changes, words):
    with pytest.raises(ConfigError) as error:
        check_task(Run(task="any", algo=algo), dataclasses.replace(SPEC, **changes))
    for word in (f"algo={algo}", *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network.shared": "true"}, ["network.shared=true", "leave it out"]),
        ({"network.module": "mine:Net"}, ["network.module=mine:Net", "leave it out"]),
        ({"network.state_dependent_std": "true"}, ["state_dependent_std"]),
        ({"network.initial_log_std": "-1"}, ["initial_log_std=-1", "continuous actions of PPO", "algo=sac"]),
    ],
)
def test_unsupported_network_is_refused(changes, words):
    with pytest.raises(ConfigError) as error:
        check_task(override(Run(task="any", algo="sac"), changes), SPEC)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("algo", "changes", "words"),
    [
        ("sac", {"alpha": "-1"}, ["alpha=-1", "at least 0"]),
        ("sac", {"alpha": "0.1", "target_entropy": "-2"}, ["target_entropy=-2", "alpha=0.1"]),
        ("sac", {"target_critics": "3"}, ["target_critics=3", "num_critics=2"]),
        ("sac", {"dropout": "1"}, ["dropout=1", "[0, 1)"]),
        ("sac", {"target_rate": "0"}, ["target_rate=0", "(0, 1]"]),
        ("sac", {"policy_delay": "0"}, ["policy_delay=0"]),
        ("sac", {"exploration_noise": "0.1"}, ["exploration_noise", "setting of td3"]),
        ("td3", {"num_critics": "0"}, ["num_critics=0"]),
        ("td3", {"target_noise": "-0.1"}, ["target_noise=-0.1"]),
        ("td3", {"tau": "0.01"}, ["target_rate"]),
        ("td3", {"policy_freq": "2"}, ["policy_delay"]),
    ],
)
def test_invalid_setting_is_refused_by_name(algo, changes, words):
    with pytest.raises(ConfigError) as error:
        override(Run(task="any", algo=algo), changes)
    for word in words:
        assert word in str(error.value)


def test_networks_follow_the_algorithm():
    run = override(Run(task="any"), {"algo": "sac"})
    assert run.network.hidden == (256, 256)
    assert run.network.activation == "relu"
    assert override(run, {"algo": "ppo"}).network == Run(task="any").network
