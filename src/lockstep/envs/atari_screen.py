"""The rendered screen of a game, from a second console with the same cartridge, seed and actions."""

from typing import Any

import ale_py
import numpy as np
from ale_py import roms

from lockstep.envs.atari_options import AtariOptions
from lockstep.errors import RunError


class Screen:
    """Mirrors one game of `AtariEnvs`, which returns only preprocessed observations."""

    def __init__(self, rom: str, options: AtariOptions) -> None:
        """A console with the game `rom`."""
        self._rom, self._options = roms.get_rom_path(rom), options
        self._console: Any = ale_py.ALEInterface()
        self._console.setLoggerMode(ale_py.LoggerMode.Error)
        self._console.setFloat("repeat_action_probability", options.repeat_action_probability)
        self._actions: list[Any] = []

    def begin(self, seed: int, frames: int) -> None:
        """Start the game seeded with `seed` and advance it to frame `frames`."""
        console = self._console
        console.setInt("random_seed", seed)
        console.loadROM(self._rom)
        full = self._options.full_action_space
        self._actions = console.getLegalActionSet() if full else console.getMinimalActionSet()
        console.reset_game()
        if self._options.use_fire_reset and ale_py.Action.FIRE in self._actions:
            console.act(ale_py.Action.FIRE)
        while console.getEpisodeFrameNumber() < frames and not console.game_over():
            console.act(ale_py.Action.NOOP)
        self._compare(frames)

    def follow(self, action: int, frames: int) -> None:
        """Take `action`, after which the game is at frame `frames`."""
        for _ in range(self._options.frameskip):
            self._console.act(self._actions[action])
            if self._console.game_over():
                break
        self._compare(frames)

    def rgb(self) -> np.ndarray:
        """The screen, uint8 [H, W, 3]."""
        return self._console.getScreenRGB()

    def _compare(self, frames: int) -> None:
        if self._console.getEpisodeFrameNumber() != frames:
            raise RunError(
                f"the picture shows frame {self._console.getEpisodeFrameNumber()} of the game, which is at {frames}"
            )
