"""Which games there are, how they are played by name, and what cannot be played."""

import subprocess
import sys

import gymnasium
import pytest

from lockstep.envs import atari
from lockstep.envs.atari_options import AtariOptions
from lockstep.envs.gymnasium import known_tasks, suggested_tasks
from lockstep.envs.make import env_spec, unsavable_text
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig

pytest.importorskip("ale_py")


def test_what_names_mean():
    atari.register()
    for task, sticky in (("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v0", 0.25), ("PongNoFrameskip-v4", 0.0)):
        rom, options, limit = atari.settings_of(gymnasium.registry[task], EnvConfig())
        assert (rom, options, limit) == ("pong", AtariOptions(repeat_action_probability=sticky), 27_000)
    config = EnvConfig(kwargs={"frameskip": 2}, max_episode_steps=7)
    _, options, limit = atari.settings_of(gymnasium.registry["Pong-v4"], config)
    assert (options.frameskip, limit) == (2, 7)


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("ALE/Pnog-v5", {}, "ALE/Pnog-v5 is unknown; did you mean .*ALE/Pong-v5"),
        ("PongNoFrameskip-v5", {}, "did you mean .*PongNoFrameskip-v4"),
        ("Pong-v5", {}, r"Pong-v5 is unknown; did you mean [^?]*ALE/Pong-v5"),
        ("Pong-v4", {}, "drawn at random.* task=PongNoFrameskip-v4, or set env.kwargs.frameskip"),
        (
            "ALE/Pong-v5",
            {"kwargs": {"frame_skip": 4}},
            r"frame_skip=4 is unknown to ALE/Pong-v5; did you mean frameskip",
        ),
        ("ALE/Pong-v5", {"kwargs": {"frameskip": "four"}}, "Expected `int`, got `str`.*frameskip"),
        ("ALE/Pong-v5", {"kwargs": {"frameskip": 0}}, "frameskip=0 must be at least 1"),
        ("ALE/Pong-v5", {"kwargs": {"noop_max": -1}}, "noop_max=-1 must not be negative"),
        (
            "ALE/Pong-v5",
            {"kwargs": {"repeat_action_probability": 25}},
            "repeat_action_probability=25.* must be a probability",
        ),
        ("ALE/Pong-v5", {"kwargs": {"maxpool": False}, "vectorization": "sync"}, "only with env.vectorization=auto"),
        (
            "ALE/Pong-v5",
            {"wrappers": ("own_envs:Doubled",), "vectorization": "entry_point"},
            "wrappers need single environments",
        ),
    ],
)
def test_bad_input_is_one_clear_line(task, config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        env_spec(task, EnvConfig(**config))
    assert "\n" not in str(caught.value)


def test_without_the_console_the_command_is_named(monkeypatch):
    monkeypatch.setattr(atari, "find_spec", lambda name: None)
    for task in ("ALE/NoSuchGame-v5", "NoSuchGameNoFrameskip-v4"):  # real ones are registered in this process already
        with pytest.raises(ConfigError, match=r"ale_py is not installed: pip install .lockstep-rl\[atari\]"):
            env_spec(task, EnvConfig())


def test_the_console_is_imported_when_asked_for():
    code = (
        "import sys, lockstep.train, lockstep.cli.main\n"
        "from lockstep.run import EnvConfig\nfrom lockstep.envs.make import env_spec\n"
        "env_spec('CartPole-v1', EnvConfig())\n"
        "assert 'ale_py' not in sys.modules\n"
        "env_spec('ALE/Pong-v5', EnvConfig())\n"
        "assert 'ale_py' in sys.modules and 'cv2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_game_is_suggested_that_is_refused():
    atari.register()
    assert "Pong-v4" in known_tasks() and "Pong-v4" not in suggested_tasks()
    assert {"ALE/Pong-v5", "PongNoFrameskip-v4", "CartPole-v1"} <= set(suggested_tasks())


def test_a_game_that_cannot_be_saved_says_which_settings_save_it():
    atari.register()
    assert unsavable_text("ALE/Pong-v5").endswith(
        "; games are saved with env.vectorization=auto and without env.wrappers"
    )
    assert unsavable_text("my_env.py:Env").endswith(
        "; give the class the methods state() and restore(state), as docs/environments.md shows"
    )
