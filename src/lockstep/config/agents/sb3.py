"""Agent configurations of Stable-Baselines3 (its YAML files in Isaac Lab) as settings of our PPO."""

from lockstep.config.agents.reader import ISAAC_POLICY, AgentReader

_ACTIVATIONS = {"nn.ELU": "elu", "nn.ReLU": "relu", "nn.SiLU": "silu", "nn.Tanh": "tanh"}


def read_sb3(agent: AgentReader, num_envs: int) -> None:
    """Map a file of Stable-Baselines3, for `num_envs` environments over all ranks."""
    agent.expect("policy", "MlpPolicy", why="only linear layers are read")
    agent.set("seed", agent.seed())
    steps = agent.count("n_steps")
    agent.set("num_steps", steps)
    agent.set("num_epochs", agent.count("n_epochs"))
    agent.set("num_minibatches", _minibatches(agent, num_envs * steps))
    agent.set("total_steps", agent.count("n_timesteps"))
    agent.set("gamma", agent.number("gamma"))
    agent.set("gae_lambda", agent.number("gae_lambda", 0.95))
    agent.set("clip_range", agent.number("clip_range", 0.2))
    # Their value loss is the squared error, ours half of it.
    agent.set("value_coef", 2.0 * agent.number("vf_coef", 0.5))
    agent.set("entropy_coef", agent.number("ent_coef", 0.0))
    agent.set("max_grad_norm", agent.number("max_grad_norm", 0.5))
    agent.set("learning_rate", agent.number("learning_rate"))
    agent.set("learning_rate_schedule", "constant")
    if (kl := agent.number_or_none("target_kl")) is not None:
        agent.note("target_kl: Stable-Baselines3 looks at 1.5 times it after each minibatch, Lockstep after each epoch")
        kl = 1.5 * kl
    agent.set("target_kl", kl)
    agent.set("normalize_observation", bool(agent.take("normalize_input", False)))
    agent.set("normalize_return", bool(agent.take("normalize_value", False)))
    agent.set("observation_limit", agent.number("clip_obs", 100.0))
    agent.note("advantages: Stable-Baselines3 normalizes them over each minibatch, Lockstep over the whole rollout")
    agent.expect("use_sde", False, why="state-dependent exploration is not supported")
    agent.ignore("it is used with use_sde only", "sde_sample_freq")
    agent.ignore("names, files and devices are Lockstep's own", "device")
    _read_network(agent)


def _minibatches(agent: AgentReader, batch: int) -> int:
    if agent.has("n_minibatches"):
        agent.refuse("batch_size", "n_minibatches is given, too; leave one of them out")
        given, name = agent.count("n_minibatches"), "n_minibatches"
        rows = batch // given
    else:
        rows = given = agent.count(name := "batch_size")
    if not rows or (batch % rows and batch > rows):
        raise agent.refusal(name, given, f"it does not divide the {batch} transitions of a rollout")
    return max(batch // rows, 1)


def _read_network(agent: AgentReader) -> None:
    name = "policy_kwargs"
    agent.refuse(name, f"it must be a mapping, as in {name}: {{activation_fn: nn.ELU, net_arch: [32, 32]}}")
    kind = agent.take(f"{name}.activation_fn", "nn.Tanh")
    if str(kind) not in _ACTIVATIONS:
        raise agent.refusal(f"{name}.activation_fn", kind, f"known are {', '.join(_ACTIVATIONS)}")
    agent.set("network.activation", _ACTIVATIONS[kind])
    agent.set("network.shared", False)
    agent.set("env.critic_keys", ISAAC_POLICY)
    policy, value = _layers(agent, f"{name}.net_arch")
    agent.set("network.hidden", policy)
    agent.set("network.critic_hidden", value)
    agent.set("network.initial_log_std", agent.number(f"{name}.log_std_init", 0.0))
    agent.set("adam_eps", agent.number(f"{name}.optimizer_kwargs.eps", 1e-5))
    agent.expect(f"{name}.squash_output", False, why="actions are not squashed in PPO here")
    if not agent.take(f"{name}.ortho_init", True):
        agent.set("network.initialization", "uniform")


def _layers(agent: AgentReader, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Units of the hidden layers of policy and value network; of a mapping, what is left out has none."""
    if agent.has(f"{name}.*"):
        return agent.units(f"{name}.pi", default=()), agent.units(f"{name}.vf", default=())
    both = agent.units(name, default=(64, 64))
    return both, both
