"""The replay buffers of a rank's shards."""

from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import World
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.memory import format_bytes
from lockstep.experience.rollout import NonFiniteValue, Rollout
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.gradient_schedule import GradientSchedule
from lockstep.session.host_checks import bytes_of_host
from lockstep.session.run_state import RunState
from lockstep.session.shard_replays import ShardReplays, announce_replay, importance_weights

SPEC = EnvSpec(3, ActionSpec("continuous", (2,), (-1.0,) * 2, (1.0,) * 2), "same_step", True)
WORLD = World().with_shards(2)


class Alone:
    """The `Comm` of a rank that is the only one."""

    world = WORLD

    def gather_object(self, value, tag):
        return [value]

    def sum_statistics(self, rows, tag):
        return rows.sum(0)


def run_of(**settings):
    return Run(task="any", algo="sac", num_envs=8, algorithm=SACConfig(capacity=10_000, **settings), seed=3)


def test_importance_exponent_rises_with_the_run():
    config = DQNConfig(prioritized=True, importance_exponent=0.5)
    found = importance_weights(config, np.array([0.25, 0.125]), size=16, fraction=0.5)  # beta 0.75, N P = 4 and 2
    np.testing.assert_allclose(found, [4**-0.75, 2**-0.75], rtol=1e-6)
    assert found.dtype == np.float32


def test_uniform_replay_has_weights_of_one():
    assert importance_weights(DQNConfig(), np.array([0.25, 0.125]), 16, 0.5).tolist() == [1.0, 1.0]


def test_noise_of_gradient_steps_is_standard_normal():
    shards = ShardReplays(run_of(batch_size=8000), SPEC, Alone())
    first, second = shards.noise(2, 3), shards.noise(2, 3)
    assert [part.shape for part in first] == [(4000, 2, 3)] * 2
    for part in (*first, *second):
        assert part.dtype == np.float32
        np.testing.assert_allclose(part.mean(0), 0.0, atol=0.08)
        np.testing.assert_allclose(part.std(0), 1.0, atol=0.05)
        assert (part**4).mean() == pytest.approx(3.0, abs=0.3), "not of a normal distribution"
    draws = np.stack([part.ravel() for part in (*first, *second)])
    np.testing.assert_allclose(np.corrcoef(draws), np.eye(4), atol=0.04, err_msg="two parts share noise")


def test_the_memory_of_a_checkpoint_s_copy_is_told(tmp_path):
    told, files = [], {"replay_path": str(tmp_path)}
    journal = SimpleNamespace(say=told.append)
    for settings in ({}, files, {"checkpoint_replay": False}):
        announce_replay(journal, run_of(**settings), SPEC, WORLD)
    sizes = [format_bytes(bytes_of_host(run_of(**files), SPEC, WORLD, mapped=mapped)) for mapped in (False, True)]
    assert f"{sizes[0]} of memory on this host, as much again for the copy" in told[0]
    assert f"{sizes[1]} of memory on this host, {sizes[0]} more for the copy that checkpoints take, " in told[1]
    assert "copy" not in told[2]


@pytest.mark.parametrize(("num_critics", "count"), [(10, 2), (4, 3)])
def test_every_critic_is_as_often_a_target(num_critics, count):
    schedule, other = (GradientSchedule(run_of(), WORLD) for _ in range(2))
    chosen = Counter()
    for step in range(400):
        schedule.gradient_steps = other.gradient_steps = step
        critics = schedule.target_critics(num_critics, count).tolist()
        assert critics == sorted(set(critics)) and len(critics) == count
        assert schedule.target_critics(num_critics, count).tolist() == critics, "another draw of the same step"
        assert other.target_critics(num_critics, count).tolist() == critics, "another draw on another rank"
        chosen.update(critics)
    assert sorted(chosen) == list(range(num_critics))
    np.testing.assert_allclose(np.array(list(chosen.values())) / 400, count / num_critics, atol=0.08)


def shard_of_one_state(reward, fault=None):
    """A rollout of two steps in an environment whose observation never changes."""
    no, ones = np.zeros((2, 4), bool), np.ones((2, 4), np.float32)
    seen, action = np.ones((3, 4, 3), np.float32), np.zeros((2, 4, 2), np.float32)
    return Rollout(seen, action, reward * ones, no, no, ones, [], fault)


@pytest.mark.parametrize("gap", ["skipped", "resumed", None])
def test_no_return_crosses_a_gap_between_rollouts(gap):
    """A rollout that was left out, or a resumption in new episodes, separates two; the observations do not show it."""
    run, progress = run_of(n_step=2), Progress(1000)
    shards = ShardReplays(run, SPEC, Alone())
    fault = NonFiniteValue(0, 0, "a reward", np.nan)

    def extend(*arguments):
        shards.extend([shard_of_one_state(*arguments)] * 2, np.zeros((2, 0)), progress)

    extend(1.0)
    if gap == "skipped":
        extend(10.0, fault)
    elif gap == "resumed":
        learner = SimpleNamespace(shared_arrays=dict, load_shared=dict, restore_shard=shards.restore_shard)
        saved = {k: {"learner": shards.shard_state(k), "collector": {}, "episodes": None} for k in range(2)}
        journal = SimpleNamespace(restore=id, episodes=[SimpleNamespace(restore=id)] * 2)
        new_episodes = SimpleNamespace(restore_shard=lambda k, state, step: False)
        state = RunState(WORLD, learner, new_episodes, journal, progress)
        shared = {"tensors": {}, "progress": asdict(progress), "journal": None}
        assert not state.restore(shared, saved)
    extend(100.0)
    returns = {round(float(value)) for value in shards.buffers[1].sample(300, shards.streams[1]).return_}
    across = 1 + round(0.99 * 100)
    assert (across in returns) == (gap is None), returns
