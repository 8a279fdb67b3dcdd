"""Atari games in the Arcade Learning Environment's vector environment, stepped by C++ threads.

Shapes: B environments of a shard, C channels (frames, newest last, times 3 if coloured), H and W of an image.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import ale_py
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from lockstep.envs.atari_options import AtariOptions
from lockstep.envs.atari_screen import Screen
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import RunError
from lockstep.system.cores import usable_cores
from lockstep.world import World, stream_seed

_SEED_EVERY = 4096
"""Steps after which the next game of an environment gets a new seed.

A game cannot be saved, but it can be replayed from its seed with the same actions. Seeding costs as much as 150 steps,
because it reloads the cartridge.
"""
_NOOP = 0
_RESET = 128  # added to a recorded action after which a game was started
_NO_LIMIT = 1 << 30
_STATE = {name: name for name in ("_seeds", "_since_seed", "_game_steps", "_frames", "_lives", "_age")} | {
    "_over": "_starts_game",
    "_died": "_starts_life",
    "_helped": "_starts_life_within_episode",
}
"""The attributes of a saved state, by their keys in it."""


class AtariEnvs:
    """The games of one shard; `next_step` autoreset, one seed per environment.

    Episodes end with the game, or (`episodic_life`) with each life: the game then continues, and the reset step starts
    the next life, by pressing FIRE where the game waits for it. An episode's first observation has no frames from
    before it, so that replay buffers store each frame once. Without `training`, episodes are whole games, in which each
    lost life takes one more step that presses FIRE regardless of the action.

    Games are truncated here and not in C++, which would return a stale last frame.
    """

    def __init__(
        self,
        game: str,
        options: AtariOptions,
        limit: int,
        num_envs: int,
        *,
        training: bool = True,
        render: bool = False,
    ) -> None:
        """`num_envs` consoles running `game`, such as `pong`, truncated after `limit` steps."""
        self.num_envs = num_envs
        self._options, self._limit = options, limit
        self._by_life = training and options.episodic_life
        self._env: Any = _consoles(game, options, num_envs, training=training)
        actions = list(self._env.ale.get_action_set())
        self.spec = _spec(options, len(actions), limit)
        fire = options.use_fire_reset and ale_py.Action.FIRE in actions
        self._begin_life = actions.index(ale_py.Action.FIRE) if fire else _NOOP
        # A policy trained with episodic life never had to press FIRE itself.
        self._helps = fire and options.episodic_life and not training
        self._screens = [Screen(game, options) for _ in range(num_envs if render else 0)]
        self._seed_every = 0 if render else _SEED_EVERY  # `Screen` needs a seed for each game
        self.frames_per_second = 60 / options.frameskip
        self._rows = np.arange(num_envs)
        self._bases: list[int] = []
        self._seeds = np.zeros(num_envs, np.int64)  # number of seeds so far
        self._since_seed = np.zeros(num_envs, np.int64)
        self._played = np.zeros((1024, num_envs), np.uint8)  # [since_seed, B] actions
        self._game_steps = np.zeros(num_envs, np.int64)
        self._frames = np.zeros(num_envs, np.int64)  # console frames since the start of the game
        self._lives = np.zeros(num_envs, np.int64)
        self._age = np.zeros(num_envs, np.int64)  # earlier observations of the episode
        # What the next step does; it belongs to the next episode, or (within episode) to the same.
        self._starts_game: np.ndarray = np.zeros(num_envs, bool)
        self._starts_life: np.ndarray = np.zeros(num_envs, bool)
        self._starts_life_within_episode: np.ndarray = np.zeros(num_envs, bool)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new games everywhere, each with its own seed."""
        self._bases = [int(seed) for seed in seeds]
        for count in (self._seeds, self._since_seed, self._game_steps, self._age):
            count[:] = 0
        self._starts_game[:] = self._starts_life[:] = self._starts_life_within_episode[:] = False
        observation, info = self._env.reset(seed=self._seeds_of(self._rows))
        self._frames[:], self._lives[:] = info["episode_frame_number"], info["lives"]
        self._draw(self._rows, np.ones(self.num_envs, bool))
        return self._shaped(observation)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, None]:
        """Step every environment once."""
        over, died = self._starts_game, self._starts_life
        if over.any() or died.any() or self._starts_life_within_episode.any():
            action = np.where(over, _NOOP, np.where(died | self._starts_life_within_episode, self._begin_life, action))
        observation, reward, terminated, _, info = self._step(action)
        began, fresh = over | died, over | (died & terminated)  # in the second case pressing FIRE ended the game
        # The game ended with lives left, and the console has started a new one.
        restarted: np.ndarray = died & (info["episode_frame_number"] < self._frames)
        self._remember(np.where(fresh, action | _RESET, action))
        if fresh.any():
            observation, info = self._begin(np.flatnonzero(fresh))
        self._game_steps += 1
        self._game_steps[fresh | restarted] = 0
        self._age += 1
        self._age[began] = 0
        terminated[began] = False
        reward[began] = 0
        lives = info["lives"]
        lost: np.ndarray = (lives > 0) & (lives < self._lives)
        died = terminated & lost & self._by_life
        self._starts_life_within_episode = ~terminated & lost & self._helps
        truncated: np.ndarray = (self._game_steps >= self._limit) & ~terminated & ~began
        self._starts_game = (terminated & ~died) | truncated | (terminated & (self._game_steps >= self._limit))
        self._starts_life = died & ~self._starts_game
        self._lives[:], self._frames[:] = lives, info["episode_frame_number"]
        self._draw(action, fresh)
        for row in np.flatnonzero(self._age < self._options.stack_num - 1):
            observation[row, : self._options.stack_num - 1 - self._age[row]] = 0
        return self._shaped(observation), reward.astype(np.float32), terminated, truncated, None

    def render(self) -> list[np.ndarray]:
        """The screen of each console, uint8 [H, W, 3], if made with `render=True`."""
        return [screen.rgb() for screen in self._screens]

    def state(self) -> dict[str, Any]:
        """Seeds and actions from which the games can be replayed; see `SavableEnv`."""
        return {
            "bases": self._bases,
            "played": self._played[: self._since_seed.max()],
            **{key: getattr(self, name) for key, name in _STATE.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replay the games: thousands of steps, which take seconds or tens of seconds."""
        if len(state["bases"]) != self.num_envs:
            raise RunError(
                f"the saved state is of {len(state['bases'])} environments per shard, here are {self.num_envs}"
            )
        self._bases = [int(base) for base in state["bases"]]
        for key, name in _STATE.items():
            getattr(self, name)[:] = state[key]
        self._played, played = np.zeros_like(self._played), state["played"]
        self._grow(len(played))
        self._played[: len(played)] = played
        _, info = self._reset(self._rows, self._seeds_of(self._rows))
        for step in range(len(played)):  # environments seeded later start at a later step
            turn = step - (len(played) - self._since_seed)
            action = np.where(turn < 0, _NOOP, played[turn, self._rows].astype(np.int64))
            if step and (turn == 0).any():
                rows = np.flatnonzero(turn == 0)
                self._reset(rows, self._seeds_of(rows))
            *_, info = self._step(action & ~_RESET)
            if (action >= _RESET).any():
                rows = np.flatnonzero(action >= _RESET)
                _, info = self._reset(rows, np.full(len(rows), -1))
        if (self._since_seed == 0).any() and len(played):
            rows = np.flatnonzero(self._since_seed == 0)
            _, info = self._reset(rows, self._seeds_of(rows))
        if (info["episode_frame_number"] != self._frames).any() or (info["lives"] != self._lives).any():
            raise RunError(
                "played again, the games came out differently: another version of ale_py, or other env.kwargs"
            )

    def close(self) -> None:
        """Stop the threads."""
        self._env = None

    def _step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        return self._env.step(np.ascontiguousarray(action, np.int64))

    def _begin(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start new games in `rows`; with a new seed if the last one is old."""
        seeded = self._since_seed[rows] >= self._seed_every
        self._seeds[rows[seeded]] += 1
        self._since_seed[rows[seeded]] = 0
        return self._reset(rows, np.where(seeded, self._seeds_of(rows), -1))

    def _reset(self, rows: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start new games in `rows`; a seed of -1 keeps the generator. Returns observations and info of all rows."""
        mask = np.zeros(self.num_envs, bool)
        mask[rows] = True
        return self._env.reset(seed=seeds, options={"reset_mask": mask})

    def _seeds_of(self, rows: np.ndarray) -> np.ndarray:
        chosen: list[int] = rows.tolist()
        return np.array([stream_seed(self._bases[row], "console", int(self._seeds[row])) for row in chosen])

    def _draw(self, action: np.ndarray, fresh: np.ndarray) -> None:
        """Update the screens; `fresh`: the rows in which a game has just started."""
        for row, screen in enumerate(self._screens):
            frames = int(self._frames[row])
            if fresh[row]:
                screen.begin(stream_seed(self._bases[row], "console", int(self._seeds[row])), frames)
            else:
                screen.follow(int(action[row]), frames)

    def _remember(self, action: np.ndarray) -> None:
        self._grow(int(self._since_seed.max()) + 1)
        self._played[self._since_seed, self._rows] = action
        self._since_seed += 1

    def _grow(self, rows: int) -> None:
        while len(self._played) < rows:
            self._played = np.concatenate([self._played, np.zeros_like(self._played)])

    def _shaped(self, observation: np.ndarray) -> np.ndarray:
        """[B, C, H, W]; colour images arrive as [B, frames, H, W, 3]."""
        if not self._options.grayscale:
            observation = np.moveaxis(observation, -1, 2)
        return observation.reshape(self.num_envs, *self.spec.observation_shape)


def _consoles(game: str, options: AtariOptions, num_envs: int, *, training: bool) -> Any:
    named: dict[str, Any] = asdict(options) | {
        "episodic_life": False,  # would start a new game at each lost life
        "life_loss_info": training and options.episodic_life,
        "reward_clipping": training and options.reward_clipping,
    }
    return AtariVectorEnv(game, num_envs, num_threads=_threads(num_envs), max_num_frames_per_episode=_NO_LIMIT, **named)


def _spec(options: AtariOptions, num_actions: int, limit: int) -> EnvSpec:
    channels = options.stack_num * (1 if options.grayscale else 3)
    return EnvSpec(
        observation_size=channels * options.img_height * options.img_width,
        action=ActionSpec("discrete", (num_actions,)),
        autoreset="next_step",
        separately_seedable=True,
        max_episode_steps=limit,
        image=(channels, options.img_height, options.img_width),
        frames=options.stack_num,
    )


def _threads(num_envs: int) -> int:
    """This rank's part of the host's cores, at most one thread per environment."""
    return max(1, min(num_envs, usable_cores() // World.from_environment().local_size))
