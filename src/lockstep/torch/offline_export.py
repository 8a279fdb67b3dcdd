"""A policy as one file with its preprocessing inside, for use without Lockstep: ONNX, or torch's own `.pt2`.

A file appears only once it was tried: on rows of the log as they were logged, it has to score as the policy does on the
same rows as they were prepared, which is what the policy was trained on.

Shapes: n rows, F raw features of a state, A named actions.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError, RunError
from lockstep.torch.candidate_network import CandidateNetwork
from lockstep.torch.onnx_model import METADATA, run_onnx, to_onnx
from lockstep.torch.scoring import ScoringPolicy, save_scoring
from lockstep.torch.scoring_program import traced

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
EXTRA_FILE = f"{METADATA}.json"
"""Where a `.pt2` file says what it is: an extra file of this name, JSON."""
LARGEST_DIFFERENCE = 1e-4
"""Relative to the mean size of the best scores; float32 in another order differs by 1e-6."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written and tried."""

    path: Path
    rows: int
    """Of the log, that it scored as the policy does."""
    difference: float
    """The largest, relative to the mean size of the best scores."""
    same_choice: int | None
    """Rows in which it chooses the same action; None where each row tried one candidate."""

    def __str__(self) -> str:
        choice = "" if self.same_choice is None else f", the same action in {self.same_choice}"
        return f"{self.path}: compared in {self.rows} rows, largest relative difference {self.difference:.1e}{choice}"


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


def hand_over(policy: ScoringPolicy, dataset: Dataset, folder: Path) -> list[str]:
    """Write a finished policy into a folder: `policy.safetensors`, `policy.pt2`, and `policy.onnx` if it can be.

    Returns:
        Lines for the user: what was written, how it was compared, what is missing for ONNX.
    """
    _check_data(policy, dataset)
    program = traced(policy)
    save_scoring(folder / "policy.safetensors", policy)
    told = [str(folder / "policy.safetensors")]
    for to, suffix in SUFFIXES.items():
        try:
            told.append(str(_export(policy, program, dataset, folder / f"policy{suffix}", to)))
        except ConfigError as missing:
            told.append(f"{folder / f'policy{suffix}'} was not written: {missing}")
    return told


def _export(policy: ScoringPolicy, program: ExportedProgram, dataset: Dataset, path: Path, to: Format) -> Exported:
    about, beside = json.dumps(_about(policy)), path.with_name(f".{path.name}")
    content = to_onnx(program, policy.info.actions, about) if to == "onnx" else _serialized(program, about)
    run = run_onnx if to == "onnx" else _run_program
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        tried = _compared(policy, dataset, path, partial(run, beside))
        beside.replace(path)
    except OSError as error:
        raise RunError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return tried


def _about(policy: ScoringPolicy) -> dict[str, Any]:
    """What a user of the file has to know; the order of names is that of columns."""
    about, info = policy.about, policy.info
    told: dict[str, Any] = {
        "format": _FORMAT,
        "kind": info.kind,
        "state_features": info.state_features,
        "policy": about.algorithm.policy,
        "temperature": about.algorithm.temperature,
        "algo": about.algo,
        "data_digest": info.digest,
        "versions": {"lockstep": version("lockstep-rl"), "torch": str(torch.__version__)},
        "normalization": {"state": about.state.to_dict()["features"]},
    }
    if about.action is None:
        return told | {"actions": info.actions}
    told["normalization"]["action"] = about.action.to_dict()["features"]
    return told | {"action_features": info.action_features, "candidates": info.candidates}


def _check_data(policy: ScoringPolicy, dataset: Dataset) -> None:
    """Refuse data whose prepared rows are not what the policy sees of them."""
    if (dataset.state_features, dataset.action_features) != (policy.about.state, policy.about.action):
        raise ConfigError(
            f"{dataset.path} was prepared with other features than the policy was trained with, so the exported file "
            "cannot be compared on it; give the data of the run, or prepare this with --like it"
        )


def _compared(
    policy: ScoringPolicy,
    dataset: Dataset,
    path: Path,
    run: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]],
) -> Exported:
    """Scores of raw rows by the file, and of the same rows, prepared, by the policy."""
    raw = dataset.check_rows()
    rows, wanted = raw["row"], _scores(policy, dataset, raw["row"])
    inputs = _inputs("state", raw["state_value"])
    if wanted.ndim == 1:
        inputs |= _inputs("action", raw["action_value"]) | {"state_of_candidate": np.arange(len(rows))}
    found = run(inputs)["scores"]
    best = wanted if wanted.ndim == 1 else wanted.max(-1)
    size = float(np.abs(best).mean()) or 1.0
    # Where an action is left out its score is -1e9: relative to itself, then.
    difference = float((np.abs(found - wanted) / np.maximum(np.abs(wanted), size)).max())
    if not difference <= LARGEST_DIFFERENCE:
        row = rows[np.nanargmax(np.abs(found - wanted).reshape(len(rows), -1).max(-1))] if len(rows) else 0
        raise RunError(
            f"{path} was not written: it would score row {row} of {dataset.path} differently than the policy, by "
            f"{difference:.1e} of a score (up to {LARGEST_DIFFERENCE:g} is rounding); verify the data by "
            "Dataset.open(path, verify=True), or report this"
        )
    same = None if wanted.ndim == 1 else int((found.argmax(-1) == wanted.argmax(-1)).sum())
    return Exported(path, len(rows), difference, same)


def _scores(policy: ScoringPolicy, dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """By the policy, of prepared rows: [n, A], or of the logged action [n]."""
    device = next(policy.network.parameters()).device

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(dataset.column(name)[rows]).to(device)

    with torch.inference_mode():
        if isinstance(policy.network, CandidateNetwork):
            scores = policy.network(column("state"), column("action"), torch.arange(len(rows), device=device))
        else:
            scores = policy.network(column("state"))
    return scores.float().cpu().numpy()


def _inputs(of: str, value: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Raw features as a user of the file gives them: 0 where absent, and which are present."""
    present = ~np.isnan(value)
    return {f"{of}_value": np.where(present, value, 0.0), f"{of}_presence": present}


def _serialized(program: ExportedProgram, about: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about its own parts
        torch.export.save(program, file, extra_files={EXTRA_FILE: about})
    return file.getvalue()


def _run_program(path: Path, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = torch.export.load(path).module()
        outputs: dict[str, torch.Tensor] = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}
