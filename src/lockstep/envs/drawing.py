"""Frame rates of videos, and a rendering backend for MuJoCo on machines without a display."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.errors import ConfigError

_BACKENDS = ("egl", "osmesa")
"""OpenGL without a display: on a GPU or Mesa's EGL, else in software."""
_TIMEOUT_S = 60.0
_RATE = 30.0


def frames_per_second(env: Any) -> float:
    """Pictures per second in the task's own time: `render_fps` of the environment's metadata, 30 if it names none."""
    metadata: Mapping[str, Any] = getattr(env, "metadata", None) or {}
    rate = metadata.get("render_fps")
    return float(rate) if isinstance(rate, int | float) and 0 < rate < math.inf else _RATE


def picture_of(rendered: Any) -> np.ndarray:
    """The picture of the first environment, uint8 [H, W, 3], in what `render` of a vector environment returned.

    Raises:
        ValueError: it is not a picture; the message says what it is.
    """
    try:
        picture = rendered[0]
    except (TypeError, LookupError):
        picture = None
    wanted = "return an array of bytes, height by width by 3 colours"
    if picture is None:
        raise ValueError(f"render() returns no picture (render_mode=rgb_array); {wanted}")
    if not hasattr(picture, "__array__"):
        raise ValueError(f"render() returns a {type(picture).__name__}; {wanted}")
    picture = np.asarray(picture)
    if picture.shape[2:] != (3,) or not picture.size:
        raise ValueError(f"render() returns an array of shape {list(picture.shape)}; {wanted}")
    if picture.dtype != np.uint8:
        raise ValueError(f"render() returns {picture.dtype} instead of uint8; colours go from 0 to 255")
    return picture


def choose_mujoco_gl() -> None:
    """Set `MUJOCO_GL` to a backend that works, if this process has imported MuJoCo and there is no display.

    MuJoCo reads the variable when it draws for the first time; without it, it chooses GLFW, which needs a display. A
    backend that fails cannot be replaced within a process, so each is tried in a subprocess.

    Raises:
        ConfigError: no backend works.
    """
    given = any(os.environ.get(name) for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"))
    if given or "mujoco" not in sys.modules:
        return
    for backend in _BACKENDS:
        if _works(backend):
            os.environ["MUJOCO_GL"] = backend
            return
    raise ConfigError(
        f"MuJoCo can draw with none of {', '.join(_BACKENDS)}, and there is no display; install one of them (Debian: "
        "apt install libegl1, or libosmesa6), or set MUJOCO_GL"
    )


def other_mujoco_gl() -> str:
    """What to try where MuJoCo cannot draw, for a message that ends with it; empty without MuJoCo."""
    if "mujoco" not in sys.modules:
        return ""
    given = os.environ.get("MUJOCO_GL") or "glfw"
    others = " or ".join(f"MUJOCO_GL={name}" for name in _BACKENDS if name != given)
    return f"; MuJoCo draws with MUJOCO_GL={given} here: {others} needs no display"


def _works(backend: str) -> bool:
    """Whether MuJoCo can make an OpenGL context with a backend."""
    code = f"from mujoco.{backend} import GLContext; context = GLContext(8, 8); context.make_current(); context.free()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"MUJOCO_GL": backend}, capture_output=True, check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
