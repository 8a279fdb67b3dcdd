"""Videos of Isaac Lab's tasks on a CPU, during training and of a trained run."""

from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from isaac_process import run_python
from PIL import Image, ImageSequence

pytestmark = pytest.mark.isaac
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)

SHORT = ("num_envs=8", "total_steps=128", "evaluate_every=null", "evaluate_episodes=1", "env.max_episode_steps=20")


@pytest.mark.parametrize("task", ["Isaac-Cartpole", "Isaac-Ant"])
def test_videos_show_a_robot_that_moves(tmp_path, task):
    flags = [word for setting in SHORT for word in ("--set", setting)]
    run_python(tmp_path, "-m", "lockstep", "train", task, "--run-dir", "run", "--video", *flags)
    run_python(tmp_path, "-m", "lockstep", "play", "run", "--video", "--episodes", "1")
    videos = sorted(path.name for path in (tmp_path / "run" / "videos").iterdir())
    assert videos == ["evaluate.gif", "step_128.gif"]
    for name in videos:
        with Image.open(tmp_path / "run" / "videos" / name) as video:
            frames = [np.asarray(frame.convert("RGB"), np.int64) for frame in ImageSequence.Iterator(video)]
        assert len(frames) >= 20
        assert all(frame.shape == (240, 320, 3) and frame.std() > 1 for frame in frames)
        assert all((one != two).any() for one, two in pairwise(frames))
        assert abs(frames[0] - frames[-1]).max() > 20
