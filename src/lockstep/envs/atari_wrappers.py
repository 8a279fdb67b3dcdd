"""Single Atari games with Gymnasium's own wrappers: for `env.wrappers`, and as a reference for `atari_vector.py`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, ReshapeObservation, TransformObservation

from lockstep.envs.adapters import Env, config_errors
from lockstep.envs.atari_options import AtariOptions
from lockstep.errors import ConfigError


def single_game(
    task: str, rom: str, options: AtariOptions, limit: int, *, training: bool = True, render: bool = False
) -> Callable[[], Env]:
    """A factory of one game with the behaviour of `AtariEnvs`; `reset` starts the next life, or a game if none is left.

    Args:
        task: for messages.
        rom: name of the game in `ale_py`.
        options: of the game.
        limit: steps after which a game is truncated.
        training: `False` plays whole games with unclipped rewards.
        render: enable `render()`, which returns the console's screen.
    """
    if not options.maxpool:
        raise ConfigError(
            f"env.kwargs maxpool=false: {task} can do that only with env.vectorization=auto and no wrappers"
        )
    return partial(_make, task, rom, options, limit, training, render)


def _make(task: str, rom: str, options: AtariOptions, limit: int, training: bool, render: bool) -> Env:
    with config_errors(task):
        env: Any = AtariEnv(
            rom,
            frameskip=1,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            render_mode="rgb_array" if render else None,
        )
        fire = options.use_fire_reset and "FIRE" in env.unwrapped.get_action_meanings()
        env = AtariPreprocessing(
            _Fire(env) if fire else env,
            noop_max=options.noop_max,
            frame_skip=options.frameskip,
            screen_size=(options.img_width, options.img_height),
            grayscale_obs=options.grayscale,
        )
        env = _Lives(env, options, limit, 1 if fire else 0, training)
        image = (options.img_height, options.img_width)
        if not options.grayscale:
            first = gymnasium.spaces.Box(0, 255, (3, *image), np.uint8)
            env = TransformObservation(env, lambda frame: np.moveaxis(frame, -1, 0), first)
        if options.stack_num > 1:
            env = FrameStackObservation(env, options.stack_num, padding_type="zero")
        return ReshapeObservation(env, (options.stack_num * (1 if options.grayscale else 3), *image))


class _Fire(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE for one frame at the start of a game."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game."""
        self.env.reset(seed=seed, options=options)
        observation, *_, info = self.env.step(1)
        return observation, info


class _Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Episodic life, reward clipping and the step limit of a game, according to the options."""

    def __init__(self, env: Env, options: AtariOptions, limit: int, press: int, training: bool) -> None:
        """`press`: the action that starts a life."""
        super().__init__(env)
        self._limit, self._press = limit, press
        self._clip_reward = training and options.reward_clipping
        self._end_by_life = training and options.episodic_life
        self._auto_fire = options.episodic_life and not training and press > 0
        self._fire_next = False
        self._lives = self._steps = 0
        self._game_continues = False  # a life was lost, but not the game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next life, or a game."""
        if self._game_continues and seed is None:
            self._game_continues = False
            observation, _, over, _, info = self.env.step(self._press)
            self._steps += 1
            if not over:
                self._lives = info["lives"]
                return observation, info
        observation, info = self.env.reset(seed=seed, options=options)
        self._game_continues, self._fire_next, self._steps, self._lives = False, False, 0, info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        observation, reward, over, _, info = self.env.step(self._press if self._fire_next else action)
        self._steps += 1
        lost = 0 < info["lives"] < self._lives
        died, self._fire_next = self._end_by_life and lost, self._auto_fire and lost
        self._lives = info["lives"]
        ended = bool(over or died)
        self._game_continues = bool(died and not over and self._steps < self._limit)
        reward = float(np.sign(float(reward)) if self._clip_reward else float(reward))
        return observation, reward, ended, self._steps >= self._limit and not ended, info
