"""Minari data sets as logs."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.files import is_minari
from lockstep.data.logs.frame import RawRows
from lockstep.data.logs.maps import Maps, SourceRows
from lockstep.data.logs.schema import LogSchema
from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError

_MOST_ROWS, _CELLS = 100_000, 1 << 23


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a Minari data set."""
    if not is_minari(path):
        return path.stat().st_size
    return sum(file.stat().st_size for file in root_of(path).rglob("*") if file.is_file())


def root_of(path: Path) -> Path:
    """The folder of a Minari data set that `path` names: its folder, or `minari:NAME`."""
    return path if path.is_dir() else Path(_minari(path, "minari.storage").get_dataset_path(_name(path)))


def read_minari(
    path: Path, file: int, schema: LogSchema, advance: Callable[[int], None], *, several: bool = False
) -> Iterator[RawRows]:
    """All steps of a data set; `mdp_id` is the number of the episode; `several` data sets have their names before it.

    Flattened observations have the ids 0, 1, ...; the ids of a continuous action continue from there.

    Raises:
        ConfigError: it cannot be read, or its spaces are not supported.
    """
    if schema.overrides or schema.left_out:
        raise ConfigError(f"--columns says what columns are called, and {path} is a Minari dataset, which has none")
    data, size = _opened(path), size_of(path)
    observation, action = data.observation_space, data.action_space
    width = _numbers_of(observation, "observations", path)
    if type(action).__name__ not in ("Discrete", "Box"):
        raise ConfigError(f"{path}: actions are {action}; a log takes one choice (Discrete) or numbers (Box)")
    rows = max(1, min(_MOST_ROWS, _CELLS // (2 * width + 1)))
    total = max(int(data.total_steps), 1)
    context, held, steps, done = (action, schema, f"{data.id}/" if several else ""), list[Any](), 0, 0
    for episode in data.iterate_episodes():
        held.append(episode)
        steps += len(episode.rewards)
        if steps >= rows:
            yield _found(held, SourceRows(path, np.arange(done + 1, done + steps + 1)), file, context)
            held, steps, done = [], 0, done + steps
            advance(size * done // total)
    if steps:
        yield _found(held, SourceRows(path, np.arange(done + 1, done + steps + 1)), file, context)


def _found(episodes: list[Any], where: SourceRows, file: int, context: tuple[Any, LogSchema, str]) -> RawRows:
    action, schema, prefix_of_id = context
    lengths = [len(episode.rewards) for episode in episodes]
    found = RawRows(where, file)
    observations = [np.asarray(episode.observations, np.float64) for episode in episodes]
    observations = [one.reshape(len(one), -1) for one in observations]
    reward = np.concatenate([np.asarray(episode.rewards, np.float64) for episode in episodes])
    found.scalars = {
        "mdp_id": pl.Series(np.repeat([f"{prefix_of_id}{episode.id}" for episode in episodes], lengths)),
        "sequence_number": pl.Series(np.concatenate([np.arange(n) for n in lengths])),
        "reward": pl.Series(_finite(reward[:, None], where, "reward")[:, 0]),
        "terminated": pl.Series(np.concatenate([np.asarray(e.terminations, np.bool_) for e in episodes])),
        "truncated": pl.Series(np.concatenate([np.asarray(e.truncations, np.bool_) for e in episodes])),
    }
    for prefix, part in (("state", slice(None, -1)), ("next_state", slice(1, None))):
        found.maps[prefix] = _maps(np.concatenate([one[part] for one in observations]), 0, where, prefix)
    taken = np.concatenate([np.asarray(episode.actions) for episode in episodes])
    if type(action).__name__ == "Box":
        numbers = taken.reshape(len(reward), -1).astype(np.float64)
        found.actions["action"] = _maps(numbers, len(found.maps["state"].ids), where, "action")
    else:
        index = taken.reshape(-1).astype(np.int64) - int(action.start)
        wrong = np.flatnonzero((index < 0) | (index >= action.n))
        names = schema.names.by_index or tuple(str(i) for i in range(int(action.n)))
        if len(names) != action.n:
            raise ConfigError(f"{where.path} has {action.n} actions, and actions={','.join(names)} are {len(names)}")
        if len(wrong):
            where.refuse(int(wrong[0]), f"action {taken.reshape(-1)[wrong[0]]} is not in {action}")
        named = pl.Series(np.array(names, dtype=object)[index].tolist(), dtype=pl.String)
        found.actions["action"] = schema.names.check(named, where, "action")
    return found


def _maps(values: NDArray[np.float64], first: int, where: SourceRows, name: str) -> Maps:
    ids = tuple(str(first + k) for k in range(values.shape[1]))
    return Maps(ids, _finite(values, where, name), np.ones(len(values), np.bool_))


def _finite(values: NDArray[np.float64], where: SourceRows, name: str) -> NDArray[np.float64]:
    if (bad := ~np.isfinite(values)).any():
        row, k = (int(i) for i in np.argwhere(bad)[0])
        where.refuse(row, f"{name}, number {k}, is {values[row, k]}")
    return values


def _numbers_of(space: Any, what: str, path: Path) -> int:
    if type(space).__name__ not in ("Box", "MultiBinary", "Discrete"):
        raise ConfigError(f"{path}: {what} are {space}; a log takes numbers (Box)")
    shape: tuple[int, ...] = space.shape or ()
    return math.prod(shape)


def _opened(path: Path) -> Any:
    minari = _minari(path, "minari")
    if not (root := root_of(path)).exists():
        raise ConfigError(f"{path} is not there ({root}); download it: minari download {_name(path)}")
    try:
        return minari.MinariDataset(path / "data") if path.is_dir() else minari.load_dataset(_name(path))
    except ImportError as error:
        raise ConfigError(f"{path} needs another package: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not a Minari dataset that can be read here ({reason})") from error


def _minari(path: Path, module: str) -> Any:
    return import_optional(module, "minari", f"{path} is a Minari dataset, which")


def _name(path: Path) -> str:
    return str(path).removeprefix("minari:")
