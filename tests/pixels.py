"""Observations of four stacked frames, as Atari games have them after preprocessing."""

from lockstep.envs.spec import ActionSpec, EnvSpec

PIXELS = EnvSpec(4 * 84 * 84, ActionSpec("discrete", (6,)), "same_step", True, image=(4, 84, 84), frames=4)
