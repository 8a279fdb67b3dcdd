"""The fields of classic workflow files, and our settings for them.

The fields are those of facebookresearch/ReAgent at a3bc5837. A field is supported, or refused with a reason, or ignored
with a note because it has no effect on learning from a log. `null`, `false`, 0 and empty values of unsupported fields
are accepted, since generated files contain every field.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lockstep.config import settings
from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. Without `setting`, `why` and `remark`, `lockstep.cli.workflow_files.files` handles it."""

    kind: Any = str
    """Type of the value."""
    setting: str = ""
    """Dotted name of our setting."""
    values: Mapping[Any, Any] | None = None
    """Our value for each of theirs; None: the same value."""
    why: str = ""
    """Reason why it is refused, unless it has no effect."""
    neutral: tuple[Any, ...] = ()
    """More values without effect."""
    remark: str = ""
    """Reason why it has no effect."""


_SWITCH = bool  # and 0 or 1
_NO = "this does not exist here"
_IMAGES = "networks for images learn from environments (lockstep train), not from logs"
_C51 = "distributions of returns are learned from environments (lockstep train --algo dqn), not from logs"
_SWITCHED_OFF = "this belongs to a distribution of returns, which is switched off"
_COMPARED = "an exported policy is always compared with the trained one, within the bound of `lockstep export`"
_DDPG = (
    "continuous actions are learned by IQL, TD3+BC and CQL here, without such a file: "
    "lockstep offline train DATA --algo iql|td3_bc|cql"
)

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "": {
        "training_data_path": Field(kind=str | list[str]),
        "eval_data_path": Field(kind=str | list[str]),
        "state_norm_data_path": Field(),
        "action_norm_data_path": Field(),
        "model_output_path": Field(),
        "use_gpu": Field(kind=_SWITCH),
        "use_all_avail_gpus": Field(kind=_SWITCH),
        "num_nodes": Field(kind=int),
        "node_index": Field(kind=int),
        "init_method": Field(),
        "actions": Field(kind=list[str | int]),
        "epochs": Field(kind=int, setting="epochs"),
        "max_episode_steps": Field(kind=int),  # this and the next are ours
        "columns": Field(kind=dict[str, Any]),
        "in_training_cpe": Field(kind=dict, why="write evaluation: {calc_cpe_in_training: true}"),
        "actor_training": Field(kind=dict, why=_DDPG),
        "critic_training": Field(kind=dict, why=_DDPG),
        "shared_training": Field(kind=dict, why=_DDPG),
        "action_rescale_map": Field(kind=dict, why=_DDPG),
        "state_feature_params": Field(kind=dict, why="the features are those of the normalization file; edit that"),
        "target_action_distribution": Field(kind=list, why=_NO),
    },
    "norm_params": {
        "output_dir": Field(),
        "cols_to_norm": Field(kind=list[str]),
        "num_samples": Field(kind=int),
        "max_unique_enum_values": Field(kind=int),
        "quantile_size": Field(kind=int),
        "quantile_k2_threshold": Field(kind=float),
        "skip_box_cox": Field(kind=_SWITCH),
        "skip_quantiles": Field(kind=_SWITCH),
        "feature_overrides": Field(kind=dict[str, str]),
    },
    "rl": {
        "gamma": Field(kind=float, setting="algorithm.gamma"),
        "target_update_rate": Field(kind=float, setting="algorithm.target_rate"),
        "maxq_learning": Field(kind=_SWITCH, setting="algorithm.maxq"),
        "temperature": Field(kind=float, setting="algorithm.temperature"),
        "softmax_policy": Field(kind=_SWITCH, setting="algorithm.policy", values={True: "softmax", False: "greedy"}),
        "reward_boost": Field(kind=dict[str, float], setting="algorithm.reward_boost"),
        "use_seq_num_diff_as_time_diff": Field(kind=_SWITCH, setting="algorithm.use_time_diff"),
        "time_diff_unit_length": Field(kind=float),
        "multi_steps": Field(kind=int, setting="algorithm.n_step"),
        "q_network_loss": Field(
            setting="algorithm.loss", values={"mse": "mse", "huber": "huber", "bce": "bce", "bce_with_logits": "bce"}
        ),
        "tensorboard_logging_freq": Field(kind=int),
        "epsilon": Field(kind=float, remark="it explores a simulator, and a log cannot be explored"),
        "reward_burnin": Field(
            kind=int, neutral=(1,), why="Q-values and the models of the rewards learn at the same time from the start"
        ),
        "set_missing_value_to_zero": Field(
            kind=_SWITCH,
            why="an absent feature counts as its mean (0 after normalization); write the 0 into the log if it is one",
        ),
        "predictor_atol_check": Field(kind=float, remark=_COMPARED),
        "predictor_rtol_check": Field(kind=float, remark=_COMPARED),
        "ratio_different_predictions_tolerance": Field(kind=float, remark=_COMPARED),
    },
    "rainbow": {
        "double_q_learning": Field(kind=_SWITCH, setting="algorithm.double"),
        "dueling_architecture": Field(kind=_SWITCH, setting="algorithm.dueling"),
        "bcq": Field(kind=_SWITCH),
        "bcq_drop_threshold": Field(kind=float),
        "categorical": Field(kind=_SWITCH, why=_C51),
        "quantile": Field(kind=_SWITCH, why=_C51),
        "num_atoms": Field(kind=int, remark=_SWITCHED_OFF),
        "qmin": Field(kind=float, remark=_SWITCHED_OFF),
        "qmax": Field(kind=float, remark=_SWITCHED_OFF),
        "c51_l2_decay": Field(kind=float, remark=_SWITCHED_OFF),
    },
    "training": {
        "layers": Field(kind=list[int]),
        "activations": Field(kind=list[str]),
        "minibatch_size": Field(kind=int, setting="algorithm.batch_size"),
        "learning_rate": Field(kind=float, setting="algorithm.learning_rate"),
        "optimizer": Field(setting="algorithm.optimizer", values={"ADAM": "adam", "SGD": "sgd"}),
        "lr_policy": Field(),
        "lr_decay": Field(kind=float),
        "warm_start_model_path": Field(),
        "l2_decay": Field(kind=float, setting="algorithm.l2_decay"),
        "clip_grad_norm": Field(kind=float, setting="algorithm.max_grad_norm"),
        "dropout_ratio": Field(kind=float, why="there is no dropout; l2_decay restrains the weights"),
        "use_batch_norm": Field(kind=_SWITCH, why="a network would then depend on how rows are cut into minibatches"),
        "use_layer_norm": Field(kind=_SWITCH, why=_NO),
        "use_noisy_linear_layers": Field(kind=_SWITCH, why="noise explores a simulator, and a log cannot be explored"),
        "weight_init_min_std": Field(kind=float, why=_NO),
        "minibatches_per_step": Field(kind=int, neutral=(1,), why="use a larger minibatch_size"),
        "cnn_parameters": Field(kind=dict, why=_IMAGES),
        "factorization_parameters": Field(kind=dict, why=_NO),
    },
    "evaluation": {"calc_cpe_in_training": Field(kind=_SWITCH)},
}
"""By section; the section `""` is the top level of the file."""

