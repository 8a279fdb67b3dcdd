"""The cost model: what each price is paid for, and what it says of more ranks and hosts."""

from dataclasses import replace

import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.distributed.network.links import in_slices
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import (
    Costs,
    Layout,
    Work,
    amounts_of,
    compare,
    exchange,
    fit_call_and_row_cost,
    measured,
    predict,
)
from lockstep.run import Run

WORK = Work(num_envs=16, num_steps=128, replay_ratio=4, gradient_steps=16, num_bytes=40_000)
COSTS = Costs(
    step_call=50e-6,
    step_row=5e-6,
    gradient_call=1e-3,
    gradient_row=2e-6,
    update=1e-3,
    local_message=50e-6,
    local_rank=20e-6,
    host_message=100e-6,
    host_peer=30e-6,
)


def test_work_is_what_the_config_says():
    run = Run(task="CartPole-v1", num_envs=32, algorithm=PPOConfig(num_steps=64, num_epochs=10, num_minibatches=8))
    work = Work.of(run, num_bytes=4)
    assert (work.steps, work.gradient_steps, work.messages) == (2048, 80, 81)  # DESIGN: 1 + epochs * minibatches
    assert (work.replay_ratio, work.num_shards) == (10, None)
    assert work.with_envs(64) == replace(work, num_envs=64), "larger minibatches, as many of them"


def test_work_of_a_replay_grows_by_gradient_steps():
    config = DQNConfig(num_steps=2, updates_per_step=0.5, batch_size=64)
    work = Work.of(Run(task="CartPole-v1", algo="dqn", num_envs=8, algorithm=config), num_bytes=4)
    assert (work.steps, work.gradient_steps, work.messages, work.replay_ratio) == (16, 8, 9, 32)
    amounts = amounts_of(work, Layout(ranks=2))
    assert amounts["gradient_call"] == 8
    assert amounts["gradient_row"] == 8 * 64 / 2, "a rank learns from its half of each batch"
    assert work.with_envs(32) == replace(work, num_envs=32, gradient_steps=32)
    seldom = Run(task="CartPole-v1", algo="dqn", num_envs=1, algorithm=DQNConfig(updates_per_step=0.25))
    assert Work.of(seldom, num_bytes=4).messages == 1.25


def test_an_update_by_hand():
    """2 hosts x 2 ranks, 1 ms apart, one core each for two ranks."""
    found = predict(COSTS, WORK, Layout(ranks=4, hosts=2, cores=1, round_trip_s=1e-3, bandwidth=1e6))
    assert found.rollout == pytest.approx(2 * 128 * (50e-6 + 4 * 5e-6))
    assert found.learning == pytest.approx(2 * (16 * 1e-3 + 4 * 4 * 128 * 2e-6 + 1e-3))
    assert found.local_messages == pytest.approx(2 * 17 * 70e-6)
    assert found.host_messages == pytest.approx(17 * (2 * 130e-6 + 0.5e-3))
    assert found.transfer == pytest.approx(17 * 40_000 / 1e6)
    assert found.steps_per_second == pytest.approx(2048 / found.seconds)
    assert found.bound == "bandwidth"


def test_a_world_of_one_sends_nothing():
    found = predict(COSTS, WORK, Layout(ranks=1))
    assert found.local_messages == found.host_messages == found.transfer == 0


def test_shards_of_a_rank_are_calls_of_their_own():
    alone, pinned = WORK, replace(WORK, num_shards=4)
    one, four = (amounts_of(work, Layout(ranks=1)) for work in (alone, pinned))
    assert four["step_call"] == 4 * one["step_call"]
    assert four["step_row"] == one["step_row"]
    uneven = amounts_of(pinned, Layout(ranks=3))  # the rank with two shards decides
    assert uneven["gradient_row"] == one["gradient_row"] / 2
    with pytest.raises(ConfigError, match="num_shards=4 is fewer than ranks=8"):
        predict(COSTS, pinned, Layout(ranks=8))


def test_the_exchange_is_the_one_that_links_make():
    assert exchange(1, 10**9) == (0, 0)
    assert exchange(2, 10**9) == (1, 1)  # nothing to gain from slices
    assert not in_slices(4, 40_000)
    assert exchange(4, 40_000) == (1, 3)
    assert in_slices(4, 10_000_000)
    assert exchange(4, 10_000_000) == (2, 1.5)


