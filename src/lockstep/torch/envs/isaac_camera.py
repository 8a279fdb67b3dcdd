"""Pictures of Isaac Lab's tasks, from a camera sensor of Isaac Lab 3.

Without Isaac Sim `env.render()` returns no picture, and the viewer of Newton needs OpenGL. The ray tracer of Isaac
Lab's own camera tasks (Newton and Warp) needs neither a display nor a GPU.
"""

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from lockstep.errors import ConfigError

_SENSOR = "lockstep_camera"
_WIDTH, _HEIGHT = 320, 240
_EYE = (2.0, -3.0, 1.5)
"""Position of the camera relative to the robot's root, in metres."""
_SKY = (0.30, 0.55, 0.82)
"""Colour behind the scene, as in Isaac Lab's visualizers."""


def add_camera(task: str, env_cfg: Any) -> None:
    """Add a camera to the scene of a task's config, before its environments are made.

    Raises:
        ConfigError: this version of Isaac Lab has no renderer that runs without Isaac Sim.
    """
    if find_spec("isaaclab_newton") is None:
        raise ConfigError(
            f"task={task} cannot be rendered with Isaac Lab 2; version 3 can: pip install isaaclab==3.0.0"
        )
    sensors: Any = importlib.import_module("isaaclab.sensors")
    renderers: Any = importlib.import_module("isaaclab_newton.renderers")
    spawners: Any = importlib.import_module("isaaclab.sim")
    camera = sensors.CameraCfg(
        prim_path="{ENV_REGEX_NS}/LockstepCamera",
        offset=sensors.CameraCfg.OffsetCfg(pos=_EYE),
        spawn=spawners.PinholeCameraCfg(clipping_range=(0.1, 100.0)),
        data_types=["rgb"],
        width=_WIDTH,
        height=_HEIGHT,
        background_color=_SKY,
        renderer_cfg=renderers.NewtonWarpRendererCfg(enable_shadows=True),
    )
    setattr(env_cfg.scene, _SENSOR, camera)


def picture(env: Any) -> np.ndarray:
    """A picture of the first environment, bytes [height, width, 3]; the camera follows its first robot.

    Args:
        env: environments whose config went through `add_camera`.
    """
    scene = env.scene
    robots = list(scene.articulations.values())
    target = _tensor(robots[0].data.root_pos_w) if robots else scene.env_origins
    camera = scene.sensors[_SENSOR]
    camera.set_world_poses_from_view(target + torch.tensor(_EYE, device=target.device), target)
    return np.array(_tensor(camera.data.output["rgb"])[0].cpu().numpy())


def _tensor(array: Any) -> torch.Tensor:
    """A tensor of an array of Isaac Lab, which may be a Warp array with a view in torch."""
    return getattr(array, "torch", array)
