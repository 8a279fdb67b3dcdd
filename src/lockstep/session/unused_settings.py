"""Settings that have no effect because of another setting or of the task: a run says so when it starts."""

from dataclasses import fields
from typing import Any

from lockstep.config.settings import as_text
from lockstep.envs.spec import EnvSpec
from lockstep.run import AnyRun, Run
from lockstep.session.checks import encoder_of, only_convolves

_ONLY_WITH: tuple[tuple[str, str | bool | None, tuple[str, ...]], ...] = (
    ("prioritized", True, ("priority_exponent", "importance_exponent", "priority_eps")),
    ("value_distribution", "categorical", ("num_atoms", "v_min", "v_max")),
    ("value_distribution", "quantile", ("num_quantiles",)),
    ("value_distribution", "none", ("loss",)),
    ("noisy", True, ("noisy_std",)),
    ("target_rate", None, ("target_update_every",)),
    ("learning_rate_schedule", "adaptive", ("desired_kl", "adapt_every")),
    ("normalize_value", True, ("value_limit",)),
    ("normalize_observation", True, ("observation_limit",)),
    ("optimizer", "adam", ("adam_eps",)),
    ("target_noise", True, ("noise_clip",)),
)
"""A setting of an algorithm, the value that it must have, and the settings that have an effect only then. True: any
value but false and 0."""

_OF_OWN_HEADS = ("initial_log_std", "state_dependent_std")
"""Settings of the network that a user's `network.module` follows."""
_OF_LAYERS = ("hidden", "activation")
_OF_CONVOLUTIONS = ("features", "channels_last")


def unused_settings(run: AnyRun, spec: EnvSpec | None = None) -> list[str]:
    """One sentence for each reason why settings, which differ from their defaults, have no effect in this run.

    Args:
        run: the config.
        spec: of its environments; without it, what images decide is left out.
    """
    config = run.algorithm
    found: list[str] = []
    for setting, needed, names in _ONLY_WITH:
        value = getattr(config, setting, needed)
        effective = bool(value) if needed is True else value == needed
        if not effective:
            found += _sentence("", config, names, f"{setting}={as_text(value)}")
    if isinstance(run, Run):
        found += _of_network(run, spec)
    return found


def _of_network(run: Run, spec: EnvSpec | None) -> list[str]:
    network = run.network
    if network.module is not None:
        names = tuple(item.name for item in fields(network) if item.name not in ("module", *_OF_OWN_HEADS))
        return _sentence("network.", network, names, f"network.module={network.module}")
    found: list[str] = []
    if run.algo == "dqn":
        found += _sentence("network.", network, ("shared",), "algo=dqn")
    if spec is None:
        return found
    encoder = encoder_of(network, spec)
    if encoder == "mlp":
        found += _sentence("network.", network, _OF_CONVOLUTIONS, f"network.encoder={encoder}")
    elif only_convolves(network, spec) or run.algo == "dqn":  # DQN's heads follow the convolutions
        found += _sentence("network.", network, _OF_LAYERS, f"network.encoder={encoder}")
    return found


def _sentence(prefix: str, config: Any, names: tuple[str, ...], reason: str) -> list[str]:
    """What the settings among `names` are that differ from their defaults, if any: a list of one sentence."""
    values = {name: getattr(config, name) for name in names if hasattr(config, name)}
    default = type(config)()
    changed = {name: value for name, value in values.items() if value != getattr(default, name)}
    if not changed:
        return []
    listed = ", ".join(f"{prefix}{name}={as_text(value)}" for name, value in changed.items())
    return [f"{listed} {'has' if len(changed) == 1 else 'have'} no effect with {reason}"]