def test_every_other_host_and_rank_of_a_message_costs():
    found = predict(COSTS, WORK, Layout(ranks=32, hosts=4, round_trip_s=1e-3))
    assert found.local_messages == pytest.approx(17 * (50e-6 + 7 * 20e-6))
    assert found.host_messages == pytest.approx(17 * (100e-6 + 3 * 30e-6 + 0.5e-3))
    sliced = predict(COSTS, replace(WORK, num_bytes=10_000_000), Layout(ranks=32, hosts=4, round_trip_s=1e-3))
    assert sliced.host_messages == pytest.approx(2 * found.host_messages)


@pytest.mark.parametrize("price", ["step_call", "step_row", "gradient_call", "gradient_row", "local_rank", "host_peer"])
def test_a_higher_price_is_slower(price):
    layout = Layout(ranks=4, hosts=2, round_trip_s=1e-3)
    dearer = replace(COSTS, **{price: 2 * getattr(COSTS, price)})
    assert predict(dearer, WORK, layout).seconds > predict(COSTS, WORK, layout).seconds


def test_what_makes_messages_slower():
    near = Layout(ranks=4, hosts=2, round_trip_s=1e-3, bandwidth=1e9)
    seconds = predict(COSTS, WORK, near).seconds
    for worse in ({"round_trip_s": 5e-3}, {"bandwidth": 1e7}, {"hosts": 4}, {"cores": 1}):
        assert predict(COSTS, WORK, replace(near, **worse)).seconds > seconds, worse


def test_cores_matter_only_where_ranks_take_turns():
    assert Layout(ranks=4, cores=8).turns == Layout(ranks=4).turns == 1.0
    assert Layout(ranks=4, hosts=2, cores=1).turns == 2.0
    assert Layout(ranks=5, hosts=2).ranks_per_host == 3


@pytest.mark.parametrize("hosts", [0, 5])
def test_hosts_are_not_more_than_ranks(hosts):
    with pytest.raises(ConfigError, match=f"hosts={hosts} must be at least 1 and at most ranks=4"):
        Layout(ranks=4, hosts=hosts)


def test_far_hosts_are_advised_against_and_near_ones_are_not():
    far = compare(COSTS, WORK, Layout(ranks=4, hosts=2, round_trip_s=20e-3))
    assert far.advice is not None
    assert "17 messages per update x 10.1 ms = 172 ms" in far.advice
    assert "use one node" in far.advice
    assert far.one_host.steps_per_second > far.here.steps_per_second
    assert "a larger num_envs or num_steps, fewer num_minibatches" in far.advice
    replayed = compare(COSTS, replace(WORK, more_steps=True), Layout(ranks=4, hosts=2, round_trip_s=20e-3))
    assert replayed.advice is not None
    assert replayed.advice.endswith("fewer updates_per_step with a larger batch_size")
    near = compare(COSTS, replace(WORK, num_envs=1024), Layout(ranks=4, hosts=2, round_trip_s=0.1e-3))
    assert near.advice is None
    assert near.here.steps_per_second > 1.5 * near.one_host.steps_per_second
    assert compare(COSTS, WORK, Layout(ranks=4)).advice is None


def test_two_calls_tell_the_cost_of_a_call_and_of_a_row():
    assert fit_call_and_row_cost([(8, 1.8e-3), (32, 4.2e-3)]) == pytest.approx((1e-3, 1e-4))
    assert fit_call_and_row_cost([(8, 2e-3)]) == (2e-3, 0.0)
    assert fit_call_and_row_cost([(8, 2e-3), (32, 1e-3)]) == (1.5e-3, 0.0)  # noise: never a negative price
    call, row = fit_call_and_row_cost([(8, 1e-3), (32, 8e-3)])
    assert call == pytest.approx(0.0)
    assert row > 0


def test_quick_measurements_give_back_the_message_they_measured():
    layout = Layout(ranks=4, hosts=2, cores=2)
    costs, apart = measured(layout, [(4, 1e-4), (8, 1.5e-4)], [(128, 1e-3), (256, 1.2e-3)], message_s=2e-3)
    found = predict(costs, WORK, apart)
    assert (found.local_messages + found.host_messages) / WORK.messages == pytest.approx(2e-3)
    assert found.learning == pytest.approx(16 * 0.8e-3 + 4 * 4 * 128 * 0.2e-3 / 128)
    alone, _ = measured(Layout(ranks=4), [(4, 1e-4)], [(128, 1e-3)], message_s=3e-4)
    assert predict(alone, WORK, Layout(ranks=4)).local_messages / WORK.messages == pytest.approx(3e-4)
