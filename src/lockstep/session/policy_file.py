"""The policy file: parameters, normalizer and what they mean, in one safetensors file, the same in every backend.

Parameters have torch's names, shapes and layouts. Reading one runs no code from it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from lockstep.algorithms.dqn import DQNConfig
from lockstep.config.settings import updated
from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.record import checkpoint
from lockstep.record.array_file import write_arrays
from lockstep.record.run_dir import RUN_FILE
from lockstep.run import NetworkConfig, OfflineRun, from_dict, load

POLICY_FILE = "policy.safetensors"
BEST_POLICY_FILE = "policy_best.safetensors"
FROM_LOG = "offline/"
"""How the name of the algorithm begins in the file of a policy that was learned from a log."""
_NORMALIZER = "normalizer."
_FORMAT = 2
"""1: no `algo`, which was always ppo."""
_HEADS = ("dueling", "value_distribution", "num_atoms", "v_min", "v_max", "num_quantiles", "noisy", "noisy_std")
_TOLD = (*_HEADS, "epsilon_end")
"""The settings of DQN that its network follows from, and how often it acts at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """All that a policy for environments follows from, but its parameters."""

    task: str
    spec: EnvSpec
    network: NetworkConfig
    algorithm: DQNConfig | None
    """Of Q-learning, of which no more is kept than the network follows from; None: the policy is PPO's."""

    @property
    def algo(self) -> str:
        """By name."""
        return "ppo" if self.algorithm is None else "dqn"

    def to_dict(self) -> dict[str, Any]:
        """As a file holds it."""
        return {
            "format": _FORMAT,
            "task": self.task,
            "network": asdict(self.network),
            "spec": self.spec.to_dict(),
            "algo": self.algo,
            "algorithm": _told(self.algorithm),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicySpec":
        """From what `to_dict` gave, in this version or an older one."""
        known = data.get("algo", "ppo") != "ppo"
        return cls(
            task=data["task"],
            spec=EnvSpec.from_dict(data["spec"]),
            network=updated(NetworkConfig(), data["network"]),
            algorithm=updated(DQNConfig(), data["algorithm"]) if known else None,
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """What a training that starts from a policy must have in common with it."""

    algo: str
    """`FROM_LOG` stands before those of logs."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of the parameters, by name."""
    meaning: Mapping[str, Any]
    """Settings by which parameters of equal shapes mean something else."""
    normalizes: bool
    """Whether it has a normalizer of observations."""


def write(
    path: Path, parameters: Mapping[str, np.ndarray], observations: RunningMoments | None, about: Mapping[str, Any]
) -> None:
    """Write a policy file, whole or not at all. Raises `RunError` where that cannot be."""
    moments = {} if observations is None else observations.state()
    write_arrays(path, {**parameters, **{_NORMALIZER + name: array for name, array in moments.items()}}, about)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a policy file says about its policy, and its arrays by name; of a run directory the final policy.

    The folder of a checkpoint is read as if its policy had been written to a file.

    Raises:
        ConfigError: there is no such file, or it is damaged, or of a version to come.
    """
    if (path / checkpoint.MANIFEST).is_file():
        return _of_checkpoint(path)
    path = file_of(path)
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; a run writes its policy when it ends, or when an evaluation is its best"
        )
    try:
        with safe_open(path, "numpy") as file:  # pyright: ignore[reportUnknownVariableType]
            metadata = cast("dict[str, str] | None", file.metadata()) or {}
            about: dict[str, Any] = json.loads(metadata["lockstep"])
            names = cast("list[str]", file.keys())
            tensors = {name: cast(np.ndarray, file.get_tensor(name)) for name in names}
    except (SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a Lockstep policy file, or is damaged ({error})") from error
    if not from_log(about) and about["format"] > _FORMAT:
        raise newer(path, about)
    return about, {name: np.array(tensor) for name, tensor in tensors.items()}


def _of_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest, run_dir = checkpoint.read_manifest(path), path.absolute().parent.parent
    state = checkpoint.read_state(path / checkpoint.LEARNER, manifest["files"].get(checkpoint.LEARNER, {"size": -1}))
    there = (run_dir / RUN_FILE).is_file()  # it says where files of the user's own are now
    run, tensors = load(run_dir / RUN_FILE) if there else from_dict(manifest["run"]), state["tensors"]
    arrays = {name.removeprefix("policy."): tensors[name] for name in tensors if name.startswith("policy.")}
    if isinstance(run, OfflineRun):  # all but the parameters is the same as at the end
        return read(run_dir)[0], arrays
    moments = {name: tensors[name] for name in tensors if name.startswith("observations.")}
    arrays |= {_NORMALIZER + name.removeprefix("observations."): array for name, array in moments.items()}
    config = run.algorithm if isinstance(run.algorithm, DQNConfig) else None
    about = PolicySpec(task=run.task, spec=env_spec(run.task, run.env), network=run.network, algorithm=config)
    return json.loads(json.dumps(about.to_dict())), arrays  # lists for tuples, as in a file


def file_of(path: Path) -> Path:
    """The policy file of a run directory, or the file itself."""
    return path / POLICY_FILE if path.is_dir() and not (path / checkpoint.MANIFEST).is_file() else path


def from_log(about: Mapping[str, Any]) -> bool:
    """Whether a policy was learned from a log."""
    return str(about.get("algo")).startswith(FROM_LOG)


def apart(spec: EnvSpec, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], RunningMoments | None]:
    """The arrays of a file as parameters and a normalizer, if there is one."""
    parameters = {name: array for name, array in arrays.items() if not name.startswith(_NORMALIZER)}
    moments = {name.removeprefix(_NORMALIZER): arrays[name] for name in arrays.keys() - parameters.keys()}
    if not moments:
        return parameters, None
    observations = RunningMoments(spec.observation_size)
    observations.restore(moments)
    return parameters, observations


def kind(about: PolicySpec, shapes: Mapping[str, tuple[int, ...]], observations: RunningMoments | None) -> Kind:
    """Of a policy for environments."""
    header = _told(about.algorithm)
    names = (
        ("value_distribution", "v_min", "v_max") if header.get("value_distribution") == "categorical" else _HEADS[1:2]
    )
    meaning = {f"algorithm.{name}": header[name] for name in names if header}
    return Kind(about.algo, shapes, meaning, observations is not None)


def check_start(path: Path, source: Kind, mine: Kind) -> None:
    """Raise `ConfigError` where a training (`mine`) cannot start from the policy of a file."""
    theirs, own = source.algo.startswith(FROM_LOG), mine.algo.startswith(FROM_LOG)
    if theirs != own:
        before, now = ("a log", "environments")[:: 1 if theirs else -1]
        raise ConfigError(f"--init-from {path}: it learned from {before}, and this run learns from {now}; leave it out")
    if source.algo != mine.algo:
        before, now = (one.algo.removeprefix(FROM_LOG) for one in (source, mine))
        raise ConfigError(
            f"--init-from {path}: a policy of algo={before}, and this run has algo={now}; "
            f"use --algo {before}, or start without it"
        )
    shapes = sorted({*mine.shapes, *source.shapes})
    different = [name for name in shapes if mine.shapes.get(name) != source.shapes.get(name)]
    different += [name for name, value in mine.meaning.items() if source.meaning.get(name) != value]
    if different:
        raise ConfigError(
            f"--init-from {path}: its network differs from this run's in {different[0]}; use the same network"
        )
    if source.normalizes != mine.normalizes:
        raise ConfigError(
            f"--init-from {path}: one of the two runs normalizes observations; set normalize_observation alike"
        )


def newer(path: Path, about: Mapping[str, Any]) -> ConfigError:
    """The error of a file that only a later version understands."""
    return ConfigError(f"{path} was written by a newer version (format {about['format']}); upgrade lockstep-rl")


def damaged(path: Path) -> ConfigError:
    """The error of a file whose arrays are not those of its network."""
    return ConfigError(f"{path} does not hold the network that it describes, or is damaged")


def _told(config: DQNConfig | None) -> dict[str, Any]:
    return {} if config is None else {name: getattr(config, name) for name in _TOLD}