CLASSIC_NAMES: Mapping[str, str] = {
    name: field.setting.rpartition(".")[2]
    for fields in FIELDS.values()
    for name, field in fields.items()
    if field.setting and field.values is None
} | {"eval_data_path": "eval_data", "model_output_path": "model_path", "lr_decay": "learning_rate_decay"}
"""Classic field names that `--set` accepts, and our names; only fields with the same values."""

_BELONGS_TO: Mapping[tuple[str, str], tuple[str, Callable[[Any], bool], str]] = {
    ("", "init_method"): ("num_nodes", lambda nodes: (nodes or 1) > 1, "there is one node (num_nodes is 1)"),
    ("rl", "time_diff_unit_length"): (
        "use_seq_num_diff_as_time_diff",
        bool,
        "time does not count, without rl.use_seq_num_diff_as_time_diff",
    ),
    ("rainbow", "bcq_drop_threshold"): ("bcq", bool, "this belongs to rainbow.bcq, which is switched off"),
    ("training", "lr_decay"): (
        "lr_policy",
        lambda policy: policy == "exponential",
        "this belongs to training.lr_policy=exponential",
    ),
}
"""Fields that have an effect only with a value of another field of their section; and the reason why not without it."""

_SEVERAL = {
    "bcq_threshold": "rainbow.bcq_drop_threshold",
    "learning_rate_decay": "training.lr_decay",
    "learning_rate_schedule": "training.lr_policy",
    "hidden": "training.layers",
    "log_every": "rl.tensorboard_logging_freq * training.minibatch_size",
}
"""Our settings that are computed from several fields, and the fields."""


