"""Convert the fields of the network, the schedule and the estimates, which map to several settings of ours."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun

_ACTIVATIONS = ("relu", "tanh", "elu", "silu")
_SCHEDULES = {"fixed": "constant", "constant": "constant", "linear": "linear", "exponential": "exponential"}
_CLASSIC_DEFAULTS: Mapping[tuple[str, str], tuple[Any, str]] = {
    ("rl", "gamma"): (0.9, "algorithm.gamma"),
    ("rl", "target_update_rate"): (0.001, "algorithm.target_rate"),
    ("rl", "temperature"): (0.01, "algorithm.temperature"),
    ("rl", "softmax_policy"): ("softmax", "algorithm.policy"),
    ("rainbow", "dueling_architecture"): (True, "algorithm.dueling"),
    ("training", "layers"): ([256, 128], "network.hidden"),
    ("training", "minibatch_size"): (4096, "algorithm.batch_size"),
    ("training", "l2_decay"): (0.01, "algorithm.l2_decay"),
}
"""By field: the classic default in our units, and our setting."""
_BCQ_THRESHOLD = 0.1  # the classic default of bcq_drop_threshold


def learner_settings(found: Mapping[str, Mapping[str, Any]], algo: str, num_actions: int) -> dict[str, Any]:
    """Our settings for fields that do not map to a single one."""
    training, rl, rainbow = found["training"], found["rl"], found["rainbow"]
    leaves = _network(training, algo, num_actions) | _schedule(training) | _bcq(rainbow)
    unit = rl.get("time_diff_unit_length")
    if unit and rl.get("use_seq_num_diff_as_time_diff"):
        leaves["algorithm.time_diff_unit"] = unit
    every = rl.get("tensorboard_logging_freq")
    if every:
        if every < 0:
            raise ConfigError(f"rl.tensorboard_logging_freq={every} must not be negative")
        leaves["log_every"] = every * training.get("minibatch_size", OfflineDQNConfig().batch_size)
    estimates = found["evaluation"].get("calc_cpe_in_training")
    if estimates is not None:
        leaves |= {"algorithm.estimate": estimates, "estimate_every": 1 if estimates else None}
    return leaves


def differing_defaults(found: Mapping[str, Mapping[str, Any]], run: OfflineRun) -> list[str]:
    """A note on missing fields whose classic default differs from ours."""
    defaults: list[str] = []
    for (section, name), (classic, setting) in _CLASSIC_DEFAULTS.items():
        ours: Any = settings.plain(attrgetter(setting)(run))
        if name not in found[section] and ours != classic:
            defaults.append(f"{section}.{name}={ours} ({classic})")
    return [f"left out, with Lockstep's default instead of the classic one: {', '.join(defaults)}"] if defaults else []


def _bcq(rainbow: Mapping[str, Any]) -> dict[str, Any]:
    if not rainbow.get("bcq"):
        return {}
    return {"algorithm.bcq_threshold": rainbow.get("bcq_drop_threshold", _BCQ_THRESHOLD)}


def _network(training: Mapping[str, Any], algo: str, num_actions: int) -> dict[str, Any]:
    leaves = dict[str, Any]()
    layers = cast(list[int] | None, training.get("layers"))
    if layers is not None:
        outputs = (-1, num_actions or -1) if algo == "dqn" else (-1, 1)
        if len(layers) < 2 or layers[0] != -1 or layers[-1] not in outputs or any(units < 1 for units in layers[1:-1]):
            raise ConfigError(
                f"training.layers={layers} must be -1 (as many as there are features), the units of each hidden layer, "
                "and -1 (as many as there are scores), such as [-1, 128, 64, -1]"
            )
        leaves["network.hidden"] = layers[1:-1]
    activations = cast(list[str] | None, training.get("activations"))
    if activations is not None:
        if layers is not None and len(activations) != len(layers) - 1:
            raise ConfigError(
                f"training.activations={activations} must have {len(layers) - 1} items, one behind each layer of "
                f"training.layers={layers}"
            )
        *between, last = activations or ["linear"]
        if last != "linear" or len(set(between)) > 1 or not set(between) <= set(_ACTIVATIONS):
            raise ConfigError(
                f"training.activations={activations} must be one of {', '.join(_ACTIVATIONS)} behind each hidden "
                "layer, the same everywhere, and linear at the end"
            )
        if between:
            leaves["network.activation"] = between[0]
    return leaves


def _schedule(training: Mapping[str, Any]) -> dict[str, Any]:
    policy, decay = training.get("lr_policy", "fixed"), training.get("lr_decay")
    if policy not in _SCHEDULES:
        raise ConfigError(
            f"training.lr_policy={policy}: it decays by minibatches; use fixed, linear (to 0 at the end), or "
            "exponential (lr_decay per epoch)"
        )
    schedule = {"algorithm.learning_rate_schedule": _SCHEDULES[policy]}
    return schedule | ({"algorithm.learning_rate_decay": decay} if policy == "exponential" and decay else {})
