"""A new algorithm is in every list, or refused by name: nothing takes it for another one, or ignores a setting."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, get_args

import pytest

import lockstep
from lockstep.algorithms.all import ALGORITHMS, OFFLINE_ALGORITHMS, AlgorithmName, OfflineName
from lockstep.algorithms.interface import ALL_SETTINGS, LEFT_TO_LOOPS
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.offline import train as offline_command
from lockstep.config.network import NetworkConfig
from lockstep.config.run_base import RunBase
from lockstep.envs.make import env_spec
from lockstep.errors import ConfigError
from lockstep.run import Run
from lockstep.session import data_checks, start_policy
from lockstep.session.placement import JAX_DEVICE_LOOPS, TORCH_ON_DEVICE, learns_on_device
from lockstep.session.policy_file import PolicySpec
from lockstep.session.task_checks import check_task

ROOT = Path(next(iter(lockstep.__path__)))
OTHER_VALUES = {"precision": "bfloat16", "compile": True, "capture": True, "non_finite": "skip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConfig:
    """The settings of an algorithm that no place knows."""

    FRAMEWORKS: ClassVar[frozenset[str]] = frozenset({"torch", "jax"})
    FOLLOWS: ClassVar[frozenset[str]] = frozenset()
    SAVED: ClassVar[tuple[str, ...]] = ()
    num_steps: int = 8


def test_names_are_those_of_the_classes():
    assert set(get_args(AlgorithmName)) == set(ALGORITHMS)
    assert set(get_args(OfflineName)) == set(OFFLINE_ALGORITHMS) == set(offline_command._ALGORITHMS)
    assert set(sum(data_checks._ALGORITHMS_OF.values(), ())) == set(OFFLINE_ALGORITHMS)
    assert {*TORCH_ON_DEVICE, *JAX_DEVICE_LOOPS} <= set(ALGORITHMS)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_algorithm_is_where_its_settings_say(algo):
    config = ALGORITHMS[algo]
    assert {name for name in ("torch", "jax") if lockstep_has(name, algo)} == config.FRAMEWORKS
    assert set(config.SAVED) <= {item.name for item in fields(config)}
    assert config.FOLLOWS <= ALL_SETTINGS


def lockstep_has(framework, algo):
    return (ROOT / framework / f"{algo}.py").is_file()


def test_settings_left_to_loops_are_settings_with_neutral_defaults():
    defaults = {item.name: item.default for item in fields(RunBase)}
    assert all(defaults[name] in neutral for name, neutral in LEFT_TO_LOOPS.items())


@pytest.mark.parametrize("name", LEFT_TO_LOOPS)
def test_a_setting_that_the_algorithm_does_not_follow_is_refused(monkeypatch, name):
    given = {name: OTHER_VALUES[name]}
    Run(task="any", **given)
    monkeypatch.setattr(PPOConfig, "FOLLOWS", ALL_SETTINGS - {name})
    with pytest.raises(ConfigError, match=rf"^{name}=\w+: algo=ppo does not follow this setting; leave {name} out$"):
        Run(task="any", **given)
    Run(task="any")


def test_an_algorithm_that_the_framework_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(PPOConfig, "FRAMEWORKS", frozenset({"torch"}))
    with pytest.raises(ConfigError, match=r"^algo=ppo does not exist with ml_framework=jax; use --ml-framework torch"):
        Run(task="any", ml_framework="jax")


def of_unknown_algorithm():
    run = Run(task="CartPole-v1")
    object.__setattr__(run, "algorithm", NewConfig())
    object.__setattr__(run, "algo", "new")
    return run


def test_checks_do_not_take_it_for_another_one():
    run = of_unknown_algorithm()
    spec = env_spec(run.task, run.env)
    with pytest.raises(AssertionError, match="NewConfig"):
        check_task(run, spec)
    with pytest.raises(AssertionError, match="NewConfig"):
        start_policy._layers(PolicySpec(task="any", spec=spec, network=NetworkConfig(), algorithm=NewConfig()))


def test_it_steps_environments_on_the_host():
    run = of_unknown_algorithm()
    object.__setattr__(run, "task", "jax/CartPole-v1")
    assert not learns_on_device(run)


def test_a_policy_file_does_not_take_it_for_another_one(tmp_path, monkeypatch):
    export = pytest.importorskip("lockstep.torch.export")
    monkeypatch.setitem(ALGORITHMS, "new", NewConfig)
    run = of_unknown_algorithm()
    about = PolicySpec(task="any", spec=env_spec(run.task, run.env), network=NetworkConfig(), algorithm=NewConfig())
    assert about.algo == "new"
    with pytest.raises(AssertionError, match="NewConfig"):
        export.policy_from(tmp_path, about.to_dict(), {})
