"""Agent configurations of skrl (its YAML files in Isaac Lab) as settings of our PPO."""

from collections.abc import Mapping
from typing import Any, cast

from lockstep.config.agents.reader import ISAAC_POLICY, NO_RECURRENT, AgentReader

_POLICIES = ("GaussianMixin", "CategoricalMixin", "MultiCategoricalMixin")
_BLOCK = ("name", "input", "type", "layers", "activations")
_NORMALIZER = "RunningStandardScaler"


def read_skrl(agent: AgentReader, num_envs: int) -> None:
    """Map a skrl file, for `num_envs` environments over all ranks."""
    agent.expect("agent.class", "PPO", "ppo", why="only PPO is read")
    agent.set("seed", agent.seed())
    has_states = _read_models(agent)
    steps = agent.count("agent.rollouts", 16)
    agent.set("num_steps", steps)
    agent.set("num_epochs", agent.count("agent.learning_epochs", 8))
    agent.set("num_minibatches", agent.count("agent.mini_batches", 2))
    rollouts = agent.count("trainer.timesteps") // steps
    agent.set("total_steps", max(rollouts, 1) * steps * num_envs)
    _read_losses(agent)
    _read_learning_rate(agent)
    _read_normalizers(agent, has_states)
    agent.ignore("a rollout is kept whole", "memory.*")
    agent.ignore("names, files and devices are Lockstep's own", "agent.experiment", "agent.experiment.*",
                 "trainer.class", "trainer.environment_info", "trainer.close_environment_at_exit")  # fmt: skip
    agent.ignore("skrl ignores it for PPO", "agent.random_timesteps", "agent.learning_starts")


def _read_models(agent: AgentReader) -> bool:
    """Map the networks; whether the value network reads other observations than the policy."""
    agent.expect("models.policy.class", *_POLICIES, why="the policy must be Gaussian or categorical")
    agent.expect("models.value.class", "DeterministicMixin", why="only a deterministic value function is read")
    agent.expect("models.policy.fixed_log_std", False, why="the deviation is always learned here")
    for model in ("policy", "value"):
        agent.expect(f"models.{model}.clip_actions", False, why="actions are clipped with env.clip_action")
    agent.expect("models.policy.output", "ACTIONS", why="the output must be the action")
    agent.expect("models.value.output", "ONE", why="the output must be one value")
    agent.set("network.initial_log_std", agent.number("models.policy.initial_log_std", 0.0))
    if agent.take("models.policy.clip_log_std", False):
        low, high = agent.take("models.policy.min_log_std", -20.0), agent.take("models.policy.max_log_std", 2.0)
        agent.note(f"clip_log_std: Lockstep does not clip the log deviation to [{low}, {high}]")
    agent.ignore("it is used with clip_log_std only", "models.policy.m??_log_std")
    agent.ignore("the distribution is the same", "models.policy.unnormalized_log_prob")
    policy, activation, source = _layers(agent, "policy")
    value, value_activation, value_source = _layers(agent, "value")
    if activation != value_activation:
        raise agent.refusal("models.value.network", value_activation, "policy and value have one activation here")
    agent.set("network.hidden", policy)
    agent.set("network.initialization", "uniform")
    agent.set("network.activation", activation)
    own_observations = source != value_source
    separate = agent.take("models.separate", True)
    agent.set("network.shared", not separate and policy == value and not own_observations)
    if not separate and (policy != value or own_observations):
        agent.note("separate=false: skrl then ignores the value's own layers and input, which Lockstep follows")
    if policy != value:
        agent.set("network.critic_hidden", value)
    if not own_observations:
        agent.set("env.critic_keys", ISAAC_POLICY)
    return own_observations


def _only_block(agent: AgentReader, name: str) -> Mapping[str, Any]:
    """The one block of a network; the reader takes a list as one value, and does not see the block's keys."""
    given = agent.needed(name)
    if not isinstance(given, list) or not all(isinstance(block, Mapping) for block in cast("list[Any]", given)):
        raise agent.refusal(name, given, "it must be a list with one block of linear layers")
    blocks = cast("list[Mapping[str, Any]]", given)
    if len(blocks) != 1:
        raise agent.refusal(name, [block.get("name") for block in blocks], "only one block of linear layers is read")
    for key, value in blocks[0].items():
        if key not in _BLOCK:
            raise agent.refusal(f"{name}.{key}", value, f"known are {', '.join(_BLOCK)}")
    if "layers" not in blocks[0]:
        raise agent.refusal(name, given, "the block has no layers")
    return blocks[0]


