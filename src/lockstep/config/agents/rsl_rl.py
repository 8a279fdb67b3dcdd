"""Agent configurations of rsl_rl (its runner configurations, as mappings) as settings of our PPO."""

import math
from collections.abc import Sequence
from typing import cast

from lockstep.config.agents.reader import NO_RECURRENT, AgentReader

_WIDE = (1e-6, 1e6)
"""The range of standard deviations that rsl_rl has by default."""


def read_rsl_rl(agent: AgentReader, num_envs: int) -> None:
    """Map a runner configuration, for `num_envs` environments over all ranks."""
    agent.expect("class_name", "OnPolicyRunner", why="only its on-policy runner is read")
    agent.expect("algorithm.class_name", "PPO", why="only its own PPO is read")
    agent.set("seed", agent.seed())
    steps = agent.count("num_steps_per_env")
    agent.set("num_steps", steps)
    agent.set("num_epochs", agent.count("algorithm.num_learning_epochs"))
    agent.set("num_minibatches", agent.count("algorithm.num_mini_batches"))
    agent.set("total_steps", agent.count("max_iterations") * steps * num_envs)
    _read_networks(agent)
    _read_algorithm(agent)
    if (bound := agent.number_or_none("clip_actions")) is not None:
        agent.set("env.clip_action", bound)
    agent.ignore("names, files and devices are Lockstep's own", "device", "save_interval", "experiment_name",
                 "run_name", "logger", "*_project", "resume", "load_*",
                 "torch_compile_mode", "store_code_state", "wandb_tags", "upload_model")  # fmt: skip
    agent.ignore("non-finite numbers are always looked for", "check_for_nan")
    if agent.take("init_at_random_ep_len", False):
        agent.note("init_at_random_ep_len: Lockstep starts every environment at the beginning of an episode")


def _read_networks(agent: AgentReader) -> None:
    agent.set("network.initialization", "uniform")
    if agent.has("policy.*"):  # rsl_rl before 5
        _read_actor_critic(agent)
        return
    for model in ("actor", "critic"):
        kind = str(agent.take(f"{model}.class_name", "MLPModel"))
        has_images = kind.endswith("CNNModel")
        if not has_images and kind != "MLPModel":
            raise agent.refusal(
                f"{model}.class_name", kind, NO_RECURRENT if kind == "RNNModel" else "it is the task's own code"
            )
        if has_images:  # rsl_rl's own model, or one with spatial softmax of mjlab or Isaac Lab
            agent.note(
                "cnn_cfg: Lockstep's encoder of images is another one (network.encoder), and hidden_dims follow it "
                "only where there are other numbers"
            )
        agent.ignore(
            "network.encoder chooses the convolutions",
            f"{model}.cnn_cfg", f"{model}.cnn_cfg.*", f"{model}.init_temperature",
        )  # fmt: skip
        agent.ignore(
            "rsl_rl replaces it by the distribution", f"{model}.noise_std_type", f"{model}.state_dependent_std"
        )
        agent.expect(f"{model}.rnn_type", None, why=NO_RECURRENT)
        agent.ignore("it is used with rnn_type only", f"{model}.rnn_hidden_dim", f"{model}.rnn_num_layers")
    agent.set("network.shared", False)
    agent.set("network.hidden", agent.units("actor.hidden_dims"))
    agent.set("network.critic_hidden", agent.units("critic.hidden_dims"))
    activation = agent.activation("actor.activation")
    agent.set("network.activation", activation)
    agent.same_activation("critic.activation", activation)
    actor_normalized, critic_normalized = agent.take("actor.obs_normalization"), agent.take("critic.obs_normalization")
    agent.set("normalize_observation", bool(actor_normalized or critic_normalized))
    if actor_normalized != critic_normalized:
        agent.note("obs_normalization differs between actor and critic: Lockstep normalizes the observations of both")
    agent.expect("critic.distribution_cfg", None, why="the critic predicts one value")
    _read_distribution(agent)
    _read_groups(agent)


def _read_distribution(agent: AgentReader) -> None:
    name = "actor.distribution_cfg"
    kind = agent.needed(f"{name}.class_name")
    if kind not in ("GaussianDistribution", "HeteroscedasticGaussianDistribution"):
        raise agent.refusal(f"{name}.class_name", kind, "it is the task's own code")
    agent.set("network.state_dependent_std", kind == "HeteroscedasticGaussianDistribution")
    _read_deviation(agent, f"{name}.init_std", f"{name}.std_type")
    limits = agent.take(f"{name}.std_range", _WIDE)
    if limits not in (_WIDE, list(_WIDE)):
        agent.note(f"std_range={limits}: Lockstep does not clip the deviation")


