"""What the tests of seams are made of, whatever the framework: hand-made rollouts, and worlds to try them in."""

import os
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep import World, stream
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout

STEPS, ENVS, SIZE = 16, 4, 3  # of one shard; SIZE numbers in an observation
SPEC = EnvSpec(SIZE, ActionSpec("discrete", (3,)), "next_step", True)
BOUND_S = 5.0
FAR = 2346.18  # squares of such numbers lose the digits of a variance


def make_rollout(shard: int, unlike: float = 1.0, far: float = 0.0) -> Rollout:
    """A hand-made rollout; those of shard 1 see larger numbers, are paid otherwise, and have more rows of weight 0.

    Observations are `far` from 0, and if they are, their second number is always the same.
    """
    draw = stream(0, "seam", shard)
    ended = draw.random((STEPS, ENVS)) < (0.1 if shard == 0 else 0.4)
    weight = np.ones((STEPS, ENVS), np.float32)
    weight[1:][ended[:-1]] = 0.0
    observation = draw.standard_normal((STEPS + 1, ENVS, SIZE), dtype=np.float32) * np.float32(1 + unlike * shard)
    if far:
        observation += np.float32(far)
        observation[..., 1] = far
    reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32) * np.float32(1 + 9 * unlike * shard) + 3 * shard
    terminated = ended & (draw.random((STEPS, ENVS)) < 0.7)
    action = draw.integers(0, 3, (STEPS, ENVS))
    return Rollout(observation, action, reward * weight, terminated, ended, weight, [])


def run_listed(seams: Sequence[Any], rank: int, ports: dict[str, int], folder: str) -> dict[str, Any]:
    """Each named seam in a world of its own, so that a broken one spoils no other; an error is told as text."""
    found: dict[str, Any] = {}
    for seam in seams:
        name = seam.__name__
        if name in ports:
            world = World(rank=rank, size=int(os.environ["WORLD_SIZE"]), address="127.0.0.1", port=ports[name])
            place = os.path.join(folder, name)
            os.makedirs(place, exist_ok=True)
            try:
                found[name] = seam(world, os.path.join(place, "run"))
            except Exception as error:
                traceback.print_exc()
                found[name] = f"{type(error).__name__}: {error}"
    return found
