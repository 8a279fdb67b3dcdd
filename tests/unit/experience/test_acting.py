"""States of recurrent actors: kept through an episode, and 0 where the next one begins."""

from typing import Any

import numpy as np
import pytest

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.acting import ActorWithState
from lockstep.experience.evaluate import play


class StepCounter:
    """An actor whose state is the number of observations of the episode."""

    state_size = 1

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return observation, state + 1


class Numbered:
    """Episodes of 3 and 5 steps. The observation is the number of steps of the episode."""

    num_envs = 2

    def __init__(self, autoreset: Any) -> None:
        self.spec = EnvSpec(1, ActionSpec("discrete", (2,)), autoreset, True)
        self.lengths = np.array([3, 5])

    def reset(self, seeds: list[int]) -> np.ndarray:
        self.age = np.zeros(2)
        return self.observe()

    def observe(self) -> np.ndarray:
        return self.age[:, None].astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        same_step = self.spec.autoreset == "same_step"
        resets = ~np.ones(2, bool) if same_step else self.age >= self.lengths
        self.age = np.where(resets, 0, self.age + 1)
        final, ended = self.observe(), self.age >= self.lengths
        if same_step:
            self.age[ended] = 0
        return self.observe(), np.ones(2, np.float32), ended, ~np.ones(2, bool), final if same_step else None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_evaluation_resets_the_state_where_an_episode_begins(autoreset):
    env, actor = Numbered(autoreset), ActorWithState(StepCounter(), (2,))

    def choose(observation: np.ndarray) -> np.ndarray:
        actor(observation)
        assert (actor.state == observation + 1).all(), "state of another episode"
        return np.zeros(2, np.int64)

    found = play(env, choose, 6, [0, 1], lambda: None, actor)
    assert sorted(found.lengths) == [3] * 3 + [5] * 3


def test_actor_without_recurrent_layers_has_an_empty_state():
    actor = ActorWithState(lambda observation: 2 * observation, (4,))
    assert not actor.is_recurrent
    assert actor.state.shape == (4, 0)
    np.testing.assert_array_equal(actor(np.ones((4, 3))), np.full((4, 3), 2.0))
