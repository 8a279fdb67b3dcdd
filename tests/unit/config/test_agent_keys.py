"""Keys of other libraries' agent configurations: misspelled, left out, null, of another type, or in another place."""

import copy
import re
from typing import Any

import pytest
from tests.unit.config.test_agent_settings import CONFIGS, RL_GAMES, RSL_RL, SKRL

from lockstep.config.agents.reader import AgentSettings
from lockstep.config.agents.settings import agent_settings
from lockstep.errors import ConfigError

CENTRAL = "params.config.central_value_config"
_LEFT_OUT = object()


def changed(library: str, changes: dict[str, Any]) -> AgentSettings:
    """The settings of the library's configuration with other values by dotted name."""
    config = copy.deepcopy(CONFIGS[library])
    for path, value in changes.items():
        *way, last = path.split(".")
        node: Any = config
        for key in way:
            node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
        if value is _LEFT_OUT:
            del node[last]
        else:
            node[last] = value
    return agent_settings(library, config, num_envs=128)


def renamed(library: str, path: str, name: str) -> AgentSettings:
    """The settings with a key under another name."""
    config: Any = CONFIGS[library]
    for key in path.split("."):
        config = config[int(key)] if isinstance(config, list) else config[key]
    return changed(library, {path: _LEFT_OUT, f"{path.rpartition('.')[0]}.{name}": config})


