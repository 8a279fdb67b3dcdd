"""Replay buffers whose observations are on a device (`replay_device`): the numbers are those of the host's memory.

A GPU is pretended: see `pretended_device`. `tests/ranks/test_gpu.py` repeats the most important of this on a real one.
"""

from functools import partial

import numpy as np
import pytest
import torch
from films import Film, assert_shown, film_spec

import lockstep
from lockstep.cli import main as cli
from lockstep.errors import ConfigError
from lockstep.experience.replay import Replay
from lockstep.launch import gpus
from lockstep.run import NetworkConfig, Run, override
from lockstep.torch import device_rows
from lockstep.torch.comm import Comm
from lockstep.torch.device_rows import DeviceRows, observation_storage
from lockstep.world import stream
from pretended_device import PretendedDevice
from small_learners import DISCRETE, ENVS, SHARDS, STATED_WAITS, make, values

pytestmark = pytest.mark.slow

GAMMA = 0.9
REPLAYED = [case for case, (name, _, _) in STATED_WAITS.items() if name in ("dqn", "sac", "td3")]
RUN = Run(task="t", algo="dqn", num_envs=SHARDS * ENVS, num_shards=SHARDS)


@pytest.fixture
def room(monkeypatch):
    """Returns a function that sets the free memory of the pretended GPU; None is a CPU."""

    def set_free(num_bytes):
        monkeypatch.setattr(device_rows, "free_memory", lambda device: num_bytes)

    set_free(1 << 30)
    return set_free


def copied(state):
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state


@pytest.mark.parametrize("case", REPLAYED)
def test_updates_have_the_same_bits_and_wait_only_where_stated(room, tmp_path, case):
    name, config, expected = STATED_WAITS[case]
    with PretendedDevice() as device:
        one = make(name, tmp_path, config=config)
        assert one.learner.storage.make_rows is not None
        for number in range(6):
            device.waits.clear()
            one.update(number)
        assert dict(device.waits) == expected
        found = values(one.learner)
    room(None)
    host = make(name, tmp_path, config=config)
    assert host.learner.storage.make_rows is None
    for number in range(6):
        host.update(number)
    for key, value in values(host.learner).items():
        assert torch.equal(value, found[key]), key


@pytest.mark.parametrize("case", ["dqn", "dqn, prioritized", "sac"])
@pytest.mark.parametrize(("before", "after"), [(None, 1 << 30), (1 << 30, None), (1 << 30, 1 << 30)])
def test_a_checkpoint_continues_wherever_observations_are_stored(room, tmp_path, case, before, after):
    name, config, _ = STATED_WAITS[case]
    room(before)
    first = make(name, tmp_path, config=config)
    for number in range(3):
        first.update(number)
    room(after)
    second = make(name, tmp_path, config=config)
    for key, tensor in second.learner.shared_tensors().items():
        tensor.copy_(first.learner.shared_tensors()[key])
    for k in range(SHARDS):
        second.learner.restore_shard(k, copied(first.learner.shard_state(k)))
    for number in range(3, 6):
        first.update(number)
        second.update(number)
    found = values(second.learner)
    for key, value in values(first.learner).items():
        assert torch.equal(value, found[key]), key


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_samples_are_what_the_environment_showed(autoreset, image):
    """Stacks are made on the device, with zeros before an episode's first frame."""
    film = Film(film_spec(autoreset, image=image))
    device = torch.device("cpu")
    with PretendedDevice() as pretended:
        options = {"n_step": 3, "gamma": GAMMA, "prioritized": True}
        one = Replay(film.spec, 3, 60, **options, make_rows=partial(DeviceRows, device=device))
        host = Replay(film.spec, 3, 60, **options)
        first = film.reset([])
        for replay in (one, host):
            replay.begin(first)
        pretended.waits.clear()
        draws = [stream(0, "sample"), stream(0, "sample")]
        for step in range(300):
            action = film.random.integers(3, size=3)
            observation, reward, terminated, truncated, final = film.step(action)
            for replay in (one, host):
                replay.add(action, reward, terminated, truncated, observation, final)
            if step < 15:
                continue
            drawn = [replay.sample(4, draw) for replay, draw in zip((one, host), draws, strict=True)]
            assert not pretended.waits
            for name in drawn[0].__slots__:
                found = getattr(drawn[0], name)
                if isinstance(found, torch.Tensor):
                    assert pretended.holds(found)
                    found = found.cpu().numpy()
                np.testing.assert_array_equal(found, getattr(drawn[1], name))
            pretended.waits.clear()
        assert_shown(film, drawn[1], 3, GAMMA)
        state = one.state()
        for name, array in host.state().items():
            np.testing.assert_array_equal(state[name], array)


