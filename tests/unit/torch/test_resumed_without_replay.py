"""SAC and TD3 that are resumed without their replay buffer: which actions fill the new one."""

from pathlib import Path

import pytest

import lockstep
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.experience.exploration import UniformStart
from lockstep.run import NetworkConfig, Run

CONFIGS = {"sac": SACConfig, "td3": TD3Config}


def run_of(algo: str, total_steps: int) -> Run:
    """Rollouts of 4 steps; learning begins at step 16."""
    config = CONFIGS[algo](
        learning_starts=16, updates_per_step=0.25, capacity=64, batch_size=8, checkpoint_replay=False
    )
    return Run(
        task="Pendulum-v1", algo=algo, num_envs=4, num_shards=1, total_steps=total_steps, algorithm=config,
        network=NetworkConfig(hidden=(8,)), evaluate_every=None, log_every=16,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first_steps", "expected"),
    [(8, [True] * 4 + [False] * 2), (24, [False] * 6)],
    ids=["before it has learned", "after"],
)
@pytest.mark.parametrize("algo", CONFIGS)
def test_only_a_run_that_has_not_learned_acts_randomly(
    algo: str, first_steps: int, expected: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found: list[bool] = []
    draw_noise = UniformStart.draw_noise

    def observed(self, generator, shape):
        found.append(self.random)
        return draw_noise(self, generator, shape)

    lockstep.train(run_of(algo, first_steps), run_dir=tmp_path / "run")
    monkeypatch.setattr(UniformStart, "draw_noise", observed)
    lockstep.train(resume=tmp_path / "run", total_steps=first_steps + 24)
    assert found == expected
