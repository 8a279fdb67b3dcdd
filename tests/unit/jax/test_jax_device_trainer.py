"""SAC and TD3 with environments on the device: what is refused and said before and between the compiled calls."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("jax")

import jax.numpy as jnp

import lockstep
from lockstep.algorithms.sac import SACConfig
from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError
from lockstep.jax import actor_critic_on_device as module
from lockstep.jax.batch import Steps
from lockstep.jax.device_shard import checksum
from lockstep.run import NetworkConfig, Run


def run_of(learning_starts=1 << 20, **settings):
    config = SACConfig(learning_starts=learning_starts, updates_per_step=2, capacity=1 << 10, batch_size=8)
    periods = {"log_every": 64, "evaluate_every": None, "checkpoint_every": None, "num_shards": 2}
    return Run(
        task="lockstep/Cartpole-v0", algo="sac", ml_framework="jax", num_envs=4, total_steps=64, algorithm=config,
        network=NetworkConfig(hidden=(8,)), env=EnvConfig(clip_action=1.0), evaluate_episodes=2, **periods, **settings,
    )  # fmt: skip


def test_buffers_and_their_copies_for_a_checkpoint_must_fit_into_memory(tmp_path, monkeypatch):
    found = []
    for memory in (1 << 20, 60_000):
        monkeypatch.setattr(module, "usable_memory", lambda memory=memory: memory)
        try:
            lockstep.train(run_of(), run_dir=tmp_path / str(memory))
        except ConfigError as error:
            found.append(str(error))
    (text,) = found
    assert "algorithm.capacity=1024 needs" in text and "of this host's memory" in text
    assert text.endswith("or less or algorithm.checkpoint_replay=false or env.placement=host")
    fitting = int(text.partition("use algorithm.capacity=")[2].split()[0])
    assert 0 < fitting < 1024 and fitting % 2 == 0


@pytest.mark.parametrize(
    ("of_device", "of_host", "saved", "where", "ways"),
    [
        (None, 10_000, True, "of this host's memory", "or less or env.placement=host"),
        (None, 10_000, False, "of this host's memory", "or less or env.placement=host"),
        (10_000, 1 << 20, True, "of each GPU's memory", "or less or env.placement=host"),
        (60_000, 1 << 20, True, "of each GPU's memory", "or algorithm.checkpoint_replay=false or env.placement=host"),
        (1 << 20, 60_000, True, "of this host's memory", "or algorithm.checkpoint_replay=false or env.placement=host"),
    ],
)
def test_the_memory_that_is_short_is_named_with_what_helps(
    of_device, of_host, saved, where, ways, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "free_memory", lambda device: of_device)
    monkeypatch.setattr(module, "usable_memory", lambda: of_host)
    run = run_of()
    run = replace(run, algorithm=replace(run.algorithm, checkpoint_replay=saved))
    with pytest.raises(ConfigError, match=r"algorithm\.capacity=1024 needs") as caught:
        lockstep.train(run, run_dir=tmp_path / "run")
    assert f" {where} for environments on the device, and " in str(caught.value)
    assert str(caught.value).endswith(ways)


def test_what_will_not_work_well_is_said(tmp_path, capfd):
    lockstep.train(run_of(), run_dir=tmp_path / "run")
    said = capfd.readouterr()
    assert "2 environments in a shard" in said.out + said.err
    assert "learning_starts=1048576 is beyond total_steps=64: nothing will be learned" in said.out + said.err


def test_a_run_that_has_little_time_to_learn_is_warned(tmp_path, capfd):
    for starts, warned in ((40, True), (32, False)):
        lockstep.train(run_of(learning_starts=starts), run_dir=tmp_path / str(starts))
        said = capfd.readouterr()
        assert (f"learning_starts={starts} of total_steps=64: the agent learns only" in said.out + said.err) == warned


def test_an_update_of_many_gradient_steps_is_several_calls_with_the_same_bits(tmp_path, monkeypatch):
    """The watch for stalls sees a rank only between calls."""
    found = {}
    for most in (1000, 3):  # 8 steps an update
        monkeypatch.setattr(module, "_MAX_STEPS", most)
        run_dir = tmp_path / str(most)
        summary = lockstep.train(run_of(learning_starts=16, non_finite="stop"), run_dir=run_dir)
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        kept = {name: value for name, value in lines[-1].items() if not name.startswith("time")}
        found[most] = summary["params_fingerprint"], kept
    assert found[3][0] == found[1000][0]
    assert found[3][1] == pytest.approx(found[1000][1])
    assert found[3][1]["optim/learning_rate"] > 0


@pytest.mark.parametrize(("seconds", "most"), [(5.0, 4), (100.0, 1), (1e-4, 1000)])
def test_calls_of_slow_gradient_steps_are_short_for_the_watch(seconds, most):
    """A healthy run with large minibatches was ended as stalled: a call took 1000 steps, whatever they cost."""
    loop = object.__new__(module.ReplayDeviceLoop)
    loop._timed, loop._most_steps = False, 64
    loop._run = SimpleNamespace(timeout_s=10.0)
    loop._comm = SimpleNamespace(gather_object=lambda value, _: [0.0, value])
    loop._time_first(0, 100.0)
    assert loop._most_steps == 64, "the call took no gradient step"
    loop._time_first(10, seconds)
    loop._time_first(10, 1.0)
    assert loop._most_steps == most


def test_shards_of_a_deterministic_task_differ_by_their_noise():
    """Of decided actions in equal states the drawn noise alone tells that two shards do not draw the same."""
    rows = jnp.ones((3, 2, 1))
    steps = Steps(rows, *(rows[..., 0] for _ in range(7)))
    assert checksum(steps, rows * 0.25) != checksum(steps, rows * 0.5)
