"""Phases measured on a device that does its work later than the host queues it."""

import pytest

from lockstep.distributed.timers import ACT, ENV, LEARN, OTHER, Timers


class Device:
    """Does queued work in order; events are reached when all work before them is done."""

    def __init__(self):
        self.now = 100.0
        self.free_at = 0.0
        self.num_events = 0

    def queue(self, seconds):
        self.free_at = max(self.now, self.free_at) + seconds

    def event(self):
        self.num_events += 1
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device
        self.at = None

    def record(self):
        self.at = max(self.device.now, self.device.free_at)

    def query(self):
        return self.device.now >= self.at

    def elapsed_time(self, end_event):
        assert self.query() and end_event.query(), "the device has not reached both events"
        return (end_event.at - self.at) * 1e3


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def timers(device):
    made = Timers()
    made.use_events(device.event)
    made.restart()
    return made


def spent(timers):
    return {name: seconds for name, seconds in timers.read().items() if seconds}


def test_work_counts_for_the_phase_that_queued_it(timers, device):
    timers.enter(LEARN)
    device.queue(5.0)
    device.now += 0.5  # the host has queued it
    timers.enter(ENV)
    device.now += 8.0  # the host steps environments; the device has nothing to do in the last 3.5 s
    timers.enter(ACT)
    device.queue(1.0)
    device.now += 1.0
    timers.enter(OTHER)
    assert spent(timers) == pytest.approx({"learn": 5.0, "env": 3.5, "act": 1.0})


def test_what_the_device_has_not_finished_is_counted_later(timers, device):
    timers.enter(LEARN)
    device.queue(5.0)
    timers.enter(ENV)
    assert spent(timers) == {}
    device.now += 6.0
    assert spent(timers) == pytest.approx({"learn": 5.0, "env": 1.0})


def test_a_restart_leaves_out_what_was_queued_before(timers, device):
    timers.enter(LEARN)
    device.queue(5.0)
    timers.restart()
    device.now += 7.0
    assert spent(timers) == pytest.approx({"learn": 2.0})


def test_heartbeats_and_many_updates_need_few_events(timers, device):
    for update in range(100):
        for phase in (LEARN, LEARN, LEARN, ENV):
            timers.enter(phase)
            device.queue(0.1)
            device.now += 0.1
        timers.updated(update)
    assert device.num_events < 10
    assert sum(spent(timers).values()) == pytest.approx(40.0)


def test_the_heartbeat_is_the_hosts(timers, device):
    """Other ranks see in which phase the host is, whatever the device does."""
    device.queue(1000.0)
    timers.enter(ENV)
    assert timers.row[0] == ENV
