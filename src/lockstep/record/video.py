"""Videos of episodes as GIF, which every browser shows without a codec."""

import io
import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from lockstep.errors import RunError
from lockstep.system.files import write_atomically

MAX_FRAMES = 3000
"""Longer episodes are cut: at 15 frames per second this is more than three minutes, and some megabytes."""
_MAX_WIDTH = 320
_MAX_RATE = 50.0
"""Many viewers slow down what has more frames per second."""
_LONGEST_MS = 655_350
"""The format has no longer duration of a frame."""


def write_gif(path: Path, frames: Iterable[np.ndarray], frames_per_second: float) -> None:
    """Write `frames`, uint8 [H, W, 3], at most `MAX_FRAMES` of them and shrunk to 320 pixels of width.

    Of more than 50 per second it keeps every second, or every third, and so on. The file appears atomically. Raises
    `RunError` if it cannot be written.
    """
    every = max(math.ceil(frames_per_second / _MAX_RATE), 1)
    pictures = (_picture(frame) for frame in islice(frames, 0, MAX_FRAMES, every))
    content = io.BytesIO()
    duration = round(min(1000 * every / frames_per_second, _LONGEST_MS))
    try:
        next(pictures).save(content, "GIF", save_all=True, append_images=pictures, duration=duration, loop=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except (OSError, ValueError, OverflowError) as error:  # the latter two: frames that the format cannot hold
        reason = isinstance(error, OSError) and error.strerror
        raise RunError(f"the video {path} could not be written: {reason or error}") from error


def _picture(frame: np.ndarray) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(frame, np.uint8))
    if image.width > _MAX_WIDTH:
        height = max(round(image.height * _MAX_WIDTH / image.width), 1)
        image = image.resize((_MAX_WIDTH, height), Image.Resampling.BOX)
    return image.quantize(256)