def _layers(agent: AgentReader, model: str) -> tuple[tuple[int, ...], str, str]:
    """Units of the layers of a model, the activation between them, and the name of what it reads."""
    name = f"models.{model}.network"
    block = _only_block(agent, name)
    source, layers, activation = block.get("input"), block["layers"], block.get("activations", "")
    if source not in ("OBSERVATIONS", "STATES"):
        raise agent.refusal(f"{name}.input", source, "a network reads the observation as it is")
    if block.get("type") is not None:
        raise agent.refusal(f"{name}.type", block["type"], NO_RECURRENT)
    if not isinstance(layers, list) or not all(isinstance(units, int) for units in cast("list[Any]", layers)):
        raise agent.refusal(f"{name}.layers", layers, "only linear layers are read")
    if isinstance(activation, list):
        kinds = set(map(str, cast("list[Any]", activation)))
        activation = kinds.pop() if len(kinds) == 1 else ""
    if activation not in ("tanh", "relu", "elu"):
        raise agent.refusal(f"{name}.activations", block.get("activations"), "known are tanh, relu and elu")
    return tuple(cast("list[int]", layers)), activation, source


def _read_losses(agent: AgentReader) -> None:
    agent.set("gamma", agent.number("agent.discount_factor", 0.99))
    name = "agent.gae_lambda" if agent.has("agent.gae_lambda") else "agent.lambda"
    agent.set("gae_lambda", agent.number(name, 0.95))
    agent.set("clip_range", agent.number("agent.ratio_clip", 0.2))
    value_clip = agent.number("agent.value_clip", 0.2)
    clips = agent.take("agent.clip_predicted_values", True) and value_clip
    agent.set("value_clip_range", value_clip if clips else None)
    if clips:
        agent.note(
            "value_clip: skrl learns from the clipped value alone, Lockstep from the larger error of both values"
        )
    # Their value loss is the squared error, ours half of it; the default differs between versions of skrl.
    agent.set("value_coef", 2.0 * agent.number("agent.value_loss_scale"))
    agent.set("entropy_coef", agent.number("agent.entropy_loss_scale", 0.0))
    agent.set("max_grad_norm", agent.number("agent.grad_norm_clip", 0.5) or None)
    if target_kl := agent.number("agent.kl_threshold", 0.0) or None:
        agent.note("kl_threshold: skrl leaves out the rest of an epoch, Lockstep all epochs after one beyond it")
    agent.set("target_kl", target_kl)
    agent.set("reward_scale", agent.number("agent.rewards_shaper_scale", 1.0))
    agent.expect("agent.rewards_shaper", None, why="rewards are scaled with rewards_shaper_scale alone")
    agent.set("precision", "bfloat16" if agent.take("agent.mixed_precision", False) else "float32")
    if not agent.take("agent.time_limit_bootstrap", False):
        agent.note(
            "time_limit_bootstrap=false: Lockstep always adds the value of the true last observation at a time limit"
        )


def _read_learning_rate(agent: AgentReader) -> None:
    scheduler = agent.take("agent.learning_rate_scheduler")
    agent.set("learning_rate", agent.number("agent.learning_rate", 1e-3))
    agent.set("adam_eps", 1e-8)
    if scheduler is None:
        agent.set("learning_rate_schedule", "constant")
        agent.ignore("there is no scheduler", "agent.learning_rate_scheduler_kwargs*")
        return
    if scheduler not in ("KLAdaptiveLR", "KLAdaptiveRL"):
        raise agent.refusal("agent.learning_rate_scheduler", scheduler, "known is KLAdaptiveLR")
    agent.set("learning_rate_schedule", "adaptive")
    agent.set("desired_kl", agent.number("agent.learning_rate_scheduler_kwargs.kl_threshold", 0.008))
    agent.set("adapt_every", "epoch")
    agent.expect("agent.learning_rate_scheduler_kwargs", None, why="it must be a mapping")


def _read_normalizers(agent: AgentReader, has_states: bool) -> None:
    """`state_preprocessor` normalized observations until skrl 2, whose name for it is `observation_preprocessor`.

    Since then it is that of the value network's own observations, if the task `has_states`.
    """
    both = agent.has("agent.observation_preprocessor")
    names = ("observation_preprocessor", "state_preprocessor", "value_preprocessor")
    found = {name: agent.take(f"agent.{name}") for name in names}
    for name, value in found.items():
        if value not in (None, _NORMALIZER):
            raise agent.refusal(f"agent.{name}", value, f"known is {_NORMALIZER}")
        agent.ignore("sizes and devices follow from the task", f"agent.{name}_kwargs*")
    of_policy, of_value = found["observation_preprocessor"], found["state_preprocessor"]
    agent.set("normalize_observation", bool(of_policy or of_value))
    if both and has_states and of_policy != of_value:
        agent.note("observation_preprocessor and state_preprocessor differ: Lockstep normalizes the input of both")
    agent.set("observation_limit", 5.0)
    agent.set("value_limit", 5.0)
    agent.set("normalize_value", bool(found["value_preprocessor"]))
