"""A setting of another type, as Python code may give it, is refused by name like a wrong value."""

from dataclasses import fields

import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.settings import parse, to_yaml
from lockstep.errors import ConfigError
from lockstep.run import Run, override

CONFIGS = (PPOConfig, DQNConfig, SACConfig, TD3Config, OfflineDQNConfig, CloningConfig)
CONFIGS += (IQLConfig, TD3BCConfig, CQLConfig)
NUMBERS = ("int", "float", "int | None", "float | None")


def numeric(config):
    """The names of the settings that are numbers."""
    types = {item.name: getattr(item.type, "__name__", None) or str(item.type) for item in fields(config)}
    return [name for name, its in types.items() if its in NUMBERS]


@pytest.mark.parametrize("config", CONFIGS)
def test_text_is_no_number(config):
    assert len(numeric(config)) > 8, "types of settings are written differently now"
    for name in numeric(config):
        for wrong in ("0.5", True):
            with pytest.raises(ConfigError, match=f"^{name}={wrong!r} must be a number"):
                config(**{name: wrong})


@pytest.mark.parametrize("config", CONFIGS)
def test_none_is_compared_with_nothing(config):
    """Whether a setting may be `None` is checked by the run, which knows its type."""
    for name in numeric(config):
        try:
            config(**{name: None})
        except ConfigError as error:
            assert str(error).startswith(f"{name}=None")


@pytest.mark.parametrize("boost", ["x", True, None, float("nan")])
def test_a_boost_is_a_finite_number(boost):
    with pytest.raises(ConfigError, match=f"reward_boost of action a is {boost!r}; it must be a finite number"):
        OfflineDQNConfig(reward_boost={"a": boost})


@pytest.mark.parametrize("text", ["010", "-017", "0_7", "08"])
def test_a_number_with_a_leading_zero_is_text(text):
    """YAML 1.1 reads `010` as 8: `seq -w` would choose other seeds than it prints."""
    assert parse(text, "seed") == text
    with pytest.raises(ConfigError, match=f"^seed='{text}' must be a whole number"):
        override(Run(task="CartPole-v1"), {"seed": text})
    assert parse(to_yaml({"a": text}), "file") == {"a": text}


def test_other_numbers_begin_with_zero():
    assert [parse(text, "") for text in ("0", "0.5", "-0.1", "0e3", "0x10")] == [0, 0.5, -0.1, 0.0, 16]
