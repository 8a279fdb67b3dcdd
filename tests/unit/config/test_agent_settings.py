"""Agent configurations of other libraries as settings of our PPO: the mapping, refusals, and no key lost."""

import copy
import math
from typing import Any

import pytest

from lockstep.config.agents.reader import AgentSettings
from lockstep.config.agents.settings import agent_settings
from lockstep.errors import ConfigError
from lockstep.run import Run, override

RL_GAMES: dict[str, Any] = {
    "params": {
        "seed": 7,
        "env": {"clip_actions": 1.0, "clip_observations": 5.0},
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": {
            "name": "actor_critic",
            "separate": False,
            "space": {"continuous": {"sigma_init": {"name": "const_initializer", "val": -1}, "fixed_sigma": True}},
            "mlp": {"units": [64, 32], "activation": "elu", "d2rl": False},
        },
        "config": {
            "name": "mine", "ppo": True, "gamma": 0.98, "tau": 0.9, "learning_rate": "5e-4", "lr_schedule": "adaptive",
            "schedule_type": "standard", "kl_threshold": 0.016, "e_clip": 0.1, "clip_value": True, "critic_coef": 4,
            "entropy_coef": 0.005, "truncate_grads": True, "grad_norm": 1.0, "horizon_length": 16,
            "minibatch_size": 512, "mini_epochs": 5, "max_epochs": 100, "bounds_loss_coef": 0.0001,
            "normalize_input": True, "normalize_value": True, "normalize_advantage": True, "value_bootstrap": True,
            "mixed_precision": True, "reward_shaper": {"scale_value": 0.1}, "score_to_win": 300,
        },
    }
}  # fmt: skip
SKRL: dict[str, Any] = {
    "seed": 7,
    "models": {
        "separate": False,
        "policy": {
            "class": "GaussianMixin", "clip_actions": False, "clip_log_std": True, "min_log_std": -20.0,
            "max_log_std": 2.0, "initial_log_std": -1, "output": "ACTIONS",
            "network": [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 32], "activations": "elu"}],
        },
        "value": {
            "class": "DeterministicMixin", "clip_actions": False, "output": "ONE",
            "network": [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 32], "activations": "elu"}],
        },
    },
    "memory": {"class": "RandomMemory", "memory_size": -1},
    "agent": {
        "class": "PPO", "rollouts": 16, "learning_epochs": 5, "mini_batches": 4, "discount_factor": 0.98, "lambda": 0.9,
        "learning_rate": 5e-4, "learning_rate_scheduler": "KLAdaptiveLR",
        "learning_rate_scheduler_kwargs": {"kl_threshold": 0.016}, "state_preprocessor": "RunningStandardScaler",
        "state_preprocessor_kwargs": None, "value_preprocessor": None, "grad_norm_clip": 0.0, "ratio_clip": 0.1,
        "value_clip": 0.1, "clip_predicted_values": True, "entropy_loss_scale": 0.005, "value_loss_scale": 2.0,
        "kl_threshold": 0.0, "rewards_shaper_scale": 0.1, "time_limit_bootstrap": False,
        "experiment": {"directory": "mine"},
    },
    "trainer": {"class": "SequentialTrainer", "timesteps": 1600},
}  # fmt: skip
RSL_RL: dict[str, Any] = {
    "seed": 7, "class_name": "OnPolicyRunner", "num_steps_per_env": 16, "max_iterations": 100, "clip_actions": 1.0,
    "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
    "actor": {
        "class_name": "MLPModel", "hidden_dims": [64, 32], "activation": "elu", "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.5, "std_type": "log"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [128], "activation": "elu", "obs_normalization": True},
    "algorithm": {
        "class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4, "learning_rate": 5e-4,
        "schedule": "adaptive", "desired_kl": 0.016, "gamma": 0.98, "lam": 0.9, "entropy_coef": 0.005,
        "value_loss_coef": 2.0, "use_clipped_value_loss": True, "clip_param": 0.1, "max_grad_norm": 1.0,
        "symmetry_cfg": {"use_data_augmentation": False, "data_augmentation_func": "mine:mirror"},
    },
}  # fmt: skip
SB3: dict[str, Any] = {
    "seed": 7, "policy": "MlpPolicy", "n_steps": 16, "batch_size": 512, "n_timesteps": 1e6, "gamma": 0.98,
    "gae_lambda": 0.9, "n_epochs": 5, "ent_coef": 0.005, "vf_coef": 0.5, "learning_rate": 5e-4, "clip_range": 0.1,
    "max_grad_norm": 1.0, "normalize_input": True, "normalize_value": True, "clip_obs": 10.0,
    "policy_kwargs": {"activation_fn": "nn.ELU", "net_arch": {"pi": [64, 32], "vf": [128]}},
}  # fmt: skip
CONFIGS = {"rl_games": RL_GAMES, "skrl": SKRL, "rsl_rl": RSL_RL, "sb3": SB3}
COMMON = {
    "seed": 7, "num_steps": 16, "num_epochs": 5, "num_minibatches": 4, "gamma": 0.98, "gae_lambda": 0.9,
    "learning_rate": 5e-4, "clip_range": 0.1, "entropy_coef": 0.005, "network.hidden": (64, 32),
    "network.activation": "elu", "normalize_observation": True,
}  # fmt: skip
OWN = {
    "rl_games": {
        "total_steps": 100 * 16 * 128, "learning_rate_schedule": "adaptive", "desired_kl": 0.016,
        "adapt_every": "epoch", "value_clip_range": 0.1, "value_coef": 4.0, "max_grad_norm": 1.0,
        "bounds_loss_coef": 0.0001,
        "normalize_value": True, "reward_scale": 0.1, "precision": "bfloat16", "stop_return": 300.0,
        "env.clip_action": 1.0, "env.clip_observation": 5.0, "network.shared": True, "network.initial_log_std": -1.0,
        "observation_limit": 5.0, "network.state_dependent_std": False, "kl_reference": "previous_epoch",
        "adam_eps": 1e-8, "value_limit": 5.0, "network.initialization": "uniform",
    },
    "skrl": {
        "total_steps": 1600 * 128, "learning_rate_schedule": "adaptive", "desired_kl": 0.016, "adapt_every": "epoch",
        "value_clip_range": 0.1, "value_coef": 4.0, "max_grad_norm": None, "target_kl": None, "normalize_value": False,
        "reward_scale": 0.1, "network.shared": True, "network.initial_log_std": -1.0, "observation_limit": 5.0,
        "adam_eps": 1e-8, "value_limit": 5.0, "network.initialization": "uniform",
    },
    "rsl_rl": {
        "total_steps": 100 * 16 * 128, "learning_rate_schedule": "adaptive", "desired_kl": 0.016,
        "adapt_every": "minibatch", "value_clip_range": 0.1, "value_coef": 4.0, "max_grad_norm": 1.0,
        "network.shared": False, "network.critic_hidden": (128,), "network.initial_log_std": math.log(0.5),
        "env.policy_keys": ("policy",), "env.critic_keys": ("policy", "privileged"), "env.clip_action": 1.0,
        "adapt_before_step": True, "adam_eps": 1e-8, "network.initialization": "uniform", "observation_limit": math.inf,
    },
    "sb3": {
        "total_steps": 1_000_000, "learning_rate_schedule": "constant", "value_coef": 1.0, "max_grad_norm": 1.0,
        "normalize_return": True, "observation_limit": 10.0, "network.shared": False, "network.critic_hidden": (128,),
    },
}  # fmt: skip


@pytest.mark.parametrize("library", CONFIGS)
def test_each_key_is_mapped_to_our_setting(library: str) -> None:
    found = agent_settings(library, CONFIGS[library], num_envs=128).settings
    expected = {**COMMON, **OWN[library]}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("library", CONFIGS)
def test_the_settings_make_a_run(library: str) -> None:
    found = agent_settings(library, CONFIGS[library], num_envs=128).settings
    run = override(Run(task="lockstep/Cartpole-v0", num_envs=128), found)
    assert run.network.hidden == (64, 32)


@pytest.mark.parametrize("library", CONFIGS)
def test_an_unknown_key_is_refused_by_name(library: str) -> None:
    config = copy.deepcopy(CONFIGS[library])
    inner = config["params"]["config"] if library == "rl_games" else config
    inner["brand_new"] = 3
    with pytest.raises(ConfigError, match=r"brand_new=3"):
        agent_settings(library, config, num_envs=128)


@pytest.mark.parametrize(
    ("library", "path", "value"),
    [
        ("rl_games", "params.network.rnn.name", "lstm"),
        ("rl_games", "params.algo.name", "sac"),
        ("rl_games", "pbt.enabled", True),
        ("rl_games", "params.network.mlp.d2rl", True),
        ("rl_games", "params.config.minibatch_size", 1000),
        ("rl_games", "params.config.gamma", "much"),
        ("rl_games", "params.env.clip_actions", 100.0),
        ("skrl", "agent.class", "AMP"),
        ("skrl", "models.policy.fixed_log_std", True),
        ("skrl", "agent.learning_rate_scheduler", "StepLR"),
        ("rsl_rl", "actor.class_name", "RNNModel"),
        ("rsl_rl", "actor.class_name", "their.code:Model"),
        ("rsl_rl", "algorithm.rnd_cfg", 1),
        ("rsl_rl", "algorithm.symmetry_cfg.use_mirror_loss", True),
        ("rsl_rl", "algorithm.symmetry_cfg.use_data_augmentation", True),
        ("sb3", "use_sde", True),
        ("sb3", "policy", "CnnPolicy"),
        ("rl_games", "params.config.minibatch_size", 0),
        ("rl_games", "params.config.horizon_length", 2.5),
        ("rl_games", "params.config.gamma", math.nan),
        ("rl_games", "params.config.bounds_loss_coef", "none"),
        ("rl_games", "params.config.lr_schedule", ["adaptive"]),
        ("rl_games", "params.env.clip_observations", "far"),
        ("rl_games", "params.env.clip_actions", [1.0]),
        ("skrl", "agent.rollouts", 0),
        ("skrl", "agent.mini_batches", -4),
        ("rsl_rl", "actor.distribution_cfg.init_std", 0),
        ("rsl_rl", "clip_actions", "yes"),
        ("rsl_rl", "num_steps_per_env", math.nan),
        ("rsl_rl", "algorithm.max_grad_norm", "small"),
        ("rsl_rl", "obs_groups.actor", "policy"),
        ("sb3", "batch_size", 0),
        ("sb3", "batch_size", -64),
        ("sb3", "target_kl", "low"),
        ("sb3", "seed", 0.5),
        ("sb3", "policy_kwargs.net_arch", 64),
        ("sb3", "policy_kwargs.activation_fn", ["nn.ELU"]),
    ],
)
def test_what_ppo_cannot_follow_is_refused_by_name(library: str, path: str, value: object) -> None:
    config = copy.deepcopy(CONFIGS[library])
    *way, last = path.split(".")
    node = config
    for key in way:
        node = node.setdefault(key, {})
    node[last] = value
    with pytest.raises(ConfigError, match=last):
        agent_settings(library, config, num_envs=128)


@pytest.mark.parametrize("model", ["CNNModel", "mjlab.rl.spatial_softmax:SpatialSoftmaxCNNModel"])
def test_models_of_rsl_rl_for_images_and_numbers_become_ours_with_a_note(model: str) -> None:
    config = copy.deepcopy(RSL_RL)
    config["obs_groups"] = {"actor": ["actor", "camera"], "critic": ["critic", "camera"]}
    for part in ("actor", "critic"):
        config[part] |= {"class_name": model, "cnn_cfg": {"output_channels": [16, 32], "kernel_size": [5, 3]}}
    found = agent_settings("rsl_rl", config, num_envs=128)
    run = override(Run(task="a", num_envs=128), found.settings)
    assert (run.env.policy_keys, run.env.critic_keys) == (("actor", "camera"), ("critic", "camera"))
    assert (run.network.encoder, run.network.hidden, run.network.critic_hidden) == ("auto", (64, 32), (128,))
    assert [note for note in found.differences if note.startswith("cnn_cfg: Lockstep's encoder of images")]
    assert {"actor.cnn_cfg.output_channels", "critic.cnn_cfg.kernel_size"} <= set(found.no_effect)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": 'OBSERVATIONS["joints"]'}, "reads the observation"),
        ({"layers": [{"conv2d": {}}]}, "linear layers"),
        ({"type": "GRU"}, "recurrent"),
        ({"activations": "selu"}, "tanh, relu and elu"),
        ({"activations": [["elu"], "elu"]}, "tanh, relu and elu"),
        ({"layers": None}, "linear layers"),
    ],
)
def test_networks_of_skrl_that_are_not_linear_are_refused(change: dict[str, Any], words: str) -> None:
    config = copy.deepcopy(SKRL)
    config["models"]["policy"]["network"][0] |= change
    with pytest.raises(ConfigError, match=words):
        agent_settings("skrl", config, num_envs=128)


