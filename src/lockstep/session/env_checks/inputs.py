"""Observations that a network receives as something else than what they are called or look like."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.envs.spaces import named_parts
from lockstep.session.env_checks.report import Report

_SMALLEST_SIDE = 16
"""Of bytes that are taken for an image by their shape; a board or a table is smaller."""
_MASK = "action_mask"


def check_inputs(space: Any, report: Report) -> None:
    """Warn about an action mask in observations, and about images that are no images to the network."""
    for path, part in _parts(space):
        if path and path[-1] == _MASK:
            report.warn(
                f"observations have an {_MASK}, which is an input of the network like any other: a policy chooses "
                "among all actions; let invalid ones have no effect in step",
                about=_MASK,
            )
        shape = tuple(int(size) for size in part.shape or ())
        if (wanted := _as_image(part, shape)) is not None:
            where = "".join(f"[{key!r}]" for key in path)
            report.warn(
                f"observation{where} of shape {list(shape)} is {int(np.prod(shape))} numbers from 0 to 255 to the "
                f"network, not an image, which has three dimensions: return {wanted}",
                about=f"image {where}",
            )


def _parts(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All spaces within one, and the keys that lead to them."""
    yield path, space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in named_parts(space):
            yield from _parts(part, (*path, key))


def _as_image(space: Any, shape: tuple[int, ...]) -> str | None:
    """How bytes that look like one or several images would be an image; None for all others."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or space.high.max() != 255:
        return None
    if len(shape) == 2 and min(shape) >= _SMALLEST_SIDE:
        return f"{[*shape, 1]} (GrayscaleObservation: keep_dim=True)"
    if len(shape) != 4:
        return None
    count, *image = shape
    *sides, channels = image if image[-1] < image[0] else [*image[1:], image[0]]
    if min(sides) < _SMALLEST_SIDE:
        return None
    return f"{[*sides, count * channels]}, the channels of all pictures"
