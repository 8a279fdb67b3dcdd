"""`--video`: an episode per evaluation as a GIF, drawn by rank 0, and nothing else changes."""

import importlib
import re
from pathlib import Path

import pytest
from PIL import Image

from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.evaluate import evaluate_run
from lockstep.cli.main import main
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.record import video
from lockstep.run import EnvConfig, Run
from lockstep.session.evaluation import Evaluation
from lockstep.train import train


def run_of(task, **settings):
    return Run(
        task=task,
        num_envs=4,
        num_shards=1,
        total_steps=64,
        evaluate_every=32,
        evaluate_episodes=2,
        checkpoint_every=None,
        algorithm=PPOConfig(num_steps=8, num_minibatches=1, num_epochs=1, normalize_observation=False),
        **settings,
    )


def frames(path):
    with Image.open(path) as image:
        return image.n_frames, image.size


def test_a_video_of_each_evaluation(tmp_path):
    limit = EnvConfig(max_episode_steps=5)
    plain = train(run_of("CartPole-v1", env=limit), run_dir=tmp_path / "plain")
    drawn = train(run_of("CartPole-v1", env=limit, evaluate_video=True), run_dir=tmp_path / "drawn")
    assert not (tmp_path / "plain" / "videos").exists()
    assert drawn["params_fingerprint"] == plain["params_fingerprint"]
    assert drawn["eval_return_mean"] == plain["eval_return_mean"]
    names = sorted(path.name for path in (tmp_path / "drawn" / "videos").iterdir())
    assert names == ["step_32.gif", "step_64.gif"]
    for name in names:
        # Five steps and the frame before the first; GIF keeps two that look the same as one.
        count, size = frames(tmp_path / "drawn" / "videos" / name)
        assert size == (320, 213) and 2 <= count <= 6