@pytest.mark.parametrize(
    ("library", "path", "words"),
    [
        ("rl_games", "params.network.mlp", "has no network.mlp.units; add it"),
        ("rl_games", "params", "has params=None: it must"),
        ("rsl_rl", "actor", "has no actor.hidden_dims; add it"),
        ("rsl_rl", "critic.hidden_dims", "sets critic.hidden_dims=None: it must"),
        ("skrl", "models.value.network", "sets models.value.network=None: it must"),
    ],
)
def test_a_network_without_layers_is_refused_by_name(library: str, path: str, words: str) -> None:
    config = copy.deepcopy(CONFIGS[library])
    *outer, last = path.split(".")
    node = config
    for key in outer:
        node = node[key]
    node[last] = None
    with pytest.raises(ConfigError, match=f"the {library} configuration {words}"):
        agent_settings(library, config, 256)


def test_what_changes_nothing_and_what_differs_is_reported() -> None:
    found = agent_settings("skrl", SKRL, num_envs=128)
    assert found.no_effect["memory.memory_size"] == "a rollout is kept whole"
    assert any("time_limit_bootstrap" in line for line in found.differences)


def test_a_central_value_function_becomes_a_critic_with_its_own_layers() -> None:
    config = copy.deepcopy(RL_GAMES)
    config["params"]["config"]["central_value_config"] = {
        "learning_rate": 1e-4,
        "clip_value": True,
        "network": {"name": "actor_critic", "mlp": {"units": [256], "activation": "elu"}},
    }
    found = agent_settings("rl_games", config, num_envs=128)
    assert found.settings["network.critic_hidden"] == (256,)
    assert found.settings["network.shared"] is False
    assert any("learning_rate=0.0001" in line for line in found.differences)


