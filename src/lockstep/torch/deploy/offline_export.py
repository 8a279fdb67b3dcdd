"""Export of a policy that was learned from a log, with its preprocessing included, to ONNX or `.pt2`.

Each file is verified before it is renamed to its final name: its scores of raw rows of the log must equal the policy's
scores of the same rows after preparation.

Shapes: n rows, F raw features of a state, A named actions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import features_to_dict
from lockstep.errors import ConfigError, RunError
from lockstep.torch.deploy.exported_file import (
    LARGEST_DIFFERENCE,
    SUFFIXES,
    Arrays,
    Exported,
    Format,
    difference,
    write_program,
)
from lockstep.torch.deploy.program import Program
from lockstep.torch.deploy.scoring_program import trace_policy
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.offline_policy import OfflinePolicy, save_offline_policy
from lockstep.torch.scoring.policy import ScoringPolicy


def export(policy: OfflinePolicy, dataset: Dataset, path: Path, to: Format) -> Exported:
    """Write a policy to a file, atomically, after comparing the file with the policy on rows of the data.

    Args:
        policy: on any device; not modified.
        dataset: prepared with the policy's features; its rows are used for the comparison.
        path: the file to write.
        to: the format.

    Raises:
        ConfigError: the data was prepared with other features, or a package is missing.
        RunError: the scores of the file and the policy differ, or the file cannot be written.
    """
    _check_data(policy, dataset)
    return _export(policy, trace_policy(policy), dataset, path, to)


def export_policy(policy: OfflinePolicy, dataset: Dataset, folder: Path) -> list[str]:
    """Write a policy to `policy.safetensors`, `policy.pt2` and, if the packages are installed, `policy.onnx`.

    Returns:
        One line for the user about each file.
    """
    _check_data(policy, dataset)
    program = trace_policy(policy)
    save_offline_policy(folder / "policy.safetensors", policy)
    lines = [str(folder / "policy.safetensors")]
    for to, suffix in SUFFIXES.items():
        try:
            lines.append(str(_export(policy, program, dataset, folder / f"policy{suffix}", to)))
        except ConfigError as missing:
            lines.append(f"{folder / f'policy{suffix}'} was not written: {missing}")
    return lines


def _export(policy: OfflinePolicy, program: Program, dataset: Dataset, path: Path, to: Format) -> Exported:
    def compare(run: Callable[[Arrays], Arrays]) -> Exported:
        return _compare(policy, dataset, path, run)

    return write_program(program, path, to, _metadata(policy), compare, policy.info.actions)


def _metadata(policy: OfflinePolicy) -> dict[str, Any]:
    """The metadata of the file. Features and actions are listed in the order of the inputs' and outputs' columns."""
    spec, info = policy.policy_spec, policy.info
    metadata: dict[str, Any] = {
        "kind": info.kind,
        "state_features": info.state_features,
        "policy": spec.algorithm.policy,
        "algo": spec.algo,
        "data_digest": info.digest,
        "normalization": {"state": features_to_dict(spec.state)["features"]},
    }
    if isinstance(policy, ScoringPolicy):
        metadata["temperature"] = policy.config.temperature
    if spec.action is None:
        return metadata | {"actions": info.actions, "needs_possible_actions": info.restricts_actions}
    metadata["normalization"]["action"] = features_to_dict(spec.action)["features"]
    return metadata | {"action_features": info.action_features, "candidates": info.candidates}


def _check_data(policy: OfflinePolicy, dataset: Dataset) -> None:
    spec = policy.policy_spec
    of_policy = [None if features is None else features.digest for features in (spec.state, spec.action)]
    features_of_data = (dataset.state_features, dataset.action_features)
    if of_policy != [None if features is None else features.digest for features in features_of_data]:
        raise ConfigError(
            f"{dataset.path} was prepared with other features than the policy was trained with, so the exported file "
            "cannot be compared on it; give the data of the run, or prepare the log with --like DATA"
        )


def _compare(policy: OfflinePolicy, dataset: Dataset, path: Path, run: Callable[[Arrays], Arrays]) -> Exported:
    raw = dataset.check_rows()
    rows, inputs = raw["row"], _inputs("state", raw["state_value"])
    if isinstance(policy, ActorPolicy):
        return _compare_actions(policy, dataset, path, run(inputs), rows)
    if policy.action is not None:
        inputs |= _inputs("action", raw["action_value"]) | {"state_of_candidate": np.arange(len(rows))}
    elif policy.info.restricts_actions:
        inputs["possible_actions"] = dataset.column("possible_actions")[rows] != 0
    expected = _scores(policy, dataset, rows, inputs.get("possible_actions"))
    outputs = run(inputs)
    largest, row = difference(outputs["scores"], expected)
    if largest > LARGEST_DIFFERENCE:
        raise RunError(
            f"{path} was not written: it would score row {rows[row]} of {dataset.path} differently than the policy, "
            f"by {largest:.1e} of a score (up to {LARGEST_DIFFERENCE:g} is rounding); verify the data by "
            "Dataset.open(path, verify=True), or report this"
        )
    same = None if expected.ndim == 1 else int((outputs["action"] == expected.argmax(-1)).sum())
    return Exported(path, len(rows), largest, same)


def _compare_actions(
    policy: ActorPolicy, dataset: Dataset, path: Path, outputs: Arrays, rows: NDArray[np.int64]
) -> Exported:
    """Compare continuous actions, relative to half the distance between their bounds."""
    half_range = policy.half_range.cpu().numpy()
    with torch.inference_mode():
        state = torch.from_numpy(dataset.column("state")[rows]).to(policy.half_range.device)
        expected = policy.unscaled(policy.act(state)).cpu().numpy()
    of_row = np.nan_to_num(np.abs(outputs["action"] - expected) / half_range, nan=np.inf).max(-1)
    largest, row = float(of_row.max()), int(of_row.argmax())
    if largest > LARGEST_DIFFERENCE:
        raise RunError(
            f"{path} was not written: in row {rows[row]} of {dataset.path} it would act differently than the policy, "
            f"by {largest:.1e} of half the range of an action (up to {LARGEST_DIFFERENCE:g} is rounding); verify the "
            "data by Dataset.open(path, verify=True), or report this"
        )
    return Exported(path, len(rows), largest, None)


def _scores(
    policy: ScoringPolicy, dataset: Dataset, rows: NDArray[np.int64], possible: NDArray[np.bool_] | None
) -> NDArray[np.float32]:
    """The policy's scores of prepared rows: of named actions [n, A], or of the logged candidate [n]."""
    device = next(policy.network.parameters()).device

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(dataset.column(name)[rows]).to(device)

    with torch.inference_mode():
        if isinstance(policy.network, CandidateNetwork):
            scores = policy.network(column("state"), column("action"), torch.arange(len(rows), device=device))
        else:
            if possible is None:
                possible = np.ones((len(rows), len(policy.info.actions)), np.bool_)
            allowed = torch.from_numpy(possible).to(device)
            scores = policy.scores(column("state"), allowed)
    return scores.float().cpu().numpy()


def _inputs(name: str, value: NDArray[np.float64]) -> Arrays:
    """Inputs of the file: values, 0 where a feature is absent, and which features are present."""
    present = ~np.isnan(value)
    return {f"{name}_value": np.where(present, value, 0.0), f"{name}_presence": present}
