"""Agent configurations of Stable-Baselines3 (its YAML files in Isaac Lab) as settings of our PPO."""

from lockstep.config.agents.reader import ISAAC_POLICY, AgentReader

_ACTIVATIONS = {"nn.ELU": "elu", "nn.ReLU": "relu", "nn.SiLU": "silu", "nn.Tanh": "tanh"}


def read_sb3(agent: AgentReader, num_envs: int) -> None:
    """Map a file of Stable-Baselines3, for `num_envs` environments over all ranks."""
    agent.expect("policy", "MlpPolicy", why="only linear layers are read")
    agent.set("seed", int(agent.number("seed", 42)))
    steps = int(agent.number("n_steps"))
    agent.set("num_steps", steps)
    agent.set("num_epochs", int(agent.number("n_epochs")))
    agent.set("num_minibatches", _minibatches(agent, num_envs * steps))
    agent.set("total_steps", int(agent.number("n_timesteps")))
    agent.set("gamma", agent.number("gamma"))
    agent.set("gae_lambda", agent.number("gae_lambda", 0.95))
    agent.set("clip_range", agent.number("clip_range", 0.2))
    # Their value loss is the squared error, ours half of it.
    agent.set("value_coef", 2.0 * agent.number("vf_coef", 0.5))
    agent.set("entropy_coef", agent.number("ent_coef", 0.0))
    agent.set("max_grad_norm", agent.number("max_grad_norm", 0.5))
    agent.set("learning_rate", agent.number("learning_rate"))
    agent.set("learning_rate_schedule", "constant")
    if (kl := agent.take("target_kl")) is not None:
        agent.note("target_kl: Stable-Baselines3 looks at 1.5 times it after each minibatch, Lockstep after each epoch")
        kl = 1.5 * float(kl)
    agent.set("target_kl", kl)
    agent.set("normalize_observation", bool(agent.take("normalize_input", False)))
    agent.set("normalize_return", bool(agent.take("normalize_value", False)))
    agent.set("observation_limit", agent.number("clip_obs", 100.0))
    agent.expect("use_sde", False, why="state-dependent exploration is not supported")
    agent.ignore("it is used with use_sde only", "sde_sample_freq")
    agent.ignore("names, files and devices are Lockstep's own", "device")
    _read_network(agent)


def _minibatches(agent: AgentReader, batch: int) -> int:
    rows = int(agent.number("batch_size", 0)) or batch // int(agent.number("n_minibatches"))
    if batch % rows and batch > rows:
        raise agent.refusal("batch_size", rows, f"it does not divide the {batch} transitions of a rollout")
    return max(batch // rows, 1)


def _read_network(agent: AgentReader) -> None:
    name = "policy_kwargs"
    kind = agent.take(f"{name}.activation_fn", "nn.Tanh")
    if kind not in _ACTIVATIONS:
        raise agent.refusal(f"{name}.activation_fn", kind, f"known are {', '.join(_ACTIVATIONS)}")
    agent.set("network.activation", _ACTIVATIONS[kind])
    agent.set("network.shared", False)
    agent.set("env.critic_keys", ISAAC_POLICY)
    both = agent.take(f"{name}.net_arch")
    policy, value = agent.take(f"{name}.net_arch.pi", both), agent.take(f"{name}.net_arch.vf", both)
    agent.set("network.hidden", tuple(policy or (64, 64)))
    agent.set("network.critic_hidden", tuple(value or (64, 64)))
    agent.set("network.initial_log_std", agent.number(f"{name}.log_std_init", 0.0))
    agent.set("adam_eps", agent.number(f"{name}.optimizer_kwargs.eps", 1e-5))
    agent.expect(f"{name}.squash_output", False, why="actions are not squashed in PPO here")
    if not agent.take(f"{name}.ortho_init", True):
        agent.set("network.initialization", "uniform")
