"""Settings without effect are told when a run starts."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from lockstep import recipes, train
from lockstep.algorithms.all import ALGORITHMS, OFFLINE_ALGORITHMS
from lockstep.algorithms.task_defaults import BY_ALGORITHM, BY_TASK
from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec
from lockstep.envs.spec import ImagePart
from lockstep.run import OfflineRun, Run, override
from lockstep.session.task_defaults import default_settings, task_defaults
from lockstep.session.unused_settings import _ONLY_WITH, unused_settings, warnings_of_start_policy

PIXELS = "lockstep/PixelPong-v0"


@pytest.mark.parametrize(
    ("task", "changes", "told"),
    [
        (
            "CartPole-v1",
            {"algo": "dqn", "v_min": 0, "v_max": 100},
            "v_min=0.0, v_max=100.0 have no effect with value_di",
        ),
        (
            "CartPole-v1",
            {"algo": "dqn", "num_atoms": 21, "value_distribution": "quantile"},
            "num_atoms=21 has no effect",
        ),
        (
            "CartPole-v1",
            {"algo": "dqn", "loss": "mse", "value_distribution": "quantile"},
            "loss=mse has no effect with",
        ),
        (
            "CartPole-v1",
            {"algo": "dqn", "num_quantiles": 5},
            "num_quantiles=5 has no effect with value_distribution=none",
        ),
        (
            "CartPole-v1",
            {"algo": "dqn", "noisy": True, "epsilon_steps": 9, "epsilon_schedule": "exponential"},
            "epsilon_steps=9, epsilon_schedule=exponential have no effect with epsilon_start=epsilon_end=0.0",
        ),
        ("CartPole-v1", {"algo": "dqn", "noisy_std": 0.1}, "noisy_std=0.1 has no effect with noisy=false"),
        (
            "CartPole-v1",
            {"algo": "dqn", "target_rate": 0.1, "target_update_every": 9},
            "target_update_every=9 has no eff",
        ),
        ("CartPole-v1", {"algo": "dqn", "network.shared": True}, "network.shared=true has no effect with algo=dqn"),
        ("Pendulum-v1", {"algo": "sac", "priority_eps": 0.1}, "priority_eps=0.1 has no effect with prioritized=false"),
        (
            "Pendulum-v1",
            {"algo": "td3", "target_noise": 0, "noise_clip": 1},
            "noise_clip=1.0 has no effect with target_",
        ),
        (
            "CartPole-v1",
            {"desired_kl": 0.1, "learning_rate_schedule": "constant"},
            "desired_kl=0.1 has no effect with le",
        ),
        ("CartPole-v1", {"target_kl": 0.01, "num_epochs": 1}, "target_kl=0.01 has no effect with num_epochs=1"),
        ("CartPole-v1", {"value_limit": 5}, "value_limit=5.0 has no effect with normalize_value=false"),
        (
            "CartPole-v1",
            {"observation_limit": 5},
            "observation_limit=5.0 has no effect with normalize_observation=false",
        ),
        (PIXELS, {"algo": "dqn", "network.initialization": "uniform"}, "network.initialization=uniform has no effect"),
        ("CartPole-v1", {"network.features": 8}, "network.features=8 has no effect with network.encoder=mlp"),
        (
            PIXELS,
            {"network.hidden": [8], "network.activation": "elu"},
            "network.hidden=[8], network.activation=elu have",
        ),
        (
            PIXELS,
            {"network.encoder": "mlp", "network.features": 8},
            "network.features=8 has no effect with network.enc",
        ),
        (
            "CartPole-v1",
            {"network.module": "a:B", "network.hidden": [8]},
            "network.hidden=[8] has no effect with network.",
        ),
    ],
)
def test_setting_without_effect_is_told_with_its_reason(task: str, changes: dict[str, Any], told: str) -> None:
    run = override(Run(task=task), changes)
    (sentence,) = unused_settings(run, env_spec(run.task, run.env))
    assert sentence.startswith(told)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("CartPole-v1", {"algo": "dqn", "value_distribution": "categorical", "v_max": 100, "num_atoms": 21}),
        ("CartPole-v1", {"algo": "dqn", "value_distribution": "quantile", "num_quantiles": 5}),
        ("CartPole-v1", {"algo": "dqn", "loss": "mse", "target_update_every": 9, "noisy": True, "noisy_std": 0.1}),
        ("Pendulum-v1", {"algo": "td3", "noise_clip": 1, "prioritized": True, "priority_exponent": 1}),
        ("Pendulum-v1", {"algo": "sac", "target_rate": 0.1, "network.hidden": [8]}),
        ("CartPole-v1", {"desired_kl": 0.1, "learning_rate_schedule": "adaptive", "adapt_every": "minibatch"}),
        ("CartPole-v1", {"target_kl": 0.01, "num_epochs": 2}),
        ("CartPole-v1", {"value_limit": 5, "normalize_value": True, "network.shared": True}),
        ("CartPole-v1", {"network.module": "a:B", "network.initial_log_std": -1}),
        (PIXELS, {"network.features": 8, "network.shared": False, "network.channels_last": True}),
        (PIXELS, {"network.encoder": "mlp", "network.hidden": [8]}),
    ],
)
def test_settings_with_an_effect_are_not_told(task: str, changes: dict[str, Any]) -> None:
    run = override(Run(task=task), changes)
    assert unused_settings(run, env_spec(run.task, run.env)) == []


def test_compile_has_no_effect_with_dropout() -> None:
    for algo in ("sac", "td3"):
        run = override(Run(task="Pendulum-v1"), {"algo": algo, "compile": True, "dropout": 0.01})
        assert unused_settings(run) == ["compile=true has no effect with dropout=0.01"]
        assert unused_settings(override(run, {"dropout": 0})) == []


def test_settings_of_gpus_have_no_effect_on_cpus() -> None:
    run = override(Run(task="CartPole-v1", device="cpu"), {"tf32": True, "share_gpus": True})
    assert unused_settings(run) == [f"{name}=true has no effect with device=cpu" for name in ("tf32", "share_gpus")]
    assert unused_settings(override(run, {"device": "auto"})) == []


def test_hidden_layers_of_images_among_numbers_have_no_effect_with_dqn() -> None:
    spec = replace(
        env_spec("CartPole-v1", EnvConfig()), observation_size=1300, image_parts=(ImagePart(4, (1, 36, 36)),)
    )
    changes = {"network.hidden": [8]}
    (sentence,) = unused_settings(override(Run(task="CartPole-v1"), {"algo": "dqn", **changes}), spec)
    assert sentence == "network.hidden=[8] has no effect with network.encoder=nature"
    assert unused_settings(override(Run(task="CartPole-v1"), changes), spec) == []


def test_nothing_is_told_of_recipes_and_defaults() -> None:
    for name in recipes.names():
        assert unused_settings(recipes.load(name)) == [], name
    for algo, kinds in BY_ALGORITHM.items():
        for settings in (*kinds.values(), *BY_TASK.get(algo, {}).values()):
            assert unused_settings(override(Run(task="CartPole-v1"), {"algo": algo, **settings})) == []
    assert unused_settings(task_defaults("CartPole-v1", {}), env_spec("CartPole-v1", Run(task="CartPole-v1").env)) == []


def test_the_table_names_settings_that_exist() -> None:
    configs = [config() for config in (*ALGORITHMS.values(), *OFFLINE_ALGORITHMS.values())]
    for setting, _, names in _ONLY_WITH:
        assert any(all(hasattr(config, name) for name in (setting, *names)) for config in configs), names


def test_logged_data_is_told_of_a_setting_of_another_optimizer() -> None:
    run = override(OfflineRun(data="log", algo="iql"), {"optimizer": "sgd", "adam_eps": 1e-5})
    assert unused_settings(run) == ["adam_eps=1e-05 has no effect with optimizer=sgd"]


@pytest.mark.parametrize(
    ("algo", "changes", "told"),
    [
        ("dqn", {"maxq": False, "double": False}, "double=false has no effect with maxq=false"),
        ("iql", {"beta": 0.0, "max_weight": 9.0}, "max_weight=9.0 has no effect with beta=0.0"),
    ],
)
def test_logged_data_is_told_of_settings_without_effect(algo: str, changes: dict[str, Any], told: str) -> None:
    assert unused_settings(override(OfflineRun(data="log", algo=algo), changes)) == [told]


def test_an_adaptation_before_the_step_is_for_an_adaptive_rate() -> None:
    run = override(Run(task="CartPole-v1"), {"adapt_every": "minibatch", "adapt_before_step": True})
    told = "adapt_every=minibatch, adapt_before_step=true have no effect with learning_rate_schedule=linear"
    assert unused_settings(run) == [told]


@pytest.mark.parametrize("algo", ["dqn", "parametric_dqn", "bc"])
def test_a_temperature_is_for_policies_that_sample(algo: str) -> None:
    run = override(OfflineRun(data="log", algo=algo), {"temperature": 0.1, "policy": "greedy"})
    assert unused_settings(run) == ["temperature=0.1 has no effect with policy=greedy"]
    assert unused_settings(override(run, {"policy": "softmax"})) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"network.module": "a:B"}, []),
        ({"target_rate": 0.005}, []),
        (
            {"target_rate": 0.005, "target_update_every": 1000},
            ["target_update_every=1000 has no effect with target_ra"],
        ),
        ({"network.module": "a:B", "network.hidden": [8]}, ["network.hidden=[8] has no effect with network.module"]),
    ],
)
def test_defaults_of_the_kind_of_task_are_not_told(changes: dict[str, Any], told: list[str]) -> None:
    changes = {"algo": "dqn", **changes}
    run, spec = override(task_defaults("CartPole-v1", changes), changes), env_spec("CartPole-v1", EnvConfig())
    found = unused_settings(run, spec, default_settings(run, spec))
    assert [sentence[: len(start)] for sentence, start in zip(found, told, strict=True)] == told


def test_command_tells_once(tmp_path: Any) -> None:
    words = ("--set", "num_envs=2", "--set", "num_minibatches=1", "--set", "total_steps=256", "--set", "value_limit=5")
    command = (sys.executable, "-m", "lockstep", "train", "CartPole-v1", "--ranks", "2", *words)
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert result.stderr.count("value_limit=5.0 has no effect with normalize_value=false") == 1, result.stderr
    assert "value_limit" not in result.stdout


def test_python_tells(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run = override(Run(task="CartPole-v1", num_envs=2, total_steps=16), {"num_steps": 8, "desired_kl": 0.5})
    train(run, run_dir=tmp_path / "run")
    assert capfd.readouterr().err.count("note: desired_kl=0.5 has no effect with learning_rate_schedule=linear") == 1


def test_the_temperature_is_that_of_the_policy_that_a_run_starts_from():
    sac = override(Run(task="Pendulum-v1", algo="sac"), {"learning_starts": 0})
    told = ["initial_alpha=0.1 has no effect with --init-from: the temperature is that of the policy"]
    assert warnings_of_start_policy(override(sac, {"initial_alpha": 0.1})) == told
    assert warnings_of_start_policy(sac) == warnings_of_start_policy(override(sac, {"alpha": 0.1})) == []
    assert warnings_of_start_policy(Run(task="CartPole-v1")) == []


def test_random_actions_in_spite_of_the_policy_that_a_run_starts_from_are_told():
    sac = Run(task="Pendulum-v1", algo="sac")
    (told,) = warnings_of_start_policy(sac)
    assert told.startswith("the first 10000 steps (learning_starts) are random actions")
    assert warnings_of_start_policy(override(sac, {"learning_starts": 0})) == []
    dqn = Run(task="CartPole-v1", algo="dqn")
    (told,) = warnings_of_start_policy(dqn)
    assert told.startswith("at the start 100 % of the actions are random (epsilon_start)")
    assert warnings_of_start_policy(override(dqn, {"epsilon_start": 0.01, "epsilon_end": 0.01})) == []
