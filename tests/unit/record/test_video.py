"""GIFs of episodes: whole, bounded, and what was seen."""

import numpy as np
import pytest
from PIL import Image

from lockstep.errors import RunError
from lockstep.record import video
from lockstep.record.video import write_gif


def frames(count, shape=(21, 16, 3)):
    for index in range(count):
        frame = np.zeros(shape, np.uint8)
        frame[index % shape[0]] = (200, 10 * index % 256, 7)
        yield frame


def read(path):
    with Image.open(path) as image:
        found = []
        for index in range(image.n_frames):
            image.seek(index)
            found.append((np.asarray(image.convert("RGB")), image.info["duration"]))
        return found


def test_what_is_written_can_be_seen(tmp_path):
    path = tmp_path / "videos" / "step_8.gif"
    write_gif(path, frames(7), 15)
    seen = read(path)
    assert [duration for _, duration in seen] == [60] * 7 or [duration for _, duration in seen] == [70] * 7
    for (picture, _), frame in zip(seen, frames(7), strict=True):
        np.testing.assert_array_equal(picture, frame)
    assert [file.name for file in path.parent.iterdir()] == ["step_8.gif"]


def test_long_and_wide_ones_are_cut_and_shrunk(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_FRAMES", 4)
    path = tmp_path / "a.gif"
    write_gif(path, frames(9, (100, 640, 3)), 50)
    seen = read(path)
    assert len(seen) == 4 and seen[0][0].shape == (50, 320, 3) and seen[0][1] == 20


def test_of_quick_ones_some_frames_are_kept(tmp_path):
    """125 frames a second, as MuJoCo's Hopper has: every third, for 24 ms, which the format rounds to 20."""
    write_gif(tmp_path / "a.gif", frames(8), 125)
    seen = read(tmp_path / "a.gif")
    assert [duration for _, duration in seen] == [20] * 3
    for (picture, _), frame in zip(seen, [*frames(8)][::3], strict=True):
        np.testing.assert_array_equal(picture, frame)


def test_a_failure_leaves_nothing(tmp_path):
    def failing():
        yield from frames(3)
        raise RunError("the game is over")

    with pytest.raises(RunError, match="the game is over"):
        write_gif(tmp_path / "a.gif", failing(), 15)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"the video .*file/a.gif could not be written: "):
        write_gif(tmp_path / "file" / "a.gif", frames(3), 15)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_very_wide_and_very_slow_ones_are_written(tmp_path):
    write_gif(tmp_path / "a.gif", frames(2, (5, 6400, 3)), 1e-5)
    assert [(picture.shape, duration) for picture, duration in read(tmp_path / "a.gif")] == [((1, 320, 3), 655_350)] * 2


@pytest.mark.parametrize("shape", [(0, 64, 3), (70_000, 5, 3)])
def test_what_the_format_cannot_hold_is_an_error_of_the_run(shape, tmp_path):
    with pytest.raises(RunError, match=r"the video .*a.gif could not be written: "):
        write_gif(tmp_path / "a.gif", iter([np.zeros(shape, np.uint8)] * 2), 15)
    assert not list(tmp_path.iterdir())
