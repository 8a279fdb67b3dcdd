"""SAC and TD3 that are resumed without their replay buffer, on the host and on the device: which actions fill the new
one."""

from pathlib import Path

import jax
import pytest

import lockstep
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.env import EnvConfig
from lockstep.experience.exploration import UniformStart
from lockstep.jax.device_transitions import TransitionRollout
from lockstep.run import NetworkConfig, Run

CONFIGS = {"sac": SACConfig, "td3": TD3Config}


def run_of(algo: str, placement: str, total_steps: int) -> Run:
    """Rollouts of 4 steps; learning begins at step 16."""
    config = CONFIGS[algo](
        learning_starts=16, updates_per_step=0.25, capacity=64, batch_size=8, checkpoint_replay=False
    )
    return Run(
        task="lockstep/Cartpole-v0", algo=algo, ml_framework="jax", num_envs=4, num_shards=1, total_steps=total_steps,
        algorithm=config, network=NetworkConfig(hidden=(8,)), env=EnvConfig(clip_action=1.0, placement=placement),
        evaluate_every=None, log_every=16,
    )  # fmt: skip


@pytest.fixture
def rollouts(monkeypatch) -> list[bool]:
    """Whether the actions of each rollout are random."""
    found: list[bool] = []
    draw_noise, rollout = UniformStart.draw_noise, TransitionRollout.rollout

    def on_host(self, generator, shape):
        found.append(self.random)
        return draw_noise(self, generator, shape)

    def on_device(self, actor, shard, update, random):
        jax.debug.callback(lambda one: found.append(bool(one)), random)
        return rollout(self, actor, shard, update, random)

    monkeypatch.setattr(UniformStart, "draw_noise", on_host)
    monkeypatch.setattr(TransitionRollout, "rollout", on_device)
    return found


@pytest.mark.parametrize(
    ("first_steps", "expected"),
    [(8, [True] * 4 + [False] * 2), (24, [False] * 6)],
    ids=["before it has learned", "after"],
)
@pytest.mark.parametrize(("algo", "placement"), [("sac", "host"), ("td3", "host"), ("sac", "device")])
def test_only_a_run_that_has_not_learned_acts_randomly(
    algo: str, placement: str, first_steps: int, expected: list[bool], tmp_path: Path, rollouts: list[bool]
):
    lockstep.train(run_of(algo, placement, first_steps), run_dir=tmp_path / "run")
    jax.effects_barrier()
    rollouts.clear()
    lockstep.train(resume=tmp_path / "run", total_steps=first_steps + 24)
    jax.effects_barrier()
    assert rollouts == expected