@pytest.mark.parametrize(
    ("library", "path", "name", "said"),
    [
        ("rsl_rl", "algorithm.gamma", "gama", "has no algorithm.gamma; rename algorithm.gama, or add it"),
        ("rsl_rl", "actor.activation", "activaton", "has no actor.activation; rename actor.activaton, or add it"),
        ("rsl_rl", "algorithm.schedule", "plan", "has no algorithm.schedule; add it"),
        ("rsl_rl", "critic.hidden_dims", "hiden_dims", "has no critic.hidden_dims; rename critic.hiden_dims, or add"),
        ("skrl", "agent.value_loss_scale", "value_los_scale", "has no agent.value_loss_scale; rename agent.value_los_"),
        ("skrl", "agent.discount_factor", "discont_factor", "this key (did you mean agent.discount_factor?)"),
        ("skrl", "models.policy.network.0.layers", "layer", "sets models.policy.network.layer=[64, 32]: known are na"),
        ("skrl", "models.value.network.0.activations", "activation", "sets models.value.network.activation='elu': kno"),
    ],
)
def test_a_misspelled_key_is_named(library: str, path: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        renamed(library, path, name)


@pytest.mark.parametrize(
    ("library", "path", "said"),
    [
        ("rl_games", "params.config.gamma", "the rl_games configuration has no config.gamma; add it"),
        ("rl_games", "params.config.max_epochs", "the rl_games configuration has no config.max_epochs; add it"),
        ("rsl_rl", "actor.distribution_cfg", "the rsl_rl configuration has no actor.distribution_cfg.class_name; add"),
        ("skrl", "models.policy.network.0.layers", "the block has no layers"),
    ],
)
def test_a_key_that_is_needed_and_left_out_is_named(library: str, path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed(library, {path: _LEFT_OUT})


def test_what_skrl_leaves_out_has_its_defaults() -> None:
    names = ("rollouts", "learning_epochs", "mini_batches", "discount_factor", "lambda", "learning_rate", "ratio_clip")
    found = changed("skrl", {f"agent.{name}": _LEFT_OUT for name in (*names, "entropy_loss_scale")}).settings
    wanted = {
        "num_steps": 16, "num_epochs": 8, "num_minibatches": 2, "gamma": 0.99, "gae_lambda": 0.95,
        "learning_rate": 1e-3, "clip_range": 0.2, "entropy_coef": 0.0,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("library", "path"),
    [
        ("skrl", "agent.learning_rate_scheduler_kwargs"),
        ("skrl", "agent.experiment"),
        ("skrl", "agent.rewards_shaper"),
    ],
)
def test_null_is_what_the_library_takes_it_for(library: str, path: str) -> None:
    assert changed(library, {path: None}).settings["gamma"] == 0.98


def test_other_values_that_are_valid_are_read() -> None:
    fixed = changed("rsl_rl", {"algorithm.schedule": "fixed", "algorithm.desired_kl": None})
    assert fixed.settings["learning_rate_schedule"] == "constant"
    assert changed("skrl", {"agent.class": "ppo"}).settings["gamma"] == 0.98
    drawn = changed("rsl_rl", {"seed": None})
    assert drawn.settings["seed"] == 42 and "seed: None is drawn anew by the" in " ".join(drawn.differences)


@pytest.mark.parametrize(
    ("library", "path", "value", "said"),
    [
        ("rl_games", "params.config.gamma", True, "config.gamma=True: it must be a number"),
        ("rsl_rl", "algorithm.num_mini_batches", True, "algorithm.num_mini_batches=True: it must be a number"),
        ("rsl_rl", "clip_actions", False, "clip_actions=False: it must be a number"),
        ("rl_games", "params.config.schedule_type", "legcy", "schedule_type='legcy': known are legacy and standard"),
        ("rl_games", "params.config.grad_norm", 0, "config.grad_norm=0.0: it must be greater than 0"),
        ("rsl_rl", "algorithm.max_grad_norm", 0, "algorithm.max_grad_norm=0.0: it must be greater than 0"),
        ("rsl_rl", "actor.activation", "lrelu", "actor.activation='lrelu': known are tanh, relu, elu, silu, swish"),
        ("rsl_rl", "critic.activation", "tanh", "critic.activation='tanh': policy and value have one activation"),
        ("rl_games", "params.network.mlp.activation", "selu", "network.mlp.activation='selu': known are tanh, relu"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_key_of_the_file(
    library: str, path: str, value: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        changed(library, {path: value})


def test_swish_is_our_silu() -> None:
    for library, path in (("rl_games", "params.network.mlp"), ("rsl_rl", "actor")):
        both = {f"{path}.activation": "swish"} | ({"critic.activation": "swish"} if library == "rsl_rl" else {})
        assert changed(library, both).settings["network.activation"] == "silu"


@pytest.mark.parametrize(
    ("epochs", "frames", "steps"), [(_LEFT_OUT, 50_000, 50_000), (-1, 50_000, 50_000), (10, 50_000, 10 * 16 * 128)]
)
def test_rl_games_may_count_frames(epochs: object, frames: int, steps: int) -> None:
    limits = {"params.config.max_epochs": epochs, "params.config.max_frames": frames}
    assert changed("rl_games", limits).settings["total_steps"] == steps


def test_without_a_limit_on_the_training_an_rl_games_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_epochs=-1: it must be at least 1, or config\.max_frames"):
        changed("rl_games", {"params.config.max_epochs": -1})


@pytest.mark.parametrize("name", ["foo", "seed", "config"])
def test_what_stands_beside_params_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the rl_games configuration has {name} beside params, where rl_games does"):
        agent_settings("rl_games", RL_GAMES | {name: {"gamma": 0.5}}, num_envs=128)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("network.mlp.activation", "relu", "mlp.activation='relu': policy and value have one activation here"),
        ("network.mlp.d2rl", True, "mlp.d2rl=True: dense connections are not supported"),
        ("network.mlp.initializer.name", "orthogonal_initializer", "only the default initializer is read"),
        ("network.mlp.dropout", 0.5, "network.mlp.dropout=0.5: Lockstep does not know this key"),
    ],
)
def test_a_central_value_function_that_lockstep_cannot_have_is_refused(path: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed("rl_games", {f"{CENTRAL}.network.mlp.units": [64], f"{CENTRAL}.{path}": value})


def test_switches_of_a_central_value_function_are_those_of_the_policy_with_a_note() -> None:
    units = {f"{CENTRAL}.network.mlp.units": [64], f"{CENTRAL}.network.mlp.activation": "elu"}
    switches = ("clip_value", "normalize_input", "truncate_grads")
    other = changed("rl_games", units | {f"{CENTRAL}.{name}": False for name in switches})
    same = changed("rl_games", units | {f"{CENTRAL}.{name}": True for name in switches})
    for name in switches:
        said = f"central_value_config.{name}=False: it is True here, as for the policy"
        assert said in other.differences and said not in same.differences
    assert other.settings == same.settings


def test_observations_and_states_of_skrl_2_that_are_normalized_apart_are_noted() -> None:
    said = "observation_preprocessor and state_preprocessor differ: Lockstep normalizes the input of both"
    alone = {"agent.observation_preprocessor": None}  # the file normalizes states
    asymmetric = alone | {"models.value.network.0.input": "STATES"}
    assert said in changed("skrl", asymmetric).differences
    assert said not in changed("skrl", alone).differences, "there are no states"
    assert said not in changed("skrl", {"models.value.network.0.input": "STATES"}).differences, "skrl before 2"


def test_the_configurations_that_tests_change_are_read_as_they_are() -> None:
    for library, config in {"rl_games": RL_GAMES, "rsl_rl": RSL_RL, "skrl": SKRL}.items():
        assert changed(library, {}).settings == agent_settings(library, config, num_envs=128).settings
