"""Everything that defines a policy learned from a log except its parameters, and what it fits."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.algorithms.all import OFFLINE_ALGORITHMS, OfflineConfig
from lockstep.config.network import ScoreNetworkConfig
from lockstep.config.settings import updated
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.data.feature_file import features_from_dict, features_to_dict
from lockstep.data.features import Features, numbered, ordered
from lockstep.data.formulas import FORMULAS, MIN_POSITIVE
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun
from lockstep.session.data_checks import check_choices, first_difference
from lockstep.session.policy_file import FROM_LOG, PolicySignature, damage_named, newer_format_error

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePolicySpec:
    """Everything that defines a policy except its parameters."""

    info: DatasetInfo
    """Of the training data."""
    state: Features
    action: Features | None
    """Features of candidates, or of continuous actions; None for named actions."""
    network: ScoreNetworkConfig
    algo: str
    algorithm: OfflineConfig
    spec: EnvSpec | None = None
    """Of the simulator, if there is one."""

    @classmethod
    def of_run(cls, run: OfflineRun, dataset: Dataset, spec: EnvSpec | None) -> "OfflinePolicySpec":
        """Of the policy that a run learns from `dataset`; `spec` is of its simulator, if it names one."""
        return cls(
            info=dataset.info,
            state=dataset.state_features,
            action=dataset.action_features,
            network=run.network,
            algo=run.algo,
            algorithm=run.algorithm,
            spec=spec,
        )

    @property
    def action_spec(self) -> ActionSpec:
        """The continuous actions of the log as those of an environment."""
        assert self.action is not None
        low, high = bounds_of(self.action)
        return ActionSpec("continuous", (len(low),), tuple(low.tolist()), tuple(high.tolist()))

    @property
    def no_density(self) -> bool:
        """Whether the policy takes one of continuously many actions, with certainty."""
        return self.info.kind == "continuous" and self.algorithm.policy == "greedy"

    @property
    def has_models(self) -> bool:
        """Whether models of the reward and of the policy's value are learned with it."""
        return self.algorithm.estimate

    def signature(self, shapes: Mapping[str, tuple[int, ...]]) -> PolicySignature:
        """The properties in which a run must match the policy that it starts from, given the shapes of parameters."""
        meaning = {
            "state features": self.state,
            "action features": self.action,
            "actions": self.info.actions,
        }
        return PolicySignature(FROM_LOG + self.algo, shapes, meaning, normalizes=False)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "algo": FROM_LOG + self.algo,
            "info": self.info.to_dict(),
            "state": features_to_dict(self.state),
            "action": None if self.action is None else features_to_dict(self.action),
            "network": asdict(self.network),
            "algorithm": asdict(self.algorithm),
            "spec": None if self.spec is None else self.spec.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OfflinePolicySpec":
        """From the result of `to_dict`."""
        algo = str(data["algo"]).removeprefix(FROM_LOG)
        return cls(
            info=DatasetInfo.from_dict(data["info"]),
            state=features_from_dict(data["state"]),
            action=None if data["action"] is None else features_from_dict(data["action"]),
            network=updated(ScoreNetworkConfig(), data["network"]),
            algo=algo,
            algorithm=updated(OFFLINE_ALGORITHMS[algo](), data["algorithm"]),
            spec=None if data["spec"] is None else EnvSpec.from_dict(data["spec"]),
        )


def spec_of(path: Path, metadata: Mapping[str, Any]) -> OfflinePolicySpec:
    """The `OfflinePolicySpec` that a file's metadata describes. Raises `ConfigError` if it describes none."""
    with damage_named(path):
        newer = metadata["format"] > FORMAT
        spec = None if newer else OfflinePolicySpec.from_dict(metadata)
    if spec is None:
        raise newer_format_error(path, metadata)
    return spec


def check_fits(policy_spec: OfflinePolicySpec, dataset: Dataset, learned_from: str = "DATA") -> None:
    """Raise `ConfigError` if the policy cannot be evaluated on the data.

    Their states, actions or metrics differ from those that it learned from, or the log has none of its candidates.
    The error names the data that it learned from.
    """
    like = f"prepare it with --like {shlex.quote(learned_from)}"
    info, learned = dataset.info, policy_spec.info
    _check_alike("actions", [_form(info)], [_form(learned)], dataset)
    _check_alike("state features", info.state_features, learned.state_features, dataset)
    if info.kind != "discrete":
        _check_alike("action features", info.action_features, learned.action_features, dataset)
    if (name := first_difference(info, learned)) is not None:
        raise ConfigError(f"{dataset.path} differs in {name} from what the policy learned from; {like}")
    if (dataset.state_features, dataset.action_features) != (policy_spec.state, policy_spec.action):
        raise ConfigError(
            f"{dataset.path} is normalized differently from the data that the policy learned from; {like}"
        )
    check_choices(info, str(dataset.path), "prepare a log that has them, and evaluate on that: --data DIR")


def _form(info: DatasetInfo) -> str:
    return "names" if info.kind == "discrete" else "numbers or features"


def _check_alike(what: str, logged: Sequence[str], learned: Sequence[str], dataset: Dataset) -> None:
    """Raise `ConfigError` if the data have nothing in common with what the policy learned from."""
    if not set(logged) & set(learned):
        raise ConfigError(
            f"{dataset.path} is of another task than the policy: its {what} are {', '.join(logged[:4])}, and the "
            f"policy learned from {', '.join(learned[:4])}; evaluate it on a log of its own task"
        )


