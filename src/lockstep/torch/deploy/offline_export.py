"""A policy as one file with its preprocessing inside, for use without Lockstep: ONNX, or torch's own `.pt2`.

A file appears only once it was tried: on rows of the log as they were logged, it has to score as the policy does on the
same rows as they were prepared, which is what the policy was trained on.

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
from lockstep.torch.deploy.scoring_program import traced
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.policy import ScoringPolicy, save_scoring


def export(policy: ScoringPolicy, dataset: Dataset, path: Path, to: Format) -> Exported:
    """Write a policy as a file, whole and tried, or not at all.

    Args:
        policy: on any device; it stays as it is.
        dataset: prepared with the policy's features; gives rows to try the file with.
        path: where to.
        to: which format.

    Raises:
        ConfigError: the data was prepared with other features, or a package is missing.
        RunError: the file scores differently than the policy, or cannot be written.
    """
    _check_data(policy, dataset)
    return _export(policy, traced(policy), dataset, path, to)


def export_policy(policy: ScoringPolicy, dataset: Dataset, folder: Path) -> list[str]:
    """Write a finished policy into a folder: `policy.safetensors`, `policy.pt2`, and `policy.onnx` if it can be.

    Returns:
        Lines for the user: what was written, how it was compared, what is missing for ONNX.
    """
    _check_data(policy, dataset)
    program = traced(policy)
    save_scoring(folder / "policy.safetensors", policy)
    metadata = [str(folder / "policy.safetensors")]
    for to, suffix in SUFFIXES.items():
        try:
            metadata.append(str(_export(policy, program, dataset, folder / f"policy{suffix}", to)))
        except ConfigError as missing:
            metadata.append(f"{folder / f'policy{suffix}'} was not written: {missing}")
    return metadata


def _export(policy: ScoringPolicy, program: Program, dataset: Dataset, path: Path, to: Format) -> Exported:
    def compare(run: Callable[[Arrays], Arrays]) -> Exported:
        return _compared(policy, dataset, path, run)

    return write_program(program, path, to, _about(policy), compare, policy.info.actions)


def _about(policy: ScoringPolicy) -> dict[str, Any]:
    """What a user of the file has to know; the order of names is that of columns."""
    about, info = policy.policy_spec, policy.info
    metadata: dict[str, Any] = {
        "kind": info.kind,
        "state_features": info.state_features,
        "policy": about.algorithm.policy,
        "temperature": about.algorithm.temperature,
        "algo": about.algo,
        "data_digest": info.digest,
        "normalization": {"state": features_to_dict(about.state)["features"]},
    }
    if about.action is None:
        return metadata | {"actions": info.actions, "needs_possible_actions": info.restricts_actions}
    metadata["normalization"]["action"] = features_to_dict(about.action)["features"]
    return metadata | {"action_features": info.action_features, "candidates": info.candidates}


def _check_data(policy: ScoringPolicy, dataset: Dataset) -> None:
    """Refuse data whose prepared rows are not what the policy sees of them."""
    mine = [None if some is None else some.digest for some in (policy.policy_spec.state, policy.policy_spec.action)]
    if mine != [None if some is None else some.digest for some in (dataset.state_features, dataset.action_features)]:
        raise ConfigError(
            f"{dataset.path} was prepared with other features than the policy was trained with, so the exported file "
            "cannot be compared on it; give the data of the run, or prepare the log with --like DATA"
        )


def _compared(policy: ScoringPolicy, dataset: Dataset, path: Path, run: Callable[[Arrays], Arrays]) -> Exported:
    """Scores of raw rows by the file, and of the same rows, prepared, by the policy."""
    raw = dataset.check_rows()
    rows, inputs = raw["row"], _inputs("state", raw["state_value"])
    if policy.action is not None:
        inputs |= _inputs("action", raw["action_value"]) | {"state_of_candidate": np.arange(len(rows))}
    elif policy.info.restricts_actions:
        inputs["possible_actions"] = dataset.column("possible_actions")[rows] != 0
    wanted = _scores(policy, dataset, rows, inputs.get("possible_actions"))
    metadata = run(inputs)
    found = metadata["scores"]
    apart, worst = difference(found, wanted)
    if apart > LARGEST_DIFFERENCE:
        raise RunError(
            f"{path} was not written: it would score row {rows[worst]} of {dataset.path} differently than the policy, "
            f"by {apart:.1e} of a score (up to {LARGEST_DIFFERENCE:g} is rounding); verify the data by "
            "Dataset.open(path, verify=True), or report this"
        )
    same = None if wanted.ndim == 1 else int((metadata["action"] == wanted.argmax(-1)).sum())
    return Exported(path, len(rows), apart, same)


def _scores(
    policy: ScoringPolicy, dataset: Dataset, rows: NDArray[np.int64], possible: NDArray[np.bool_] | None
) -> NDArray[np.float32]:
    """By the policy, of prepared rows: [n, A] among the `possible` actions (None: all), or of the logged action [n]."""
    device = next(policy.network.parameters()).device

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(dataset.column(name)[rows]).to(device)

    with torch.inference_mode():
        if isinstance(policy.network, CandidateNetwork):
            scores = policy.network(column("state"), column("action"), torch.arange(len(rows), device=device))
        else:
            every = np.ones((len(rows), len(policy.info.actions)), np.bool_)
            allowed = torch.from_numpy(every if possible is None else possible).to(device)
            scores = policy.scores(column("state"), allowed)
    return scores.float().cpu().numpy()


def _inputs(of: str, value: NDArray[np.float64]) -> Arrays:
    """Raw features as a user of the file gives them: 0 where absent, and which are present."""
    present = ~np.isnan(value)
    return {f"{of}_value": np.where(present, value, 0.0), f"{of}_presence": present}
