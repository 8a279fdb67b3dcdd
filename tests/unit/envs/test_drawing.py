"""Pictures of environments: their speed, MuJoCo's without a display, and the extras that tasks need."""

import os
import sys
import warnings
from ctypes.util import find_library
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from lockstep.envs import drawing
from lockstep.envs.adapters import config_errors
from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig, Run
from lockstep.session.task_checks import check_drawing


@pytest.mark.parametrize(
    ("task", "settings", "rate"),
    [
        ("CartPole-v1", {"vectorization": "entry_point"}, 50),
        ("CartPole-v1", {"vectorization": "sync", "frame_stack": 2}, 50),
        ("Acrobot-v1", {"vectorization": "async"}, 15),
        ("lockstep/PixelPong-v0", {}, 30),
    ],
)
def test_videos_have_the_speed_of_the_task(task, settings, rate):
    env = make_vector_env(task, EnvConfig(**settings), 1, render=True)
    try:
        assert env.frames_per_second == rate
    finally:
        env.close()


@pytest.mark.parametrize("metadata", [None, {}, {"render_fps": None}, {"render_fps": 0}, {"render_fps": float("nan")}])
def test_a_task_without_a_speed_has_30_frames_a_second(metadata):
    assert drawing.frames_per_second(SimpleNamespace(metadata=metadata)) == 30


@pytest.fixture
def no_display(monkeypatch):
    """A process without a display that has imported MuJoCo."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", "")  # removed again after the test
    monkeypatch.setitem(sys.modules, "mujoco", object())


@pytest.mark.usefixtures("no_display")
def test_the_first_backend_that_works_is_chosen(monkeypatch):
    tried = []
    monkeypatch.setattr(drawing, "_works", lambda backend: tried.append(backend) or backend == "osmesa")
    drawing.choose_mujoco_gl()
    assert (tried, os.environ["MUJOCO_GL"]) == (["egl", "osmesa"], "osmesa")
    drawing.choose_mujoco_gl()
    assert len(tried) == 2, "tried once"


@pytest.mark.usefixtures("no_display")
@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"])
def test_a_display_or_a_choice_of_the_user_stays(name, monkeypatch):
    monkeypatch.setattr(drawing, "_works", lambda backend: pytest.fail("tried"))
    monkeypatch.setenv(name, "glfw")
    drawing.choose_mujoco_gl()
    assert os.environ["MUJOCO_GL"] == ("glfw" if name == "MUJOCO_GL" else "")


@pytest.mark.usefixtures("no_display")
def test_nothing_is_tried_for_other_environments(monkeypatch):
    monkeypatch.setattr(drawing, "_works", lambda backend: pytest.fail("tried"))
    monkeypatch.delitem(sys.modules, "mujoco")
    drawing.choose_mujoco_gl()


@pytest.mark.usefixtures("no_display")
def test_without_a_backend_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr(drawing, "_works", lambda backend: False)
    with pytest.raises(ConfigError, match=r"none of egl, osmesa, and there is no display; install .*libegl1"):
        drawing.choose_mujoco_gl()


@pytest.mark.slow  # OpenGL in software
@pytest.mark.skipif(find_library("EGL") is None, reason="needs EGL")
def test_mujoco_draws_without_a_display(monkeypatch):
    pytest.importorskip("mujoco")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", "")
    env = make_vector_env("InvertedPendulum-v5", EnvConfig(kwargs={"width": 32, "height": 32}), 1, render=True)
    env.reset([0])
    (picture,) = env.render()
    env.close()
    assert picture.shape == (32, 32, 3)
    assert picture.std() > 0


@pytest.mark.parametrize(
    ("module", "error", "extra"),
    [
        ("mujoco", "gymnasium", "mujoco"),
        ("Box2D", "gymnasium", "box2d"),
        ("pettingzoo", "import", "pettingzoo"),
    ],
)
def test_the_error_of_a_missing_package_names_its_extra(module, error, extra):
    gymnasium = pytest.importorskip("gymnasium")
    missing = {
        "gymnasium": gymnasium.error.DependencyNotInstalled(f"{module} is not installed, run `pip install x`"),
        "import": ModuleNotFoundError(f"No module named '{module}'", name=f"{module}.utils"),
    }[error]
    expected = rf"task=A-v0 needs the Python package {module}: pip install 'lockstep-rl\[{extra}\]'"
    with pytest.raises(ConfigError, match=expected), config_errors("A-v0"):
        raise missing


def test_what_mujoco_draws_with_is_told_where_it_fails(monkeypatch):
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    assert drawing.other_mujoco_gl() == ""
    monkeypatch.setitem(sys.modules, "mujoco", object())
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert drawing.other_mujoco_gl().endswith("with MUJOCO_GL=egl here: MUJOCO_GL=osmesa needs no display")
    monkeypatch.delenv("MUJOCO_GL")
    task = f"{__file__}:Dark"
    with pytest.raises(
        ConfigError, match=r"cannot be rendered here: no context; .*=glfw here: .*=egl or .*=osmesa needs"
    ):
        check_drawing(Run(task=task))


class Dark(gymnasium.Env):
    """Has no display."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def render(self):
        warnings.warn("GLFW: no display", stacklevel=1)
        raise RuntimeError("no context")
