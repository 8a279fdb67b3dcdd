"""The policy file: parameters, normalizer and what they mean, in one safetensors file. Loading runs no code from it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.normalize import RunningMoments
from lockstep.run import AnyRun, NetworkConfig
from lockstep.settings import updated
from lockstep.torch.networks import AnyPolicy, Policy
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.scoring import SCORING, ScoringPolicy, made_scoring, save_scoring
from lockstep.torch.tensor_file import write_tensors

POLICY_FILE = "policy.safetensors"
BEST_POLICY_FILE = "policy_best.safetensors"
_NORMALIZER = "normalizer."
_FORMAT = 2
"""1: no `algo`, which was always ppo."""
_HEADS = ("dueling", "value_distribution", "num_atoms", "v_min", "v_max", "num_quantiles", "noisy", "noisy_std")
_TOLD = (*_HEADS, "epsilon_end")
"""The settings of DQN that its network follows from, and how often it acts at random."""


def save_policy(path: Path, policy: AnyPolicy, observations: RunningMoments | None, run: AnyRun) -> None:
    """Write a policy file, whole or not at all. Raises `RunError` where that cannot be."""
    if isinstance(policy, ScoringPolicy):
        save_scoring(path, policy)
        return
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    if observations is not None:
        tensors |= {_NORMALIZER + name: torch.from_numpy(value).clone() for name, value in observations.state().items()}
    about = {"format": _FORMAT, "task": run.task, "network": asdict(run.network), "spec": policy.spec.to_dict()}
    write_tensors(path, tensors, about | {"algo": _algo(policy), "algorithm": _algorithm(policy)})


def load_policy(path: Path) -> tuple[AnyPolicy, RunningMoments | None]:
    """Read a policy file, or the policy of a run directory. Which class it is says the file."""
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
    if str(about.get("algo")).startswith(SCORING):
        return made_scoring(path, about, tensors), None
    if about["format"] > _FORMAT:
        raise ConfigError(f"{path} was written by a newer version (format {about['format']}); upgrade lockstep-rl")
    spec = EnvSpec.from_dict(about["spec"])
    policy = _made(about, spec)
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
    return policy, observations


def start_from(path: Path, policy: AnyPolicy, observations: RunningMoments | None) -> None:
    """Copy the parameters and the normalizer of a policy file into a fresh policy of the same shape."""
    source, moments = load_policy(path)
    if isinstance(source, ScoringPolicy) != isinstance(policy, ScoringPolicy):
        theirs, mine = ("a log", "environments")[:: 1 if isinstance(source, ScoringPolicy) else -1]
        raise ConfigError(
            f"--init-from {path}: it learned from {theirs}, and this run learns from {mine}; leave it out"
        )
    if _algo(source) != _algo(policy):
        before, now = (_algo(one).removeprefix(SCORING) for one in (source, policy))
        raise ConfigError(
            f"--init-from {path}: a policy of algo={before}, and this run has algo={now}; "
            f"use --algo {before}, or start without it"
        )
    mine, theirs = policy.state_dict(), source.state_dict()
    different = [
        n for n in sorted({*mine, *theirs}) if n not in mine or n not in theirs or mine[n].shape != theirs[n].shape
    ] or _meant_otherwise(policy, source)
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


def _algo(policy: AnyPolicy) -> str:
    if isinstance(policy, ScoringPolicy):
        return SCORING + policy.about.algo
    return "dqn" if isinstance(policy, QPolicy) else "ppo"


def _algorithm(policy: AnyPolicy) -> dict[str, Any]:
    return {name: getattr(policy.algorithm, name) for name in _TOLD} if isinstance(policy, QPolicy) else {}


def _made(about: Mapping[str, Any], spec: EnvSpec) -> AnyPolicy:
    """A policy as a file describes it, with parameters of its own."""
    network = updated(NetworkConfig(), about["network"])
    if about.get("algo", "ppo") == "ppo":
        return Policy(spec, network)
    return QPolicy(spec, network, updated(DQNConfig(), about["algorithm"]))


def _meant_otherwise(mine: AnyPolicy, theirs: AnyPolicy) -> list[str]:
    """Settings by which parameters of equal shapes mean something else."""
    if isinstance(mine, ScoringPolicy) and isinstance(theirs, ScoringPolicy):
        names = ("state", "action", "actions")
        told = [(p.about.state, p.about.action, p.about.info.actions) for p in (mine, theirs)]
        return [f"{name} features" for name, a, b in zip(names, *told, strict=True) if a != b]
    names = ("value_distribution", "v_min", "v_max")
    a, b = _algorithm(mine), _algorithm(theirs)
    if not a or a[names[0]] == b[names[0]] != "categorical":
        return []
    return [f"algorithm.{name}" for name in names if a[name] != b[name]]
