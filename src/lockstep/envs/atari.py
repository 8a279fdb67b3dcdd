"""Atari games by their usual names, with the standard preprocessing (Mnih et al., 2015; Machado et al., 2018).

`ale_py` is imported only when a game is made.
"""

import importlib
import re
from importlib.util import find_spec
from typing import Any

import gymnasium
import msgspec

from lockstep.config.env import EnvConfig
from lockstep.envs.atari_options import AtariOptions
from lockstep.envs.vector import VectorEnv, not_made_error, refuse_unknown_kwargs
from lockstep.errors import ConfigError

FRAMES_PER_GAME = 108_000
"""Half an hour at 60 frames per second, after which a game is truncated."""
_NAME = re.compile(r"ALE/.+|[A-Z][A-Za-z]*NoFrameskip-v\d+")
INSTALL = 'pip install "lockstep-rl[atari]"'
"""The command that installs `ale_py`."""


def register() -> bool:
    """Register the games with Gymnasium if `ale_py` is installed; returns whether it is."""
    if find_spec("ale_py") is None:
        return False
    importlib.import_module("ale_py")  # registers them on import
    return True


def refusal(task: str) -> ConfigError | None:
    """The error that names what to install, if `task` looks like a game and `ale_py` is missing."""
    if find_spec("ale_py") is not None or not _NAME.fullmatch(task):
        return None
    return ConfigError(f"task={task} is an Atari game, and ale_py is not installed: {INSTALL}")


def is_game(registered: Any) -> bool:
    """Whether an entry of Gymnasium's registry is an Atari game."""
    return registered.entry_point == "ale_py.env:AtariEnv"


def draws_frame_skip(registered: Any) -> bool:
    """Whether an entry is a game whose actions last a random number of frames, so that it needs `frameskip`."""
    return is_game(registered) and not isinstance(registered.kwargs["frameskip"], int)


def is_game_id(task: str) -> bool:
    """Whether `task` is the registered id of an Atari game."""
    registered = gymnasium.registry.get(task.rpartition(":")[2])
    return registered is not None and is_game(registered)


def make(registered: Any, config: EnvConfig, num_envs: int, *, render: bool, training: bool) -> VectorEnv:
    """The games of a shard, in C++.

    Args:
        registered: the task in Gymnasium's registry.
        config: of the environments.
        num_envs: B.
        render: enable `render()`, which returns the consoles' screens.
        training: `False` plays whole games with unclipped rewards.
    """
    from lockstep.envs.atari_vector import AtariEnvs

    rom, options, limit = settings_of(registered, config)
    try:
        return AtariEnvs(rom, options, limit, num_envs, training=training, render=render)
    except Exception as error:
        raise not_made_error(registered.id, error) from error


def settings_of(registered: Any, config: EnvConfig) -> tuple[str, AtariOptions, int]:
    """Name of the game in `ale_py`, options, and steps after which a game is truncated."""
    options = _options_of(registered, config)
    return registered.kwargs["game"], options, config.max_episode_steps or FRAMES_PER_GAME // options.frameskip


def _options_of(registered: Any, config: EnvConfig) -> AtariOptions:
    """Options from the task's id and `env.kwargs`."""
    kwargs = dict(config.kwargs)
    refuse_unknown_kwargs(AtariOptions, config, registered.id, settings=False)
    if draws_frame_skip(registered) and "frameskip" not in kwargs:
        steady = registered.id.replace("-v", "NoFrameskip-v")
        raise ConfigError(
            f"task={registered.id} lets an action last 2 to 4 frames, drawn at random, which is no longer played; "
            f"use task={steady}, or set env.kwargs.frameskip"
        )
    kwargs.setdefault("repeat_action_probability", registered.kwargs["repeat_action_probability"])
    try:
        return msgspec.convert(kwargs, AtariOptions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"task={registered.id}: env.kwargs: {error}") from error
