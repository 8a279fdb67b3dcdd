"""The policy file: parameters, normalizer and metadata in one safetensors file, the same for every backend.

Parameters have torch's names, shapes and layouts. Reading a file runs no code from it.
"""

import json
import shlex
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from lockstep.algorithms.all import ALGORITHMS, AlgorithmConfig
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.network import NetworkConfig
from lockstep.config.settings import as_text, updated
from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import LIMIT, RunningMoments
from lockstep.record import checkpoint
from lockstep.record.array_file import write_arrays
from lockstep.record.evaluations import EvaluationResult, best_evaluation
from lockstep.record.run_dir import EVALUATIONS_FILE, RUN_FILE
from lockstep.run import OfflineRun, from_dict, load
from lockstep.session import critic_moments

POLICY_FILE = "policy.safetensors"
BEST_POLICY_FILE = "policy_best.safetensors"
FROM_LOG = "offline/"
"""Prefix of the algorithm's name in the file of a policy that was learned from a log."""
_EVALUATION = "evaluation"
"""Metadata of the best policy of a run: for which evaluation it was written."""
_NORMALIZER = "normalizer."
_FORMAT = 3
"""Files of format 1 have no `algo`; they hold PPO policies. Those before 3 have no normalizers of a critic's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Everything that defines a policy for environments except its parameters."""

    task: str
    spec: EnvSpec
    network: NetworkConfig
    algorithm: AlgorithmConfig
    """The settings, of which only those that its class names as `SAVED` are written to the file."""
    observation_limit: float = LIMIT
    """Limit of normalized observations, in standard deviations."""

    @property
    def algo(self) -> str:
        """The name of the algorithm."""
        return next(name for name, cls in ALGORITHMS.items() if type(self.algorithm) is cls)

    def to_dict(self) -> dict[str, Any]:
        """The metadata of a file."""
        return {
            "format": _FORMAT,
            "task": self.task,
            "network": asdict(self.network),
            "spec": self.spec.to_dict(),
            "algo": self.algo,
            "algorithm": {name: getattr(self.algorithm, name) for name in self.algorithm.SAVED},
            "observation_limit": self.observation_limit,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicySpec":
        """From the result of `to_dict` of this or an older version."""
        settings = ALGORITHMS[data.get("algo", "ppo")]
        return cls(
            task=data["task"],
            spec=EnvSpec.from_dict(data["spec"]),
            network=updated(NetworkConfig(), data["network"]),
            algorithm=updated(settings(), data.get("algorithm", {})),
            observation_limit=data.get("observation_limit", LIMIT),
        )


class EnvPolicy(Protocol):
    """A policy for environments, of any backend."""

    @property
    def spec(self) -> EnvSpec:
        """Of the environments."""
        ...

    @property
    def algorithm(self) -> AlgorithmConfig:
        """The settings of the algorithm that it learns by."""
        ...


def policy_spec_of(policy: EnvPolicy, task: str, network: NetworkConfig) -> PolicySpec:
    """The `PolicySpec` of a policy."""
    return PolicySpec(task=task, spec=policy.spec, network=network, algorithm=policy.algorithm)


@dataclass(frozen=True, slots=True)
class PolicySignature:
    """The properties in which a run must match the policy that it starts from."""

    algo: str
    """The name of the algorithm, with the prefix `FROM_LOG` if it learns from a log."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of the parameters, by name."""
    meaning: Mapping[str, Any]
    """Settings that change the meaning of parameters but not their shapes."""
    normalizes: bool
    """Whether there is a normalizer of observations."""
    value_units: Mapping[str, bool] | None = None
    """Settings that decide the unit of values, and whether they are on; None if unknown, as of older files."""


def write(
    path: Path,
    parameters: Mapping[str, np.ndarray],
    observation_moments: RunningMoments | None,
    metadata: Mapping[str, Any],
    evaluation: EvaluationResult | None = None,
    *,
    of_critic: Mapping[str, RunningMoments] | None = None,
) -> None:
    """Write a policy file atomically. Raises `RunError` if it cannot be written.

    Args:
        path: of the file.
        parameters: by name.
        observation_moments: the normalizer of observations, if any.
        metadata: the result of `PolicySpec.to_dict`.
        evaluation: of the best policy of a run, for which it is written.
        of_critic: the normalizers of what its value network learned from, by name.
    """
    moments = {} if observation_moments is None else observation_moments.state()
    moments |= critic_moments.arrays_of(of_critic or {})
    if observation_moments is not None:
        metadata = {**metadata, "observation_limit": observation_moments.limit}
    if evaluation is not None:
        metadata = {**metadata, _EVALUATION: asdict(evaluation)}
    write_arrays(path, {**parameters, **{_NORMALIZER + name: array for name, array in moments.items()}}, metadata)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a policy file, or the policy of a checkpoint folder; `which_policy.read_policy` chooses that of a run.

    Returns:
        The metadata, and the arrays by name.

    Raises:
        ConfigError: the file does not exist, is damaged, or was written by a newer version.
    """
    if (path / checkpoint.MANIFEST).is_file():
        return _read_checkpoint(path)
    if not path.is_file():
        hint = "a run writes its policy when it ends, or when an evaluation is its best"
        if path.parent.name == "checkpoints":  # a run that trains may have removed it since it was found
            hint = "a run keeps the newest checkpoints alone (num_checkpoints); give its directory, for the newest"
        raise ConfigError(f"{path} does not exist; {hint}")
    with damage_named(path), safe_open(path, "numpy") as file:  # pyright: ignore[reportUnknownVariableType]
        header = cast("dict[str, str] | None", file.metadata()) or {}
        metadata: dict[str, Any] = json.loads(header["lockstep"])
        names = cast("list[str]", file.keys())
        tensors = {name: cast(np.ndarray, file.get_tensor(name)) for name in names}
        newer = not from_log(metadata) and metadata["format"] > _FORMAT
    if newer:
        raise newer_format_error(path, metadata)
    return metadata, {name: np.array(tensor) for name, tensor in tensors.items()}


@contextmanager
def damage_named(path: Path) -> Generator[None]:
    """Raise errors of reading a policy file, or what its metadata says, as a `ConfigError` that names it."""
    try:
        yield
    except (SafetensorError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ConfigError(
            f"{path} is not a Lockstep policy file, or is damaged ({reason}); a checkpoint of its run holds a policy "
            "too: RUN/checkpoints/step_N"
        ) from error


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest, run_dir = checkpoint.read_manifest(path), path.absolute().parent.parent
    state = checkpoint.read_state(path / checkpoint.LEARNER, manifest["files"].get(checkpoint.LEARNER, {"size": -1}))
    run = from_dict(manifest["run"])
    if (run_dir / RUN_FILE).is_file():  # its paths of user code are up to date; the algorithm may have changed since
        run = replace(load(run_dir / RUN_FILE), algorithm=run.algorithm)
    tensors = state["tensors"]
    arrays = {name.removeprefix("policy."): tensors[name] for name in tensors if name.startswith("policy.")}
    if not arrays:
        raise ConfigError(
            f"{path} was written by {manifest.get('learner', 'an algorithm of your own')}, whose state has no tensors "
            "named policy.NAME; the policy file of the run holds those of its end: lockstep evaluate "
            f"{shlex.quote(str(run_dir))}"
        )
    if isinstance(run, OfflineRun):
        return _metadata_of_offline_policy(path, state, run_dir), arrays
    if isinstance(run.algorithm, PPOConfig):
        moments = [name for name in tensors if name.startswith("observations.") or critic_moments.is_of_critic(name)]
        arrays |= {_NORMALIZER + name.removeprefix("observations."): tensors[name] for name in moments}
    limit = run.algorithm.observation_limit if isinstance(run.algorithm, PPOConfig) else LIMIT
    spec = PolicySpec(
        task=run.task,
        spec=env_spec(run.task, run.env),
        network=run.network,
        algorithm=run.algorithm,
        observation_limit=limit,
    )
    return json.loads(json.dumps(spec.to_dict())), arrays  # JSON turns tuples into lists, as in a file


def _metadata_of_offline_policy(path: Path, state: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The metadata of the policy in a checkpoint of an offline run.

    Checkpoints of earlier versions lack it; it is then that of a policy file of the run.
    """
    if "policy" in state:
        return state["policy"]
    files = [run_dir / name for name in (POLICY_FILE, BEST_POLICY_FILE)]
    for file in files:
        if file.is_file():  # only the parameters differ from those of the checkpoint
            metadata, _ = read(file)
            return {name: value for name, value in metadata.items() if name != _EVALUATION}
    raise ConfigError(
        f"{path} is of an older version and does not describe its policy, and there is neither {files[0]} nor "
        f"{files[1].name}, which would; `lockstep train --resume {shlex.quote(str(run_dir))}` writes them"
    )


def evaluation_in(path: Path) -> EvaluationResult | None:
    """The evaluation for which a best policy was written; None without a file that tells, as of older versions."""
    try:
        with safe_open(path, "numpy") as file:  # pyright: ignore[reportUnknownVariableType]
            found = json.loads(cast("dict[str, str]", file.metadata())["lockstep"])[_EVALUATION]
            return EvaluationResult(int(found["step"]), float(found["return_mean"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def evaluation_of_best(run_dir: Path) -> EvaluationResult | None:
    """The evaluation for which the best policy of a run was written; if its file does not tell, the best one."""
    return evaluation_in(run_dir / BEST_POLICY_FILE) or best_evaluation(run_dir / EVALUATIONS_FILE)


def from_log(metadata: Mapping[str, Any]) -> bool:
    """Whether a policy was learned from a log."""
    return str(metadata.get("algo")).startswith(FROM_LOG)


def split_policy(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[PolicySpec, dict[str, np.ndarray], RunningMoments | None]:
    """What a policy for environments is made of: its description, parameters and normalizer, if there is one.

    Args:
        path: for messages.
        metadata: of the file.
        arrays: of the file.

    Raises:
        ConfigError: they are no policy.
    """
    with damage_named(path):
        policy = PolicySpec.from_dict(metadata)
        parameters, observation_moments = _split_normalizer(policy, arrays)
    return policy, parameters, observation_moments


def critic_moments_of(
    path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, RunningMoments] | None:
    """The normalizers of what the value network of a policy learned from, by name.

    None if the file does not tell: it is of an older version, or learned from a log.

    Raises:
        ConfigError: they are damaged.
    """
    with damage_named(path):
        if from_log(metadata) or metadata["format"] < 3:
            return None
        named = {
            name.removeprefix(_NORMALIZER): array for name, array in arrays.items() if name.startswith(_NORMALIZER)
        }
        return critic_moments.from_arrays(named)


def _split_normalizer(
    policy: PolicySpec, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], RunningMoments | None]:
    parameters = {name: array for name, array in arrays.items() if not name.startswith(_NORMALIZER)}
    moments = {name.removeprefix(_NORMALIZER): arrays[name] for name in arrays.keys() - parameters.keys()}
    moments = {name: array for name, array in moments.items() if not critic_moments.is_of_critic(name)}
    if not moments:
        return parameters, None
    images = [image.columns for image in policy.spec.image_parts]
    observation_moments = RunningMoments(policy.spec.observation_size, policy.observation_limit, images)
    observation_moments.restore(moments)
    return parameters, observation_moments


def signature(
    spec: PolicySpec,
    shapes: Mapping[str, tuple[int, ...]],
    observation_moments: RunningMoments | None,
    of_critic: Collection[str] | None,
) -> PolicySignature:
    """The signature of a policy for environments, given the names of `critic_moments_of`."""
    meaning: dict[str, Any] = {}
    if isinstance(spec.algorithm, DQNConfig):
        names = ["value_distribution"]
        if spec.algorithm.value_distribution == "categorical":
            names += ["v_min", "v_max"]
        meaning = {name: getattr(spec.algorithm, name) for name in names}
    units = None if of_critic is None else critic_moments.units(of_critic)
    return PolicySignature(spec.algo, shapes, meaning, observation_moments is not None, units)


def check_algo(path: Path, source: str, mine: str) -> None:
    """Raise `ConfigError` if a policy learned from another source than a run, or by another algorithm.

    Args:
        path: of the policy, for messages.
        source: its `PolicySignature.algo`.
        mine: that of the run.
    """
    source_from_log = source.startswith(FROM_LOG)
    if source_from_log != mine.startswith(FROM_LOG):
        before, now = ("a log", "environments") if source_from_log else ("environments", "a log")
        raise ConfigError(f"--init-from {path}: it learned from {before}, and this run learns from {now}; leave it out")
    if source != mine:
        before, now = (one.removeprefix(FROM_LOG) for one in (source, mine))
        raise ConfigError(
            f"--init-from {path}: a policy of algo={before}, and this run has algo={now}; "
            f"use --algo {before}, or start without it"
        )


def check_start(path: Path, source: PolicySignature, mine: PolicySignature) -> None:
    """Raise `ConfigError` if a run (`mine`) cannot start from the policy of a file (`source`)."""
    check_algo(path, source.algo, mine.algo)
    shapes = sorted({*mine.shapes, *source.shapes})
    different = [name for name in shapes if mine.shapes.get(name) != source.shapes.get(name)]
    if different:
        raise _other_network_error(path, different[0])
    for name, value in mine.meaning.items():
        if (other := source.meaning.get(name)) != value:
            if mine.algo.startswith(FROM_LOG):  # features and actions of the data
                raise _other_network_error(path, name)
            raise ConfigError(
                f"--init-from {path}: its network has {name}={as_text(other)}, and this run's {as_text(value)}; "
                f"add --set {shlex.quote(f'{name}={as_text(other)}')}, or start without it"
            )
    if source.normalizes != mine.normalizes:
        theirs, ours = as_text(source.normalizes), as_text(mine.normalizes)
        raise ConfigError(
            f"--init-from {path}: its policy learned with normalize_observation={theirs}, and this run has {ours}; "
            f"add --set normalize_observation={theirs}, or start without it"
        )
    for name, value in (source.value_units or {}).items():
        if mine.value_units is not None and mine.value_units[name] != value:
            theirs, ours = (as_text(one) for one in (value, not value))
            raise ConfigError(
                f"--init-from {path}: its value network learned with {name}={theirs}, and this run has {ours}, "
                f"another unit of values; add --set {name}={theirs}, or start without it"
            )


def _other_network_error(path: Path, name: str) -> ConfigError:
    return ConfigError(f"--init-from {path}: its network differs from this run's in {name}; use the same network")


def newer_format_error(path: Path, metadata: Mapping[str, Any]) -> ConfigError:
    """The error for a file that a newer version wrote."""
    return ConfigError(f"{path} was written by a newer version (format {metadata['format']}); upgrade lockstep-rl")


def no_simulator_error(path: Path | str) -> ConfigError:
    """The error for playing a policy that was learned from a log without a simulator."""
    run = "RUN" if Path(path).is_file() else shlex.quote(str(path))
    return ConfigError(
        f"{path} was trained on logged data and has no simulator to play in; estimate its value from the log with "
        f"`lockstep offline evaluate {run}`, or train with --set task=ID"
    )


def no_log_error(path: Path) -> ConfigError:
    """The error for judging a policy by a log that it did not learn from: it was trained in environments."""
    return ConfigError(
        f"{path} holds a policy that did not learn from a log; lockstep evaluate {shlex.quote(str(path))} plays it"
    )


def damaged_error(path: Path) -> ConfigError:
    """The error for a file whose arrays do not fit its network."""
    return ConfigError(f"{path} does not hold the network that it describes, or is damaged")
