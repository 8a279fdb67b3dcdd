"""Settings that have no effect because of another setting or of the task: a run says so when it starts."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.settings import as_text
from lockstep.envs.spec import EnvSpec
from lockstep.run import AnyRun, Run
from lockstep.session.encoder_choice import encoder_of, only_convolves

_ONLY_WITH: tuple[tuple[str, str | bool | None, tuple[str, ...]], ...] = (
    ("prioritized", True, ("priority_exponent", "importance_exponent", "priority_eps")),
    ("value_distribution", "categorical", ("num_atoms", "v_min", "v_max")),
    ("value_distribution", "quantile", ("num_quantiles",)),
    ("value_distribution", "none", ("loss",)),
    ("noisy", True, ("noisy_std",)),
    ("target_rate", None, ("target_update_every",)),
    ("learning_rate_schedule", "adaptive", ("desired_kl", "adapt_every", "adapt_before_step")),
    ("normalize_value", True, ("value_limit",)),
    ("normalize_observation", True, ("observation_limit",)),
    ("optimizer", "adam", ("adam_eps",)),
    ("target_noise", True, ("noise_clip",)),
    ("policy", "softmax", ("temperature",)),
    ("maxq", True, ("double",)),
    ("beta", True, ("max_weight",)),
)
"""A setting of an algorithm, the value that it must have, and the settings that have an effect only then. True: any
value but false and 0."""

_HEAD_SETTINGS = ("initial_log_std", "state_dependent_std")
"""Settings of the network that a user's `network.module` follows."""
_LAYER_SETTINGS = ("hidden", "activation")
_CONVOLUTION_SETTINGS = ("features", "channels_last")


def warnings_of_start_policy(run: AnyRun) -> list[str]:
    """What a run that starts from a policy (`--init-from`) should tell.

    One sentence for each setting whose value the policy replaces, and one for random actions at the start.
    """
    config = run.algorithm
    found: list[str] = []
    if isinstance(config, SACConfig):
        reason = "--init-from: the temperature is that of the policy"
        found += _sentence("", config, ("initial_alpha",), reason, {})
    if isinstance(config, SACConfig | TD3Config) and config.learning_starts:
        found.append(
            f"the first {config.learning_starts} steps (learning_starts) are random actions, not those of the policy "
            "that the run starts from; learning_starts=0 begins with the policy"
        )
    if isinstance(config, DQNConfig) and config.epsilon_range[0] > config.epsilon_range[1]:
        first = config.epsilon_range[0]
        found.append(
            f"at the start {100 * first:.3g} % of the actions are random (epsilon_start), not those of the policy that "
            "the run starts from; a smaller epsilon_start begins with more of the policy"
        )
    return found


def without_effect(config: object) -> set[str]:
    """The settings of an algorithm that have no effect because of another one."""
    return {name for names, _ in _unused_algorithm_settings(config) for name in names}


def unused_settings(run: AnyRun, spec: EnvSpec | None = None, defaults: Mapping[str, Any] | None = None) -> list[str]:
    """One sentence for each reason why settings that a user has given have no effect in this run.

    Args:
        run: the config.
        spec: of its environments; without it, what images decide is left out.
        defaults: settings of a task that is named alone (`task_defaults.default_settings`), which nobody has given, as
            the defaults of the config's classes.
    """
    config, defaults = run.algorithm, defaults or {}
    found: list[str] = []
    for names, reason in _unused_algorithm_settings(config):
        found += _sentence("", config, names, reason, defaults)
    if isinstance(config, PPOConfig) and config.num_epochs == 1:  # it leaves out the epochs that are still to come
        found += _sentence("", config, ("target_kl",), "num_epochs=1", defaults)
    if isinstance(config, SACConfig | TD3Config) and config.dropout and run.compile:
        found.append(f"compile=true has no effect with dropout={as_text(config.dropout)}")
    if isinstance(config, DQNConfig):
        first, last = config.epsilon_range
        if first == last:
            decay = ("epsilon_steps", "epsilon_schedule")
            found += _sentence("", config, decay, f"epsilon_start=epsilon_end={as_text(first)}", defaults)
    if run.device == "cpu":
        found += [f"{name}=true has no effect with device=cpu" for name in ("tf32", "share_gpus") if getattr(run, name)]
    if isinstance(run, Run):
        for names, reason in _unused_network_settings(run, spec):
            found += _sentence("network.", run.network, names, reason, defaults)
    return found


def _unused_algorithm_settings(config: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Settings of an algorithm without effect, and the reason, for each reason."""
    for setting, needed, names in _ONLY_WITH:
        value = getattr(config, setting, needed)
        effective = bool(value) if needed is True else value == needed
        if not effective:
            yield names, f"{setting}={as_text(value)}"


def _unused_network_settings(run: Run, spec: EnvSpec | None) -> list[tuple[tuple[str, ...], str]]:
    """Settings of the network without effect, and the reason, for each reason."""
    network = run.network
    if network.module is not None:
        names = tuple(item.name for item in fields(network) if item.name not in ("module", *_HEAD_SETTINGS))
        return [(names, f"network.module={network.module}")]
    found: list[tuple[tuple[str, ...], str]] = []
    if run.algo == "dqn":
        found.append((("shared",), "algo=dqn"))
    if spec is None:
        return found
    encoder = encoder_of(network, spec)
    if encoder == "mlp":
        found.append((_CONVOLUTION_SETTINGS, f"network.encoder={encoder}"))
    elif run.algo == "dqn":  # its heads follow the convolutions, and begin as torch's layers do
        found.append(((*_LAYER_SETTINGS, "initialization"), f"network.encoder={encoder}"))
    elif only_convolves(network, spec):
        found.append((_LAYER_SETTINGS, f"network.encoder={encoder}"))
    return found


def _sentence(prefix: str, config: Any, names: tuple[str, ...], reason: str, defaults: Mapping[str, Any]) -> list[str]:
    """What the settings among `names` are that differ from their defaults, if any: a list of one sentence."""
    values = {name: getattr(config, name) for name in names if hasattr(config, name)}
    unset = type(config)()
    changed = {n: value for n, value in values.items() if value != defaults.get(prefix + n, getattr(unset, n))}
    if not changed:
        return []
    listed = ", ".join(f"{prefix}{name}={as_text(value)}" for name, value in changed.items())
    return [f"{listed} {'has' if len(changed) == 1 else 'have'} no effect with {reason}"]