def _read_deviation(agent: AgentReader, first: str, kind: str) -> None:
    deviation = agent.number(first)
    if deviation <= 0.0:
        raise agent.refusal(first, deviation, "it must be greater than 0")
    agent.set("network.initial_log_std", math.log(deviation))
    if agent.take(kind, "scalar") == "scalar":
        agent.note("std_type=scalar: Lockstep learns the logarithm of the deviation")


def _read_actor_critic(agent: AgentReader) -> None:
    """The one configuration of both networks in rsl_rl before version 5."""
    agent.expect("policy.class_name", "ActorCritic", why="only its ActorCritic is read")
    agent.set("network.shared", False)
    agent.set("network.hidden", agent.units("policy.actor_hidden_dims"))
    agent.set("network.critic_hidden", agent.units("policy.critic_hidden_dims"))
    agent.set("network.activation", agent.activation("policy.activation"))
    normalized = [agent.take(f"policy.{model}_obs_normalization", False) for model in ("actor", "critic")]
    everything = agent.take("empirical_normalization", False)
    agent.set("normalize_observation", bool(any(normalized) or everything))
    agent.set("network.state_dependent_std", bool(agent.take("policy.state_dependent_std", False)))
    _read_deviation(agent, "policy.init_noise_std", "policy.noise_std_type")
    _read_groups(agent)


def _read_groups(agent: AgentReader) -> None:
    """Groups of observations; where they are left out, rsl_rl takes `policy` and `critic`, and so does Lockstep."""
    for model, setting in (("actor", "env.policy_keys"), ("critic", "env.critic_keys")):
        name = f"obs_groups.{'policy' if model == 'actor' and agent.has('obs_groups.policy') else model}"
        groups = agent.take(name)
        if groups is not None and not isinstance(groups, list | tuple):
            raise agent.refusal(name, groups, "it must be a list of names of groups")
        if groups:
            agent.set(setting, tuple(cast("Sequence[str]", groups)))
    agent.refuse("obs_groups.*", "only the groups of actor and critic are read")


def _read_algorithm(agent: AgentReader) -> None:
    clip = agent.number("algorithm.clip_param")
    agent.set("clip_range", clip)
    agent.set("value_clip_range", clip if agent.take("algorithm.use_clipped_value_loss", True) else None)
    # Their value loss is the squared error, ours half of it.
    agent.set("value_coef", 2.0 * agent.number("algorithm.value_loss_coef"))
    agent.set("entropy_coef", agent.number("algorithm.entropy_coef"))
    agent.set("gamma", agent.number("algorithm.gamma"))
    agent.set("gae_lambda", agent.number("algorithm.lam"))
    norm = agent.positive_or_none("algorithm.max_grad_norm", 1.0)
    agent.set("max_grad_norm", norm)
    agent.set("observation_limit", math.inf)
    agent.set("learning_rate", agent.number("algorithm.learning_rate"))
    schedule = agent.needed("algorithm.schedule")
    if schedule not in ("adaptive", "fixed"):
        raise agent.refusal("algorithm.schedule", schedule, "known are adaptive and fixed")
    agent.set("learning_rate_schedule", "adaptive" if schedule == "adaptive" else "constant")
    if schedule == "adaptive":
        agent.note("schedule=adaptive: the rate stays above 1e-5 in rsl_rl, above 1e-6 here")
    if schedule == "fixed":
        agent.ignore("schedule=fixed: the rate does not follow the KL", "algorithm.desired_kl")
    agent.set("desired_kl", agent.number("algorithm.desired_kl", 0.01))
    agent.set("adapt_every", "minibatch")
    agent.set("adapt_before_step", True)
    agent.set("adam_eps", 1e-8)
    if norm is not None:
        agent.note("max_grad_norm: rsl_rl clips the gradients of actor and critic apart, Lockstep by one norm of both")
    agent.set("precision", "bfloat16" if agent.take("algorithm.use_mixed_precision", False) else "float32")
    agent.expect("algorithm.optimizer", "adam", why="only Adam is supported")
    agent.expect("algorithm.normalize_advantage_per_mini_batch", False, why="a rollout is normalized as a whole here")
    agent.expect("algorithm.share_cnn_encoders", False, why="policy and value network have encoders of their own here")
    agent.expect("algorithm.rnd_cfg", None, why="random network distillation is not supported")
    _read_symmetry(agent)


def _read_symmetry(agent: AgentReader) -> None:
    name = "algorithm.symmetry_cfg"
    if agent.take(name) is None and not agent.has(f"{name}.*"):
        return
    agent.expect(f"{name}.use_mirror_loss", False, why="only mirrored copies of transitions are supported")
    reads_env = (
        "its function reads the environment; write one of observation and action, and use a configuration without "
        "symmetry with --set symmetry=FILE.py:FUNCTION"
    )
    agent.expect(f"{name}.use_data_augmentation", False, why=reads_env)
    agent.ignore("symmetry is not used", f"{name}.*")
