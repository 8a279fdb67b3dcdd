"""A game that takes its time as long as a file is there: what happens meanwhile happens in the middle of a run."""

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from my_env import MyVectorEnv  # found by the line above

STEP_S = 0.02


class Paced(MyVectorEnv):
    """The example's game; `slow_while`: the file."""

    def __init__(self, num_envs: int, slow_while: str) -> None:
        super().__init__(num_envs)
        self.slow_while = Path(slow_while)

    def step(self, action):
        if self.slow_while.exists():
            time.sleep(STEP_S)
        return super().step(action)
