"""Prepared data: a directory of memory-mapped columns, described by `dataset.json`.

`dataset.json` is written last: its presence means that the rest is complete. Loading runs no code of the directory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lockstep.data.columns import Column, Index, Ragged, RaggedColumn, RowLocations, columns, offsets_of, ragged_names
from lockstep.data.dataset_files import (
    ACTION_FEATURES,
    CHECK,
    DESCRIPTION,
    STATE_FEATURES,
    check_file,
    column_file,
    map_array,
    quick_to_verify,
    read_description,
)
from lockstep.data.feature_file import load_features
from lockstep.data.info import DatasetInfo
from lockstep.data.rows import Float, Rows
from lockstep.errors import ConfigError


class Dataset:
    """Prepared data, open for reading. Columns are memory-mapped, so that opening reads nothing.

    Attributes:
        path: the directory.
        info: kind, counts and names.
        state_features: the normalization of states.
        action_features: the normalization of parametric and continuous actions; None for discrete data.
        propensity_column: the column of `Rows.propensity`.
        features_digest: of both normalizations.
        about: sources, options and versions that it was prepared from.
        row_bytes: bytes on the disk per row.
    """

    def __init__(self, path: Path, description: Mapping[str, Any]) -> None:
        self.path, self.about = path, cast(dict[str, Any], description["about"])
        self.info = _info(path, description)
        self._files: dict[str, dict[str, Any]] = description["files"]
        self._part_rows, self._parts = int(description["part_rows"]), list[int](description["parts"])
        self.state_features = load_features(path / STATE_FEATURES)
        self.action_features = None if self.info.kind == "discrete" else load_features(path / ACTION_FEATURES)
        self.propensity_column = "log_density" if self.info.kind == "continuous" else "propensity"
        self.features_digest = self.state_features.digest + (
            self.action_features.digest if self.action_features else ""
        )
        self.row_bytes = sum(file["bytes"] for file in self._files.values()) // max(self.info.num_rows, 1)
        self._columns: dict[str, Column | RaggedColumn] = {}
        ragged = ragged_names(self.info.kind)
        for name in columns(self.info.kind, self.info.sizes):
            if name not in {offsets_of(of) for of in ragged}:
                parts = self._map_parts(name)
                self._columns[name] = (
                    RaggedColumn(parts, self._map_parts(offsets_of(name)), self._part_rows)
                    if name in ragged
                    else Column(parts, self._part_rows)
                )

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        verify: bool | Literal["small"] = False,
        named: str = "data",
        like: str | None = None,
    ) -> "Dataset":
        """Open prepared data.

        Args:
            path: their directory.
            verify: read everything once and compare checksums; "small": only if the data are at most `MAX_VERIFIED`.
            named: the setting or flag that named the directory, for errors.
            like: data that these must be prepared like, for errors.

        Raises:
            ConfigError: it is not prepared data, of another format version, damaged, or its normalization was edited.
        """
        path = Path(path)
        description = read_description(path, named, like)
        compare = quick_to_verify(path) if verify == "small" else verify
        for name, file in description["files"].items():
            check_file(path, name, file, verify=compare)
        return cls(path, description)

    def __len__(self) -> int:
        return self.info.num_rows

    def column(self, name: str) -> Column:
        """A column of plain rows."""
        found = self._columns[name]
        assert isinstance(found, Column), f"{name} is ragged"
        return found

    def ragged(self, name: str) -> RaggedColumn:
        """A column of lists: candidates of parametric data."""
        found = self._columns[name]
        assert isinstance(found, RaggedColumn), f"{name} is not ragged"
        return found

    def check_rows(self) -> dict[str, NDArray[Any]]:
        """Raw values of some rows: `row` [n], `state_value` [n, F] and `action_value`, NaN where absent."""
        with np.load(self.path / CHECK, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def keys_between(self, low: int, high: int) -> NDArray[np.uint64]:
        """Keys `[m, 2]` whose first word lies in `[low, high)`, read in bounded memory; unordered."""
        keys, found = self.column("key"), list[NDArray[np.uint64]]()
        for start in range(0, len(self), 1 << 20):
            part = keys[start : start + (1 << 20)]
            first = part[:, 0]
            found.append(part[(first >= np.uint64(low)) & (first <= np.uint64(high - 1))])
        return np.concatenate(found)

    def rows(self, index: Index, *, n_step: int = 1, gamma: float = 1.0, next_columns: bool = True) -> Rows:
        """Gather rows [N], in the order of `index`.

        Args:
            index: row numbers in `[0, num_rows)`; may repeat.
            n_step: rewards summed, at most, before `next_state`; fewer where the trajectory ends.
            gamma: discount per step within the window.
            next_columns: whether to gather next states and actions; otherwise those arrays hold no rows.
        """
        locations = self._locate(index)
        last, steps, reward, metrics = self._window(index, locations, n_step, gamma)
        ends = locations if last is index else self._locate(last)
        following = ends if next_columns else self._locate(index[:0])
        action = self._gathered("action", locations)
        discrete = self.info.kind == "discrete"
        action = action.astype(np.int64) if discrete else action
        next_action = self._gathered("next_action", following)
        known = next_action >= 0 if discrete else self._gathered("has_next_action", following)
        return Rows(
            index=index,
            state=self._gathered("state", locations),
            action=action,
            action_index=action if discrete else self._action_index(locations),
            reward=reward,
            metrics=metrics,
            next_state=self._gathered("next_state", following),
            next_action=np.maximum(next_action, 0).astype(np.int64) if discrete else next_action,
            has_next_action=known.astype(np.float32),
            possible_actions=self._possible("possible_actions", locations),
            possible_next_actions=self._possible("possible_next_actions", following),
            not_terminal=1 - self._gathered("terminal", ends).astype(np.float32),
            steps=steps,
            time_diff=self._gathered("time_diff", locations),
            propensity=self._gathered(self.propensity_column, locations),
            weight=np.ones(len(index), np.float32),
        )

    def _locate(self, index: Index) -> RowLocations:
        return RowLocations(index, self._part_rows, self.info.num_rows)

    def _gathered(self, name: str, locations: RowLocations) -> NDArray[Any]:
        return self.column(name).gather(locations)

    def _action_index(self, locations: RowLocations) -> Index:
        if self.info.kind == "continuous":
            return np.zeros(locations.count, np.int64)
        return self._gathered("action_index", locations).astype(np.int64)

    def _possible(self, name: str, locations: RowLocations) -> Float | Ragged:
        if self.info.kind == "continuous":
            return np.zeros((locations.count, 0), np.float32)
        column = self._columns[name]
        found = column.gather(locations)
        return found if isinstance(found, Ragged) else found.astype(np.float32)

    def _window(
        self, index: Index, locations: RowLocations, n_step: int, gamma: float
    ) -> tuple[Index, Float, Float, Float]:
        """Last row and length of each window, and its discounted sums of reward and metrics."""
        reward, metrics = self._gathered("reward", locations), self._gathered("metrics", locations)
        if n_step == 1:
            return index, np.ones(len(index), np.float32), reward, metrics
        last, steps, here = index.copy(), np.ones(len(index), np.float32), locations
        total, totals, alive = reward.astype(np.float64), metrics.astype(np.float64), np.ones(len(index), np.bool_)
        for k in range(1, n_step):
            alive &= self._gathered("continues", here) != 0
            if not alive.any():
                break
            last += alive
            steps += alive
            here = self._locate(last)
            total += np.where(alive, gamma**k * self._gathered("reward", here).astype(np.float64), 0.0)
            totals += np.where(alive[:, None], gamma**k * self._gathered("metrics", here).astype(np.float64), 0.0)
        return last, steps, total.astype(np.float32), totals.astype(np.float32)

    def _map_parts(self, name: str) -> list[NDArray[Any]]:
        """The parts of a column, checked against `dataset.json`."""
        dtype, shape = columns(self.info.kind, self.info.sizes)[name]
        extra = name in {offsets_of(of) for of in ragged_names(self.info.kind)}
        found: list[NDArray[Any]] = []
        for number, count in enumerate(self._parts):
            file = self.path / column_file(number, name)
            part = map_array(file)
            wanted = len(part) if name in ragged_names(self.info.kind) else count + extra
            if (part.dtype.str, part.shape) != (dtype, (wanted, *shape)):
                raise ConfigError(
                    f"{file} holds {part.dtype.str} {list(part.shape)} instead of {dtype} {[wanted, *shape]}; "
                    "prepare the data again"
                )
            found.append(part)
        return found


def _info(path: Path, description: Mapping[str, Any]) -> DatasetInfo:
    try:
        info = DatasetInfo.from_dict(description["info"])
    except ValueError as error:
        raise ConfigError(f"{path / DESCRIPTION} is damaged ({error}); prepare the data again") from None
    if sum(description["parts"]) != info.num_rows or not description["parts"]:
        raise ConfigError(f"{path / DESCRIPTION} is damaged (its counts of rows differ); prepare the data again")
    return info