def test_lockstep_evaluate_draws(tmp_path, capsys):
    train(run_of("CartPole-v1", env=EnvConfig(max_episode_steps=5)), run_dir=tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--video"]) == 0
    path = tmp_path / "run" / "videos" / "evaluate.gif"
    assert f"video: {path}" in capsys.readouterr().out and frames(path)[0] >= 2
    assert evaluate_run(tmp_path / "run", episodes=1)["video"] is None


@pytest.mark.slow
def test_a_game_is_drawn_in_its_own_colours(tmp_path):
    pytest.importorskip("ale_py")
    run = run_of("ALE/Pong-v5", env=EnvConfig(max_episode_steps=6), evaluate_video=True)
    train(run, run_dir=tmp_path / "run")
    count, size = frames(tmp_path / "run" / "videos" / "step_64.gif")
    assert size == (160, 210) and count >= 2


def test_a_full_disk_costs_a_warning_and_not_the_run(tmp_path, capsys, monkeypatch):
    def save(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(video.Image.Image, "save", save)
    run = run_of("CartPole-v1", env=EnvConfig(max_episode_steps=5), evaluate_video=True)
    assert train(run, run_dir=tmp_path / "run")["status"] == "finished"
    assert "could not be written: No space left on device" in capsys.readouterr().out


FAULTY = """
import gymnasium, numpy as np

class Env(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    fault = None

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        fault = self.fault if self.render_mode and self.steps == 3 else None
        if fault == "step":
            raise ValueError("the motor is hot")
        return np.full(2, np.nan if fault == "nan" else 0, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        if self.fault == "render" and self.steps == 3:
            raise ValueError("no paint")
        if self.fault == "gray" and self.steps == 3:
            return np.zeros((4, 4), np.uint8)
        return np.full((4, 4, 3), 50 * self.steps, np.uint8)
"""


def test_a_failure_in_the_episode_of_a_video_is_told_and_leaves_no_file(tmp_path, capsys, monkeypatch):
    """It ends `lockstep evaluate`; a training, which records videos beside its evaluations, goes on."""
    (tmp_path / "faulty_in_video.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    faulty = importlib.import_module("faulty_in_video")
    for fault, words in (
        (
            "step",
            r"environment 0 of its shard failed in step: ValueError: the motor is hot \(.*faulty_in_video.py:\d+\)",
        ),
        ("nan", r"environment 0 gave an observation that is not finite \(nan\), in step 3 of an episode"),
        ("render", "ValueError: no paint"),
        ("gray", r"ValueError: render\(\) returns an array of shape \[4, 4\]; return an array of bytes"),
    ):
        told = f"the episode of a video failed: {words}"
        monkeypatch.setattr(faulty.Env, "fault", fault)
        run_dir = tmp_path / fault
        assert train(run_of("faulty_in_video:Env", evaluate_video=True), run_dir=run_dir)["status"] == "finished"
        assert re.search(f"warning: {told}", capsys.readouterr().out)
        with pytest.raises(RunError, match=told):
            evaluate_run(run_dir, episodes=1, video=True)
        assert not list(run_dir.glob("videos/*"))


def test_a_rank_that_dies_during_a_video_is_no_fault_of_the_episode(tmp_path, monkeypatch):
    """The heartbeat asks all ranks at times: its error names the rank, and has to end the run."""
    beats = []

    def heartbeat():
        beats.append(1)
        if len(beats) == 3:
            raise PeerError("rank 1 has ended while rank 0 waited in evaluate", 1)

    actual_record = Evaluation.record
    monkeypatch.setattr(Evaluation, "record", lambda *args, **_: actual_record(*args, heartbeat=heartbeat))
    run = run_of("CartPole-v1", env=EnvConfig(max_episode_steps=5), evaluate_video=True)
    with pytest.raises(PeerError, match="rank 1 has ended"):
        train(run, run_dir=tmp_path / "run")
    assert not list((tmp_path / "run").glob("videos/*"))


def test_an_environment_that_cannot_be_drawn_any_more_costs_a_warning(tmp_path, capsys, monkeypatch):
    """As where contexts of EGL run out: the checks before the run could draw."""
    (tmp_path / "faulty_in_video.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    faulty, made = importlib.import_module("faulty_in_video").Env, []

    def make(self, render_mode=None):
        self.render_mode = render_mode
        made.extend([render_mode] * (render_mode is not None))
        if len(made) > 2:  # the checks before the run, and of the rank
            raise ValueError("no display left")

    monkeypatch.setattr(faulty, "__init__", make)
    run = run_of("faulty_in_video:Env", evaluate_video=True)
    assert train(run, run_dir=tmp_path / "run")["status"] == "finished"
    said = capsys.readouterr().out
    assert re.search("warning: the environment of a video could not be made: .*no display left", said)


def test_a_video_shows_numbers_that_are_skipped(tmp_path, monkeypatch):
    (tmp_path / "faulty_in_video.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.import_module("faulty_in_video").Env, "fault", "nan")
    train(run_of("faulty_in_video:Env", evaluate_video=True, non_finite="skip"), run_dir=tmp_path / "run")
    assert frames(tmp_path / "run" / "videos" / "step_32.gif")[0] == 5


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("lockstep/Reach-v0", "cannot be rendered"),
        ("no_pictures:Env", r"render\(\) returns no picture"),
        ("gray:Env", r"cannot be rendered: render\(\) returns an array of shape \[64, 64\]; return an array of bytes"),
        ("alpha:Env", r"returns an array of shape \[64, 64, 4\]"),
        ("empty:Env", r"returns an array of shape \[0, 64, 3\]"),
        ("listed:Env", r"returns a list; return an array of bytes, height by width by 3 colours"),
        ("floats:Env", "returns float64 instead of uint8"),
        ("no_render:Env", "needs a method render that returns an array of bytes"),
        ("no_mode:Env", "need an __init__ that takes render_mode='rgb_array'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_starts(task, words, tmp_path, monkeypatch):
    from lockstep.session.task_checks import check_drawing

    (tmp_path / "no_pictures.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def __init__(self, render_mode=None): pass\n"
        "    def reset(self, seed=None, options=None): return np.zeros(2, np.float32), {}\n"
        "    def render(self): return None\n"
    )
    for name, changed in (
        ("floats", ("return None", "return np.full((4, 4, 3), 0.5)")),
        ("gray", ("return None", "return np.zeros((64, 64), np.uint8)")),
        ("alpha", ("return None", "return np.zeros((64, 64, 4), np.uint8)")),
        ("empty", ("return None", "return np.zeros((0, 64, 3), np.uint8)")),
        ("listed", ("return None", "return [np.zeros((64, 64, 3), np.uint8)]")),
        ("no_render", ("    def render(self): return None\n", "")),
        ("no_mode", ("render_mode=None", "")),
    ):
        (tmp_path / f"{name}.py").write_text((tmp_path / "no_pictures.py").read_text().replace(*changed))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"a video was asked for.*{words}"):
        check_drawing(run_of(task, evaluate_video=True))


def test_evaluations_and_videos_play_what_counts(tmp_path, monkeypatch):
    from lockstep.session import evaluation

    made, make = [], evaluation.make_vector_env

    def recorded(*args, **kwargs):
        made.append(kwargs)
        return make(*args, **kwargs)

    monkeypatch.setattr(evaluation, "make_vector_env", recorded)
    run = run_of("CartPole-v1", env=EnvConfig(max_episode_steps=5), evaluate_video=True)
    train(run, run_dir=tmp_path / "run")
    assert made == [{"training": False}, *2 * [{"render": True, "training": False}]]


SLOW = """
import time, gymnasium, numpy as np

class Env(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 9, False, {}

    def render(self):
        time.sleep(1.0)
        return np.full((4, 4, 3), self.steps, np.uint8)
"""


def test_ranks_wait_for_a_video_that_takes_longer_than_a_message_may(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    train(run_of(f"{tmp_path / 'slow.py'}:Env"), run_dir=tmp_path / "run")
    config = (tmp_path / "run" / "run.yaml").read_text()
    assert "timeout_s: 120.0" in config
    (tmp_path / "run" / "run.yaml").write_text(config.replace("num_shards: 1", "num_shards: 2").replace("120.0", "5.0"))
    played = evaluate_run(tmp_path / "run", episodes=4, ranks=2, video=True)
    assert played["eval_return_mean"] == 9.0
    assert frames(Path(played["video"]))[0] == 9
