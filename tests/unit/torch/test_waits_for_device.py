"""When an update makes the host wait for the device: where `STATED_WAITS` says so, and nowhere else.

A GPU is pretended: see `pretended_device`. `tests/ranks/test_gpu.py` repeats this on a real one.
"""

import pytest
import torch

from pretended_device import PretendedDevice
from small_learners import STATED_WAITS, make, values

pytestmark = pytest.mark.slow


def update(one, count=3):
    for number in range(count):
        one.update(number)


@pytest.mark.parametrize("case", STATED_WAITS)
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


def test_skipped_steps_are_not_waited_for(tmp_path):
    """With `non_finite=skip` not even the end of an update waits."""
    with PretendedDevice() as device:
        for name in ("ppo", "dqn", "sac", "td3"):
            one = make(name, tmp_path, non_finite="skip")
            one.update(0)
            device.waits.clear()
            one.update(1)
            assert not {key for key in device.waits if "bool" in key}, name


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
