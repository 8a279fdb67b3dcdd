"""Small prepared data for tests of what reads it: made of a log that is drawn from a seed, written by `DatasetWriter`.

    path = discrete(tmp_path / "data", rows=1000)            # a Dataset: Dataset.open(path)
    path = parametric(tmp_path / "data", rows=1000)
    path = continuous(tmp_path / "data", rows=1000)

States are normal numbers that are their own normalization. The reward says which action was good: 1 where the action
is the one that `best` names, minus a little noise, so that something can be learned. Any column can be given instead.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.dataset import DatasetInfo
from lockstep.data.dataset_writer import DatasetWriter
from lockstep.data.features import Feature, Features
from lockstep.world import stream


def as_it_is(names) -> Features:
    """Features that are their own normalization."""
    return Features({name: Feature(type="do_not_preprocess") for name in names})


def trajectories(rows: int, seed: int, longest: int = 12) -> dict[str, np.ndarray]:
    """Columns of who follows whom: trajectories of 1 to `longest` rows, every third of which is cut, not terminal."""
    draws = stream(seed, "trajectories")
    lengths = draws.integers(1, longest + 1, size=rows)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), rows)) + 1]
    lengths[-1] -= lengths.sum() - rows
    number = np.repeat(np.arange(len(lengths)), lengths)
    sequence = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = np.append(number[1:] != number[:-1], True)
    return {
        "trajectory": number.astype(np.int64),
        "sequence_number": sequence.astype(np.int64),
        "continues": (~last).astype(np.uint8),
        "terminal": (last & (number % 3 != 2)).astype(np.uint8),
        "key": draws.integers(2**64, size=(rows, 2), dtype=np.uint64),
    }


def best(state: np.ndarray, actions: int) -> np.ndarray:
    """The action [n] that is rewarded in a state [n, S]."""
    return (np.abs(state[:, 0] * 3).astype(np.int64) + (state[:, -1] > 0)) % actions


def after(column: np.ndarray, continues: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Of each row what the next one holds; `end` where the trajectory does."""
    shifted = np.concatenate([column[1:], column[:1]])
    return np.where(continues.reshape(-1, *[1] * (column.ndim - 1)) != 0, shifted, end).astype(column.dtype)


def _shared(rows: int, seed: int, state_size: int, metrics: int) -> tuple[np.random.Generator, dict[str, np.ndarray]]:
    """Columns of both kinds but for what is about actions, without the reward."""
    draws, columns = stream(seed, "rows"), trajectories(rows, seed)
    state = draws.normal(size=(rows, state_size)).astype(np.float32)
    end = np.where(columns["terminal"][:, None] != 0, 0, draws.normal(size=state.shape)).astype(np.float32)
    columns |= {
        "state": state,
        "next_state": after(state, columns["continues"], end),
        "metrics": draws.normal(size=(rows, metrics)).astype(np.float32),
        "time_diff": draws.integers(1, 4, size=rows).astype(np.float32),
    }
    return draws, columns