def without(library: str, *paths: str) -> AgentSettings:
    """The settings of a configuration that leaves out some keys, as the library's users may."""
    config = copy.deepcopy(CONFIGS[library])
    for path in paths:
        *parents, last = path.split(".")
        inner: Any = config
        for parent in parents:
            inner = inner[parent]
        inner.pop(last, None)
    return agent_settings(library, config, num_envs=128)


def test_keys_that_are_left_out_have_the_librarys_defaults() -> None:
    rsl_rl = without("rsl_rl", "algorithm.max_grad_norm")
    assert rsl_rl.settings["max_grad_norm"] == 1.0
    names = ("agent.grad_norm_clip", "agent.value_clip", "models.separate")
    skrl = without("skrl", *names).settings
    assert (skrl["max_grad_norm"], skrl["value_clip_range"], skrl["network.shared"]) == (0.5, 0.2, False)
    config = copy.deepcopy(CONFIGS["rl_games"])
    config["params"]["config"]["bounds_loss_coef"] = None
    assert agent_settings("rl_games", config, num_envs=128).settings["bounds_loss_coef"] == 0.0


def test_what_stable_baselines3_does_with_advantages_is_said() -> None:
    assert any("normalizes them over each minibatch" in note for note in without("sb3").differences)


def test_what_a_library_does_with_actions_is_said() -> None:
    found = without("rl_games", "params.env", "params.config.clip_actions")
    assert any("scales them to the task's bounds, Lockstep not" in note for note in found.differences)