def shown(section: str, name: str) -> str:
    """The name of a field in messages."""
    return f"{section}.{name}" if section else name


def known_fields(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields by section, converted to their types; without `null` values.

    Raises:
        ConfigError: a field is unknown or of another type, or a section is no mapping.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in FIELDS}
    for name, value in data.items():
        if name in FIELDS and name and value is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name}={value!r} must be a mapping of fields")
            for inner, item in cast(Mapping[str, Any], value).items():
                _take(found, name, inner, item)
        elif name not in FIELDS:
            _take(found, "", name, value)
    return found


def settings_of(found: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Our settings for the fields, and remarks on fields without effect."""
    leaves, remarks = dict[str, Any](), list[str]()
    for section, fields in found.items():
        for name, value in fields.items():
            field = FIELDS[section][name]
            neutral = not value or value in field.neutral
            if field.why and not neutral:
                raise ConfigError(f"{shown(section, name)}={_text(value)}: {field.why}; leave it out")
            if not neutral and (why := field.remark or _without_its_switch(section, name, fields)):
                remarks.append(f"{shown(section, name)}={_text(value)} changes nothing: {why}")
            if field.setting:
                leaves[field.setting] = _ours(section, name, value, field)
    return leaves, remarks


def classic_words(error: ConfigError) -> ConfigError:
    """An error about one of our settings, with the name of the classic field."""
    text = str(error)
    for ours, theirs in _SEVERAL.items():
        if text.startswith(f"{ours}="):
            return ConfigError(theirs + text[len(ours) :])
    for section, fields in FIELDS.items():
        for name, field in fields.items():
            ours = field.setting.rpartition(".")[2]
            if ours and text.startswith(f"{ours}="):
                return ConfigError(shown(section, name) + text[len(ours) :])
    return error


def _without_its_switch(section: str, name: str, fields: Mapping[str, Any]) -> str:
    """The reason why a field has no effect because of another one; empty if it has."""
    if (section, name) not in _BELONGS_TO:
        return ""
    other, switches_on, why = _BELONGS_TO[section, name]
    return "" if switches_on(fields.get(other)) else why


def _take(found: dict[str, dict[str, Any]], section: str, name: str, value: Any) -> None:
    if name not in FIELDS[section]:
        raise ConfigError(_unknown(section, name))
    if value is None:
        return
    field = FIELDS[section][name]
    if field.kind == dict[str, str] and isinstance(value, Mapping):
        value = {str(key): item for key, item in cast(Mapping[Any, Any], value).items()}  # YAML has numbers as keys
    if field.kind is _SWITCH and not isinstance(value, bool) and value in (0, 1):
        value = bool(value)
    found[section][name] = settings.converted(shown(section, name), value, field.kind)


def _unknown(section: str, name: str) -> str:
    elsewhere = [shown(other, name) for other, fields in FIELDS.items() if name in fields and other != section]
    near = difflib.get_close_matches(name, FIELDS[section], n=2)
    all_names = {field: shown(other, field) for other, fields in FIELDS.items() for field in fields}
    near = elsewhere or [shown(section, field) for field in near]
    near = near or [all_names[field] for field in difflib.get_close_matches(name, all_names, n=2)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(FIELDS[section]))}"
    return f"unknown field {shown(section, name)}; {hint}"


def _ours(section: str, name: str, value: Any, field: Field) -> Any:
    if field.values is None:
        return value
    if value not in field.values:
        raise ConfigError(f"{shown(section, name)}={_text(value)} must be one of {', '.join(map(str, field.values))}")
    return field.values[value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
