"""When an update makes the host wait for the device: where `STATED_WAITS` says so, and nowhere else.

A GPU is pretended: see `pretended_device`. `tests/ranks/test_gpu.py` repeats this on a real one.
"""

from unittest import mock

import numpy as np
import pytest
import torch

from lockstep.torch.networks import Policy, TorchActor
from lockstep.torch.transfer import StagingBuffers
from pretended_device import PretendedDevice
from quick import others_slow
from small_learners import CONTINUOUS, NETWORK, STATED_WAITS, make, values

slow = pytest.mark.slow
to_device_of_staging = StagingBuffers.to_device


def update(one, count=3):
    for number in range(count):
        one.update(number)


@pytest.mark.parametrize("case", others_slow(STATED_WAITS, "ppo", "dqn", "sac", "offline dqn"))
def test_update_waits_only_where_stated(tmp_path, case):
    name, config, expected = STATED_WAITS[case]
    with PretendedDevice() as device:
        one = make(name, tmp_path, config=config)
        update(one, 2)
        device.waits.clear()
        one.update(2)
        waits = dict(device.waits)
        found = values(one.learner)
    assert waits == expected
    plain = make(name, tmp_path, config=config)
    update(plain)
    for key, value in values(plain.learner).items():
        assert torch.equal(value, found[key]), key


@slow
def test_skipped_steps_are_not_waited_for(tmp_path):
    """With `non_finite=skip` not even the end of an update waits."""
    with PretendedDevice() as device:
        for name in ("ppo", "dqn", "sac", "td3"):
            one = make(name, tmp_path, non_finite="skip")
            one.update(0)
            device.waits.clear()
            one.update(1)
            assert not {key for key in device.waits if "bool" in key}, name


@slow
def test_acting_for_all_shards_copies_once_to_the_device_and_once_back():
    policy = Policy(CONTINUOUS, NETWORK, seed=1)
    seen = np.random.default_rng(0).standard_normal((2, 4, 3), dtype=np.float32)
    expected = [TorchActor(policy, torch.device("cpu"))(part) for part in seen]
    with PretendedDevice() as device, mock.patch.object(StagingBuffers, "to_device", autospec=True) as to_device:
        to_device.side_effect = to_device_of_staging
        actor = TorchActor(policy.to(torch.device("cpu")), torch.device("cpu"))
        device.waits.clear()
        found = actor(seen)
    assert to_device.call_count == 1
    assert dict(device.waits) == {"StagingBuffers.to_host: cpu": 1}
    assert np.array_equal(found, expected)


@slow
def test_staging_uses_the_same_memory_again(monkeypatch):
    """A GPU's branch, with ordinary memory and nothing to wait for."""
    waits, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, *, dtype, pin_memory: empty(shape, dtype=dtype))
    stream = mock.Mock(synchronize=lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    staging = StagingBuffers(torch.device("cpu"))
    staging._device = mock.MagicMock(type="cuda")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, non_blocking: tensor.clone())
    for number in range(3):
        array = np.full((2, 3), number, np.float32)
        there = staging.to_device(array)
        back = staging.to_host(there)
        assert np.array_equal(back, array) and not np.shares_memory(back, array)
    assert len(staging._page_locked) == 2 and len(waits) == 3


class TestPretendedDevice:
    """The device refuses what a GPU refuses, and sees every read."""

    def test_reads_are_recorded(self):
        with PretendedDevice() as device:
            tensor = torch.ones(3, device=torch.device("cpu"))
            reads = [
                lambda: float(tensor[0]),
                lambda: tensor[0].item(),
                lambda: tensor.tolist(),
                lambda: bool(tensor.any()),
                lambda: tensor.cpu(),
                lambda: tensor.to("cpu"),
                lambda: tensor.nonzero(),
                lambda: tensor[tensor > 0],
                lambda: torch.ones(3).copy_(tensor),
                lambda: torch.tensor(1.0, device=torch.device("cpu")),
                lambda: torch.ones(3).to(torch.device("cpu")),
            ]
            for number, read in enumerate(reads, 1):
                read()
                assert sum(device.waits.values()) == number, number
            torch.ones(3).to(torch.device("cpu"), non_blocking=True)
            tensor.add_(1.0).sum()
        assert sum(device.waits.values()) == len(reads)

    def test_devices_do_not_mix(self):
        with PretendedDevice():
            tensor = torch.ones(3, device=torch.device("cpu"))
            with pytest.raises(RuntimeError, match="mixes tensors"):
                tensor + torch.ones(3)
            with pytest.raises(TypeError, match="pretended device"):
                tensor.numpy()
            assert (tensor + torch.tensor(1.0)).tolist() == [2.0] * 3

    def test_copies_have_their_own_memory(self):
        with PretendedDevice():
            host = torch.zeros(3)
            moved = host.to(torch.device("cpu"))
            host += 1
            assert moved.tolist() == [0.0] * 3
            assert moved.cpu().add_(1.0).tolist() == [1.0] * 3
            assert moved.tolist() == [0.0] * 3