@pytest.mark.parametrize("number", [0, -4, 10_000])
def test_a_number_of_minibatches_that_cannot_be_is_refused_by_name(number: int) -> None:
    config = {key: value for key, value in SB3.items() if key != "batch_size"}
    with pytest.raises(ConfigError, match=f"n_minibatches={number}"):
        agent_settings("sb3", config | {"n_minibatches": number}, num_envs=128)
    found = agent_settings("sb3", config | {"n_minibatches": 4}, num_envs=128)
    assert found.settings["num_minibatches"] == 4


@pytest.mark.parametrize("library", CONFIGS)
def test_a_seed_that_is_drawn_anew_is_a_fixed_one_and_that_is_said(library: str) -> None:
    config = copy.deepcopy(CONFIGS[library])
    config.get("params", config)["seed"] = -1
    found = agent_settings(library, config, num_envs=128)
    assert found.settings["seed"] == 42
    assert any(note.startswith("seed: -1 is drawn anew") for note in found.differences)


def test_networks_of_stable_baselines3_that_are_text_are_to_be_a_mapping() -> None:
    """RL-Zoo writes them as a call of Python."""
    with pytest.raises(ConfigError, match=r"policy_kwargs='dict.*': it must be a mapping, as in policy_kwargs: {act"):
        agent_settings("sb3", SB3 | {"policy_kwargs": "dict(activation_fn=nn.ELU)"}, num_envs=128)


def test_two_sizes_of_minibatches_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size=512: n_minibatches is given, too"):
        agent_settings("sb3", SB3 | {"n_minibatches": 4}, num_envs=128)


@pytest.mark.parametrize(
    ("net_arch", "policy", "value"),
    [
        ([], (), ()),
        ([32], (32,), (32,)),
        ({"pi": [32]}, (32,), ()),
        ({"vf": [32], "pi": []}, (), (32,)),
        (None, (64, 64), (64, 64)),
    ],
)
def test_layers_that_stable_baselines3_leaves_out_are_left_out(
    net_arch: object, policy: tuple[int, ...], value: tuple[int, ...]
) -> None:
    found = agent_settings("sb3", SB3 | {"policy_kwargs": {"net_arch": net_arch}}, num_envs=128).settings
    assert (found["network.hidden"], found["network.critic_hidden"]) == (policy, value)
    without_key = agent_settings("sb3", SB3 | {"policy_kwargs": {}}, num_envs=128).settings
    assert without_key["network.hidden"] == without_key["network.critic_hidden"] == (64, 64)


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"torchrl.*skrl, rsl_rl, rl_games, sb3"):
        agent_settings("torchrl", {}, num_envs=1)
