"""Agent configurations of rl_games (`params:` in its YAML files) as settings of our PPO."""

from collections.abc import Mapping

from lockstep.config.agents.reader import ISAAC_POLICY, NO_RECURRENT, AgentReader

_ONE_NETWORK = "the policy and a central value function are trained by one optimizer on the same minibatches here"


def read_rl_games(agent: AgentReader, num_envs: int) -> None:
    """Map `params` of an rl_games file, for `num_envs` environments over all ranks."""
    agent.expect("algo.name", "a2c_continuous", why="only its PPO for continuous actions is read")
    agent.expect("model.name", "continuous_a2c_logstd", why="only a Gaussian policy with a learned deviation is read")
    agent.expect("network.name", "actor_critic", why="only its actor_critic network is read")
    agent.expect("config.ppo", True, why="only PPO is read")
    agent.expect("pbt.enabled", False, why="population based training is not supported")
    agent.ignore("population based training is off", "pbt.*")
    agent.set("seed", agent.seed())
    activation = _read_network(agent)
    _read_environment(agent)
    _read_batches(agent, num_envs)
    of_policy = _read_losses(agent)
    _read_learning_rate(agent)
    _read_central_value(agent, activation, of_policy)
    if not agent.take("config.value_bootstrap", False):
        agent.note("value_bootstrap=false: Lockstep always adds the value of the true last observation at a time limit")
    score = agent.number("config.score_to_win", 1e9)
    agent.set("stop_return", score)
    agent.ignore("names, files and devices are Lockstep's own", "config.name", "config.env_name", "config.device",
                 "config.device_name", "config.save_*", "load_checkpoint", "load_path", "config.print_stats",
                 "config.use_diagnostics")  # fmt: skip
    agent.ignore(
        "the number of ranks decides this", "config.multi_gpu", "config.num_actors", "config.env_config.num_envs"
    )
    agent.ignore("evaluations take the most likely action", "config.player.*", "player.*")
    agent.ignore("rl_games reads it for recurrent networks only", "config.seq_len", "config.seq_length")
    agent.ignore("it changes nothing in rl_games", "config.use_smooth_clamp")


def _read_network(agent: AgentReader) -> str:
    """Map the network; returns its activation."""
    agent.refuse("network.rnn.*", NO_RECURRENT)
    agent.refuse("network.cnn.*", "convolutions are chosen with network.encoder here")
    agent.set("network.hidden", agent.units("network.mlp.units"))
    activation = agent.activation("network.mlp.activation")
    agent.set("network.activation", activation)
    agent.set("network.shared", not agent.take("network.separate", False))
    agent.expect("network.mlp.d2rl", False, why="dense connections are not supported")
    agent.ignore("rl_games' default initializer takes no scale", "network.mlp.initializer.scale")
    agent.expect("network.mlp.initializer.name", "default", why="only the default initializer is read")
    agent.set("network.initialization", "uniform")
    agent.expect("network.mlp.regularizer.name", "None", why="no regularizer is supported")
    space = "network.space.continuous"
    for name in ("mu_activation", "sigma_activation"):
        agent.expect(f"{space}.{name}", "None", why="actions have no activation here")
    agent.expect(f"{space}.mu_init.name", "default", why="only the default initializer is read")
    agent.expect(f"{space}.sigma_init.name", "const_initializer", why="only a constant first deviation is read")
    agent.set("network.initial_log_std", agent.number(f"{space}.sigma_init.val", 0.0))
    agent.set("network.state_dependent_std", not agent.take(f"{space}.fixed_sigma", True))
    return activation


def _read_environment(agent: AgentReader) -> None:
    """What Isaac Lab's wrapper for rl_games does with the numbers of the environment."""
    if (bound := agent.number_or_none("env.clip_observations")) is not None:
        agent.set("env.clip_observation", bound)
    scales = agent.take("config.clip_actions", True)
    bound = agent.number_or_none("env.clip_actions")
    if bound is None and scales:
        agent.note("clip_actions: rl_games clips actions to [-1, 1] and scales them to the task's bounds, Lockstep not")
    if bound is not None:
        if scales and bound != 1.0:
            why = "with config.clip_actions rl_games scales actions from [-1, 1] to this bound"
            raise agent.refusal("env.clip_actions", bound, why)
        agent.set("env.clip_action", bound)