def test_a_run_ends_with_the_same_parameters(room, tmp_path, capsys):
    """A whole run, also one that was resumed with another choice."""
    run = Run(task="CartPole-v1", algo="dqn", num_envs=8, total_steps=480, network=NetworkConfig(hidden=(8,)))
    run = override(run, {"num_steps": 4, "learning_starts": 64, "capacity": 256, "checkpoint_every": 240})
    run = override(run, {"evaluate_every": None, "evaluate_episodes": 1, "stop_when_solved": False})
    on_device = lockstep.train(run, run_dir=tmp_path / "device")
    line = next(line for line in capsys.readouterr().out.splitlines() if "replay:" in line)
    assert "replay_device=auto" in line and "GPU's memory" in line
    room(None)
    assert lockstep.train(run, run_dir=tmp_path / "host")["params_fingerprint"] == on_device["params_fingerprint"]
    line = next(line for line in capsys.readouterr().out.splitlines() if "replay:" in line)
    assert "replay_device" not in line


class TestDecision:
    """Where observations are stored, with the reason that is logged."""

    def decide(self, changes):
        return observation_storage(override(RUN, changes), DISCRETE, Comm(device="cpu"))

    def test_auto_takes_the_gpu_where_they_fit_into_half_of_its_free_memory(self, room):
        # 2 environments' rings of 50 + 1 + 1 rows of 3 floats each, and as many for the other shard.
        needed = 8 * 52 * 3 * 4
        changes = {"capacity": "400", "num_shards": "1"}
        room(2 * needed)
        assert self.decide(changes).make_rows is not None
        room(2 * needed - 1)
        storage = self.decide(changes)
        assert storage.make_rows is None
        assert "more than 50%" in storage.decision

    def test_the_host_where_it_was_chosen(self, room):
        for changes in ({"replay_device": "cpu"}, {"replay_path": "/tmp"}):
            assert self.decide(changes) == (None, "")

    def test_a_gpu_that_is_too_small_is_refused_with_what_would_fit(self, room):
        room(10_000)
        with pytest.raises(
            ConfigError, match=r"replay_device=cuda needs 1\.2 MB .*capacity=100000.*replay_device=auto"
        ):
            self.decide({"replay_device": "cuda"})
        room(1 << 30)
        assert self.decide({"replay_device": "cuda"}).make_rows is not None

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            ([], "there is no GPU"),
            (["--device", "cpu"], "device=cpu"),
            (["--ml-framework", "jax"], "no GPU that jax can use"),
        ],
    )
    def test_cuda_without_a_gpu_is_refused_before_the_start(self, monkeypatch, capfd, tmp_path, words, reason):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(gpus, "installed_gpus", lambda framework="torch": 0)
        assert cli.main(["train", "CartPole-v1", "--algo", "dqn", "--set", "replay_device=cuda", *words]) == 2
        (line,) = capfd.readouterr().err.strip().splitlines()
        assert "replay_device=cuda" in line and reason in line and "replay_device=auto" in line
        assert not [*tmp_path.iterdir()]

    def test_ranks_without_a_gpu_refuse_it_too(self, tmp_path):
        with pytest.raises(ConfigError, match="replay_device=cuda, but there is no GPU"):
            make("dqn", tmp_path, config={"replay_device": "cuda"})
