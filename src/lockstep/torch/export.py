"""The policy file: parameters, normalizer and what they mean, in one safetensors file. Loading runs no code from it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.normalize import RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.settings import updated
from lockstep.torch.networks import Policy
from lockstep.torch.tensor_file import write_tensors

POLICY_FILE = "policy.safetensors"
BEST_POLICY_FILE = "policy_best.safetensors"
_NORMALIZER = "normalizer."


def save_policy(path: Path, policy: Policy, observations: RunningMoments | None, run: Run, spec: EnvSpec) -> None:
    """Write a policy file, whole or not at all. Raises `RunError` where that cannot be."""
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    if observations is not None:
        tensors |= {_NORMALIZER + name: torch.from_numpy(value).clone() for name, value in observations.state().items()}
    about = {"format": 1, "task": run.task, "network": asdict(run.network), "spec": spec.to_dict()}
    write_tensors(path, tensors, about)


def load_policy(path: Path) -> tuple[Policy, RunningMoments | None, EnvSpec]:
    """Read a policy file, or the policy of a run directory."""
    if path.is_dir():
        path = path / POLICY_FILE
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; a run writes its policy when it ends, or when an evaluation is its best"
        )
    try:
        with safe_open(path, "pt") as file:  # pyright: ignore[reportUnknownVariableType]
            metadata = cast("dict[str, str] | None", file.metadata()) or {}
            about = json.loads(metadata["lockstep"])
            names = cast("list[str]", file.keys())
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a Lockstep policy file, or is damaged ({error})") from error
    spec = EnvSpec.from_dict(about["spec"])
    network = updated(NetworkConfig(), about["network"])
    policy = Policy(spec, network)
    moments = {
        name.removeprefix(_NORMALIZER): tensors.pop(name).numpy()
        for name in list(tensors)
        if name.startswith(_NORMALIZER)
    }
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise ConfigError(f"{path} does not hold the network that it describes, or is damaged") from error
    observations = None
    if moments:
        observations = RunningMoments(spec.observation_size)
        observations.restore(moments)
    return policy, observations, spec


def start_from(path: Path, policy: Policy, observations: RunningMoments | None) -> None:
    """Copy the parameters and the normalizer of a policy file into a fresh policy of the same shape."""
    source, moments, _ = load_policy(path)
    mine, theirs = policy.state_dict(), source.state_dict()
    different = [
        n for n in sorted({*mine, *theirs}) if n not in mine or n not in theirs or mine[n].shape != theirs[n].shape
    ]
    if different:
        raise ConfigError(
            f"--init-from {path}: its network differs from this run's in {different[0]}; use the same network"
        )
    if (moments is None) != (observations is None):
        raise ConfigError(
            f"--init-from {path}: one of the two runs normalizes observations; set normalize_observation alike"
        )
    policy.load_state_dict(theirs)
    if moments is not None and observations is not None:
        observations.restore(moments.state())