def _reward(good: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    return (good + 0.1 * draws.normal(size=len(good))).astype(np.float32)


def discrete_columns(
    rows: int = 200, *, seed: int = 0, state_size: int = 4, actions: int = 3, metrics: int = 1
) -> dict[str, np.ndarray]:
    """All columns of discrete data. Now and then an action is not possible; the logged policy takes any that is."""
    draws, columns = _shared(rows, seed, state_size, metrics)
    mask = (draws.random((rows, actions)) < 0.8).astype(np.uint8)
    action = draws.integers(actions, size=rows).astype(np.int32)
    mask[np.arange(rows), action] = 1
    ended = columns["continues"] == 0
    known = np.where(columns["terminal"] != 0, -1, draws.integers(actions, size=rows)).astype(np.int32)
    known[ended & (np.arange(rows) % 2 == 0)] = -1  # a log need not tell what followed where it was cut
    end_mask = np.where(columns["terminal"][:, None] != 0, 0, 1).astype(np.uint8) * np.ones((1, actions), np.uint8)
    return columns | {
        "action": action,
        "next_action": after(action, columns["continues"], known),
        "possible_actions": mask,
        "possible_next_actions": after(mask, columns["continues"], end_mask),
        "reward": _reward(action == best(columns["state"], actions), draws),
        "propensity": (1 / mask.sum(1)).astype(np.float32),
    }


def parametric_columns(
    rows: int = 200, *, seed: int = 0, state_size: int = 4, action_size: int = 2, most: int = 4, metrics: int = 1
) -> dict[str, np.ndarray]:
    """All columns of parametric data, with 1 to `most` candidates in a row; the larger first feature is the better."""
    draws, columns = _shared(rows, seed, state_size, metrics)
    count = draws.integers(1, most + 1, size=rows)
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    values = draws.normal(size=(offsets[-1], action_size)).astype(np.float32)
    index = (draws.random(rows) * count).astype(np.int32)
    action = values[offsets[:-1] + index]
    goes_on, cut = columns["continues"] != 0, (columns["continues"] == 0) & (columns["terminal"] == 0)
    lists = [values[offsets[i] : offsets[i + 1]] for i in range(rows)]
    nothing = np.zeros((0, action_size), np.float32)
    following = [lists[i + 1] if goes_on[i] else lists[i] if cut[i] else nothing for i in range(rows)]
    has_next = goes_on | (cut & (np.arange(rows) % 2 == 1))
    end = np.where(has_next[:, None], action, 0)
    good = [int(index[i] == lists[i][:, 0].argmax()) for i in range(rows)]
    return columns | {
        "action": action,
        "next_action": after(action, columns["continues"], end),
        "has_next_action": has_next.astype(np.uint8),
        "action_index": index,
        "possible_actions": values,
        "possible_actions_offsets": offsets,
        "possible_next_actions": np.concatenate([nothing, *following]),
        "possible_next_actions_offsets": np.concatenate([[0], np.cumsum([len(x) for x in following])]).astype(np.int64),
        "reward": _reward(np.array(good), draws),
        "propensity": (1 / count).astype(np.float32),
    }


def continuous_columns(
    rows: int = 200, *, seed: int = 0, state_size: int = 4, action_size: int = 2, metrics: int = 1
) -> dict[str, np.ndarray]:
    """All columns of continuous data: uniform actions, rewarded for being near the first numbers of the state."""
    draws, columns = _shared(rows, seed, state_size, metrics)
    action = draws.uniform(-1, 1, size=(rows, action_size)).astype(np.float32)
    ended, cut = columns["continues"] == 0, (columns["continues"] == 0) & (columns["terminal"] == 0)
    has_next = ~ended | (cut & (np.arange(rows) % 2 == 1))
    wanted = np.tanh(columns["state"][:, :action_size])
    good = 1 - np.abs(action - wanted[:, : action.shape[1]]).mean(1)
    return columns | {
        "action": action,
        "next_action": after(action, columns["continues"], np.where(has_next[:, None], action, 0)),
        "has_next_action": has_next.astype(np.uint8),
        "reward": _reward(good, draws),
        "log_density": np.full(rows, action_size * np.log(0.5)),
    }


def write(path: Path, columns: Mapping[str, np.ndarray], *, part_rows: int = 1 << 22, **said: Any) -> Path:
    """Prepared data of these columns; `said` goes into its info."""
    kind = "parametric" if "action_index" in columns else "continuous" if "log_density" in columns else "discrete"
    numeric = kind != "discrete"
    rows, state_size = columns["state"].shape
    width = columns["action" if numeric else "possible_actions"].shape[1]
    propensity = columns["log_density" if kind == "continuous" else "propensity"]
    raw = {"row": np.arange(min(rows, 1000)), "state_value": columns["state"][:1000].astype(np.float64)}
    if numeric:
        raw["action_value"] = columns["action"][:1000].astype(np.float64)
    keys = columns["key"].sum(0, dtype=np.uint64).tobytes().hex()
    about = {
        "num_rows": rows,
        "num_trajectories": int(columns["trajectory"][-1]) + 1,
        "state_features": tuple(str(i) for i in range(state_size)),
        "state_size": state_size,
        "metrics": tuple(f"metric {i}" for i in range(columns["metrics"].shape[1])),
        "has_propensity": bool((propensity == propensity).any()),
        "has_next_action": True,
        "has_possible_actions": kind != "continuous",
        "reward_mean": float(columns["reward"].astype(np.float64).mean()),
        "digest": f"{keys}{columns['state'].astype(np.float64).sum():.6f}",
        "keys_digest": keys,
    }
    names = tuple(str(100 + i) for i in range(width)) if numeric else tuple(["left", "right", "up", "down"][:width])
    about |= {"action_features": names, "action_size": width} if numeric else {"actions": names}
    info = DatasetInfo(kind=kind, **(about | said))
    with DatasetWriter(path, info.kind, info.sizes, part_rows=part_rows) as writer:
        writer.append(columns)
        bounds = Feature(type="continuous_action", min_value=-1.0, max_value=1.0)
        of_action = Features(dict.fromkeys(names, bounds)) if kind == "continuous" else as_it_is(names)
        features = as_it_is(info.state_features), of_action if numeric else None
        writer.finish(info, *features, check=raw, about={"sources": ["made for a test"]})
    return path


def discrete(path: Path, rows: int = 200, *, part_rows: int = 1 << 22, **shape: Any) -> Path:
    """Prepared discrete data at `path`; `shape` as of `discrete_columns`."""
    return write(path, discrete_columns(rows, **shape), part_rows=part_rows)


def parametric(path: Path, rows: int = 200, *, part_rows: int = 1 << 22, **shape: Any) -> Path:
    """Prepared parametric data at `path`; `shape` as of `parametric_columns`."""
    return write(path, parametric_columns(rows, **shape), part_rows=part_rows)


def continuous(path: Path, rows: int = 200, *, part_rows: int = 1 << 22, **shape: Any) -> Path:
    """Prepared continuous data at `path`; `shape` as of `continuous_columns`."""
    return write(path, continuous_columns(rows, **shape), part_rows=part_rows)