def check_simulator(policy_spec: OfflinePolicySpec, task: str) -> None:
    """Raise `ConfigError` if a simulator's observations or actions do not match those of the log."""
    spec, info = policy_spec.spec, policy_spec.info
    if spec is None:
        return
    if spec.image is not None or spec.observation_size != len(info.state_features):
        raise ConfigError(
            f"task={task} observes {spec.observation_size} numbers, the log has {len(info.state_features)} state "
            "features; name the simulator that the log is from, or leave task out"
        )
    _check_order(policy_spec, task)
    if info.kind == "continuous":
        _check_bounds(policy_spec, task)
        return
    count = len(info.actions) if info.kind == "discrete" else len(info.candidates)
    if spec.action.kind != "discrete" or spec.action.sizes[0] != count:
        what = "actions" if info.kind == "discrete" else "candidates that are the same in every row"
        raise ConfigError(
            f"task={task} does not choose among the {count} {what} of the log; name the simulator that the log is "
            "from, or leave task out"
        )


def _check_order(policy_spec: OfflinePolicySpec, task: str) -> None:
    """Raise `ConfigError` if the log names what a simulator numbers: names are in alphabetical order."""
    info = policy_spec.info
    named = [("state features", "state_features", info.state_features, "")]
    if info.kind == "continuous":  # states and actions have no id in common
        named.append(("numbers of an action", "action", info.action_features, "action_"))
    for what, column, ids, word in named:
        if numbered(ids):
            continue
        if numbered(ordered(ids)):
            raise ConfigError(
                f"task={task} numbers the {what}, and the data have them in alphabetical order ({', '.join(ids[:3])}, "
                "...), as earlier versions of Lockstep prepared them: prepare the log again, without --like, or leave "
                "task out"
            )
        raise ConfigError(
            f"task={task} numbers the {what}, and the log names them ({', '.join(ids[:4])}, ...): name them "
            f"{word}0, {word}1, ... in the simulator's order, in the log or by --columns of `offline prepare` "
            f"({column}: {{{word}0: NAME, {word}1: NAME}}), or leave task out"
        )
    if info.kind == "discrete" and not info.actions_given and not numbered(info.actions):
        raise ConfigError(
            f"task={task} numbers the actions, and the log names them ({', '.join(info.actions[:4])}): give the "
            "names in the simulator's order to `offline prepare` (--actions FIRST,SECOND), or leave task out"
        )


def _check_bounds(policy_spec: OfflinePolicySpec, task: str) -> None:
    """Raise `ConfigError` if a simulator does not take the continuous actions of the log."""
    assert policy_spec.spec is not None and policy_spec.action is not None
    action, size = policy_spec.spec.action, policy_spec.info.action_size
    if action.kind != "continuous" or action.width != size:
        raise ConfigError(
            f"task={task} does not take the {size} numbers of an action of the log; name the simulator that the log is "
            "from, or leave task out"
        )
    for name, low, high, lowest, highest in zip(
        policy_spec.action.ids, *bounds_of(policy_spec.action), action.low, action.high, strict=True
    ):
        if low >= highest or high <= lowest:
            raise ConfigError(
                f"task={task} takes numbers from {lowest:g} to {highest:g} where those of the log ({name}) lie in "
                f"[{low:g}, {high:g}]; name the simulator that the log is from, or leave task out"
            )


def bounds_of(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds of actions [K] each, float64."""
    every = [feature for _, feature in features.items()]
    low = np.array([feature.min_value for feature in every], np.float64)
    return low, np.array([feature.max_value for feature in every], np.float64)


def as_prepared(action: np.ndarray, bounds: ActionSpec) -> np.ndarray:
    """Actions [..., K] scaled to [-1, 1] with the digits that prepared data hold, float32.

    A density of the same number is the same in a recording and in an estimate from it.
    """
    constants = {"min_value": np.array(bounds.low), "max_value": np.array(bounds.high)}
    return FORMULAS["continuous_action"](action.astype(np.float64), constants).astype(np.float32)


def bound_margin(bounds: ActionSpec) -> np.ndarray:
    """How near to a bound a number counts as at it [K], in the units of the log; 0 where a bound is infinite.

    There the probability of all numbers as near, or beyond, takes the place of a density: prepared data hold actions
    within `MIN_POSITIVE` of the bounds on a scale of [-1, 1], one that was clipped may be rounded away from its bound,
    and the digits of one that was squashed do not tell how far it was before. Outside of 64 float32 numbers, rounding
    changes the distance from the bound by less than 1%.
    """
    low, high = np.array(bounds.low), np.array(bounds.high)
    with np.errstate(over="ignore", invalid="ignore"):
        half_range = (high - low) / 2
        spacing = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
        margin = np.minimum(np.maximum(2 * MIN_POSITIVE * half_range, 64 * spacing), half_range)
    return np.where(np.isfinite(half_range), margin, 0.0)


def least_at_bound(bounds: ActionSpec) -> np.ndarray:
    """The smallest magnitude of a number at a bound [K], scaled to [-1, 1]; the bounds are finite."""
    return 1.0 - 2 * bound_margin(bounds) / np.subtract(bounds.high, bounds.low)
