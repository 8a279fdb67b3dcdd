"""Writing prepared data is atomic, and its bytes are independent of the chunks."""

import os
from pathlib import Path

import numpy as np
import pytest

import made_data
from lockstep import ConfigError
from lockstep.data.columns import offsets_of
from lockstep.data.dataset import Dataset, DatasetInfo
from lockstep.data.dataset_writer import DatasetWriter, check_output


def some(columns, start, stop):
    """Rows `start` to `stop` of all columns."""
    found = {}
    for name, column in columns.items():
        if offsets_of(name) in columns:
            offsets = columns[offsets_of(name)]
            found[name] = column[offsets[start] : offsets[stop]]
        elif name.endswith("_offsets"):
            found[name] = column[start : stop + 1] - column[start]
        else:
            found[name] = column[start:stop]
    return found


def contents(path):
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


@pytest.mark.parametrize("kind", ["discrete", "parametric"])
@pytest.mark.parametrize("step", [1, 7, 64, 150])
def test_bytes_are_independent_of_chunks(tmp_path, kind, step):
    columns = getattr(made_data, f"{kind}_columns")()
    whole = Dataset.open(made_data.write(tmp_path / "whole", columns, part_rows=64))
    info = whole.info
    with DatasetWriter(tmp_path / "pieces", kind, info.sizes, part_rows=64) as writer:
        for start in range(0, 200, step):
            writer.append(some(columns, start, min(start + step, 200)))
        writer.finish(info, whole.state_features, whole.action_features, check=whole.check_rows(), about=whole.about)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
    assert {p.name for p in (tmp_path / "whole").glob("part_*")} == {f"part_{i:05}" for i in range(4)}


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    """What is still buffered fails a second time when the files are closed."""
    columns, actual_open = made_data.discrete_columns(), Path.open

    def opened(path, *args, **named):
        return actual_open(Path("/dev/full") if path.name == "key.npy" else path, *args, **named)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError, match="No space left"):
        made_data.write(tmp_path / "data", columns)
    assert list(tmp_path.iterdir()) == []


def test_column_files_are_npy_arrays(tmp_path):
    columns = made_data.discrete_columns()
    path = made_data.write(tmp_path / "data", columns)
    for name, column in columns.items():
        assert np.array_equal(np.load(path / f"part_00000/{name}.npy"), column), name
    assert oct(path.stat().st_mode & 0o777) == oct(0o777 & ~umask()), "others cannot read it"


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_no_rows_can_be_written(tmp_path):
    """No metrics, no candidates, no rows: arrays without any number can be mapped by nobody."""
    columns = made_data.parametric_columns(rows=3, metrics=0)
    columns |= {
        "possible_next_actions": np.zeros((0, 2), np.float32),
        "possible_next_actions_offsets": np.zeros(4, int),
    }
    rows = Dataset.open(made_data.write(tmp_path / "data", columns), verify=True).rows(np.array([2, 0]))
    assert rows.metrics.shape == (2, 0)
    assert rows.possible_next_actions.offsets.tolist() == [0, 0, 0]
    info = DatasetInfo(kind="discrete", num_rows=0, num_trajectories=0, state_features=("0",), state_size=1)
    with DatasetWriter(tmp_path / "none", "discrete", info.sizes) as writer:
        writer.finish(info, made_data.as_it_is("0"), check={})
    assert len(Dataset.open(tmp_path / "none", verify=True)) == 0


def test_without_finish_nothing_is_left(tmp_path):
    columns = made_data.discrete_columns()
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path / "data", "discrete", (4, 3, 1)) as writer:
        writer.append(columns)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        made_data.discrete(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_directory_appears_complete(tmp_path, monkeypatch):
    seen, rename = [], os.rename

    def renamed(old, new):
        rename(old, new)
        if new == tmp_path / "data":
            seen.append(Dataset.open(new, verify=True).info.num_rows)

    monkeypatch.setattr(os, "rename", renamed)
    columns = made_data.discrete_columns()
    with DatasetWriter(tmp_path / "data", "discrete", (4, 3, 1)) as writer:
        writer.append(columns)
        assert not (tmp_path / "data").exists()
    made_data.write(tmp_path / "data", columns)
    assert seen == [200]


def test_existing_files_are_not_overwritten(tmp_path):
    path = made_data.discrete(tmp_path / "data")
    before = contents(path)
    with pytest.raises(ConfigError, match="holds prepared data; add --force"):
        made_data.discrete(path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/me.jpg").touch()
    for replace in (False, True):
        with pytest.raises(ConfigError, match="photos holds something else; name another"):
            check_output(tmp_path / "photos", replace=replace)
    assert contents(path) == before
    (tmp_path / "empty").mkdir()
    assert len(Dataset.open(made_data.discrete(tmp_path / "empty"))) == 200


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    """Nothing can be renamed over it: what was prepared would be lost at the end."""
    volume, bound = tmp_path / "volume", tmp_path / "of the same disk"
    volume.mkdir()
    bound.mkdir()
    line = f"41 29 8:1 /a {tmp_path}/of\\040the\\040same\\040disk rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "mounts").write_text(line)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == volume)
    monkeypatch.setattr("lockstep.system.files._MOUNTS", tmp_path / "mounts")
    for path in (volume, bound):
        with pytest.raises(ConfigError, match=f"--out {path} is the root of a mounted .* below it: {path / 'data'}$"):
            check_output(path, replace=True)
        check_output(path / "data")


def test_data_is_replaced_on_finish(tmp_path):
    path = made_data.discrete(tmp_path / "data")
    columns = made_data.discrete_columns(rows=50)
    info = DatasetInfo(
        kind="discrete", num_rows=50, num_trajectories=9, state_features=tuple("0123"), state_size=4,
        actions=("a", "b", "c"), metrics=("m",),
    )  # fmt: skip
    with DatasetWriter(path, "discrete", info.sizes, replace=True) as writer:
        writer.append(columns)
        assert len(Dataset.open(path)) == 200
        writer.finish(info, made_data.as_it_is("0123"), check={})
    assert len(Dataset.open(path, verify=True)) == 50
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_wrong_columns_are_rejected(tmp_path):
    columns = made_data.discrete_columns()
    with DatasetWriter(tmp_path / "data", "discrete", (4, 3, 1)) as writer:
        for bad, match in (
            ({"reward": columns["reward"].astype(np.float64)}, "reward is <f8"),
            ({"reward": columns["reward"][:-1]}, r"reward is <f4 \[199\], not <f4 \[200\]"),
            ({"surprise": columns["reward"]}, "surprise"),
        ):
            with pytest.raises(ValueError, match=match):
                writer.append(columns | bad)
        with pytest.raises(ValueError, match="'state'"):
            writer.append({name: column for name, column in columns.items() if name != "state"})
        writer.append(columns)
        info = DatasetInfo(kind="discrete", num_rows=7, num_trajectories=1, state_features=("0",), state_size=4)
        with pytest.raises(ValueError, match="info describes"):
            writer.finish(info, made_data.as_it_is("0"), check={})
    assert list(tmp_path.iterdir()) == []