def _read_batches(agent: AgentReader, num_envs: int) -> None:
    steps = agent.count("config.horizon_length")
    rows = agent.count("config.minibatch_size")
    batch = num_envs * steps
    if batch % rows and batch > rows:
        raise agent.refusal(
            "config.minibatch_size",
            rows,
            f"it does not divide {num_envs} environments x {steps} steps; change num_envs",
        )
    if batch < rows:
        agent.note(f"minibatch_size={rows} is more than the {batch} transitions of a rollout: one minibatch is used")
    agent.set("num_steps", steps)
    agent.set("num_minibatches", max(batch // rows, 1))
    agent.set("num_epochs", agent.count("config.mini_epochs"))
    epochs = agent.whole("config.max_epochs", -1 if agent.has("config.max_frames") else None)  # -1: no limit
    frames = agent.whole("config.max_frames", -1)
    limits = [limit for limit in (epochs * batch, frames) if limit > 0]
    if not limits:
        raise agent.refusal("config.max_epochs", epochs, "it must be at least 1, or config.max_frames")
    agent.set("total_steps", min(limits))


def _read_losses(agent: AgentReader) -> dict[str, bool]:
    """Map the losses and normalizers; returns the switches that a central value function has, too."""
    clip, clips = agent.number("config.e_clip"), bool(agent.take("config.clip_value", True))
    agent.set("clip_range", clip)
    agent.set("value_clip_range", clip if clips else None)
    agent.set("value_coef", agent.number("config.critic_coef"))
    agent.set("entropy_coef", agent.number("config.entropy_coef"))
    agent.set("bounds_loss_coef", agent.number_or_none("config.bounds_loss_coef") or 0.0)  # null is off
    agent.set("gamma", agent.number("config.gamma"))
    agent.set("gae_lambda", agent.number("config.tau"))
    agent.set("reward_scale", agent.number("config.reward_shaper.scale_value", 1.0))
    agent.set("normalize_advantage", bool(agent.take("config.normalize_advantage", False)))
    of_values, of_observations = (
        bool(agent.take(f"config.{name}", False)) for name in ("normalize_value", "normalize_input")
    )
    agent.set("normalize_value", of_values)
    agent.set("normalize_observation", of_observations)
    if of_values or of_observations:
        agent.note(
            "normalizers: rl_games updates that of observations in every epoch, before it learns from them, and that "
            "of values from old values and targets; Lockstep updates both once per rollout, observations are learned "
            "from as the policy saw them, and targets alone count"
        )
    agent.set("observation_limit", 5.0)
    agent.set("value_limit", 5.0)
    truncates = bool(agent.take("config.truncate_grads", False))
    if truncates:
        agent.set("max_grad_norm", agent.positive_or_none("config.grad_norm", 1.0))
    else:
        agent.set("max_grad_norm", None)
        agent.ignore("gradients are not clipped", "config.grad_norm")
    agent.set("precision", "bfloat16" if agent.take("config.mixed_precision", False) else "float32")
    return {"clip_value": clips, "normalize_input": of_observations, "truncate_grads": truncates}


def _read_learning_rate(agent: AgentReader) -> None:
    schedule = agent.take("config.lr_schedule", "fixed")
    kinds = {"adaptive": "adaptive", "fixed": "constant", "linear": "linear", "None": "constant"}
    if str(schedule) not in kinds:
        raise agent.refusal("config.lr_schedule", schedule, "known are adaptive, fixed and linear")
    agent.set("learning_rate", agent.number("config.learning_rate"))
    agent.set("learning_rate_schedule", kinds[str(schedule)])
    agent.set("desired_kl", agent.number("config.kl_threshold", 0.008))
    kinds = {"legacy": "minibatch", "standard": "epoch"}
    kind = agent.take("config.schedule_type", "legacy")
    if str(kind) not in kinds:
        raise agent.refusal("config.schedule_type", kind, f"known are {' and '.join(kinds)}")
    agent.set("adapt_every", kinds[kind])
    agent.set("kl_reference", "previous_epoch")
    agent.set("adam_eps", 1e-8)


def _read_central_value(agent: AgentReader, activation: str, of_policy: Mapping[str, bool]) -> None:
    """The critic on its own observations, with its own layers.

    Args:
        agent: the configuration.
        activation: of the policy's network.
        of_policy: switches of the policy that the central value function has, too.
    """
    name = "config.central_value_config"
    if not agent.has(f"{name}.*"):
        agent.set("env.critic_keys", ISAAC_POLICY)
        return
    network = f"{name}.network"
    agent.refuse(f"{network}.rnn.*", NO_RECURRENT)
    agent.set("network.critic_hidden", agent.units(f"{network}.mlp.units"))
    agent.set("network.shared", False)
    agent.same_activation(f"{network}.mlp.activation", activation)
    agent.expect(f"{network}.mlp.d2rl", False, why="dense connections are not supported")
    agent.expect(f"{network}.mlp.initializer.name", "default", why="only the default initializer is read")
    agent.expect(f"{network}.mlp.regularizer.name", "None", why="no regularizer is supported")
    for what in ("learning_rate", "kl_threshold", "minibatch_size", "mini_epochs", "lr_schedule", "schedule_type"):
        if agent.has(f"{name}.{what}"):
            agent.note(f"central_value_config.{what}={agent.take(f'{name}.{what}')}: {_ONE_NETWORK}")
    for what, policys in of_policy.items():
        value = agent.take(f"{name}.{what}", policys)
        if bool(value) != policys:
            agent.note(f"central_value_config.{what}={value}: it is {policys} here, as for the policy")
    agent.ignore("the network is of this kind", f"{network}.name", f"{network}.central_value",
                 f"{network}.mlp.initializer.scale")  # fmt: skip


__all__ = ["read_rl_games"]
