"""Mistakes in an algorithm or a loop of one's own, as `examples/my_algorithm.py`, are named with their way out."""

from dataclasses import replace

import my_algorithm
import numpy as np
import pytest
import torch
from my_algorithm import A2C

from lockstep import Progress, Run, stream_seed
from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError
from lockstep.torch import Policy, Session, actor_of

STEPS = 8 * 4
RUN = Run(
    task="CartPole-v1",
    device="cpu",
    num_envs=8,
    num_shards=2,
    total_steps=4 * STEPS,
    evaluate_every=None,
    evaluate_episodes=2,
    checkpoint_every=2 * STEPS,
    network=replace(Run(task="a").network, hidden=(8,)),
    algorithm=PPOConfig(num_steps=4),
)


def train(tmp_path, monkeypatch, algorithm, **arguments):
    monkeypatch.setattr(my_algorithm, "A2C", algorithm)
    return my_algorithm.train(0, RUN, tmp_path / "run", **arguments)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            {"t": torch.ones(2)},
            r"^the learner: shard_state/t is a Tensor; .*; of a tensor give tensor.cpu\(\).numpy\(\)",
        ),
        ({"deep": [{1, 2}]}, "^the learner: shard_state/deep/0 is a set"),
        (None, "^the learner's shard_state returned None; return a mapping"),
    ],
)
def test_a_state_that_no_checkpoint_could_hold_ends_the_run_at_its_start(examples, tmp_path, monkeypatch, state, words):
    class Mistaken(A2C):
        def shard_state(self, k):
            return state

        def update(self, rollouts):
            raise AssertionError("an update before the refusal")

    with pytest.raises(ConfigError, match=words):
        train(tmp_path, monkeypatch, Mistaken)


class Counting(A2C):
    """Counts its updates, in a tensor that it makes at each call."""

    count = 0

    def update(self, rollouts):
        super().update(rollouts)
        self.count += 1

    def shared_tensors(self):
        return {**super().shared_tensors(), "count": torch.tensor(self.count)}


def test_a_tensor_that_a_resumption_cannot_fill_is_refused(examples, tmp_path, monkeypatch):
    train(tmp_path, monkeypatch, Counting)
    with pytest.raises(ConfigError, match=r"^shared_tensors makes a new tensor for count at each call, so that"):
        my_algorithm.train(0, replace(RUN, total_steps=8 * STEPS), resume=tmp_path / "run")


class Averaging(A2C):
    """Holds numbers that numpy has no type for, and one that is none."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.average = torch.tensor([0.0, torch.nan], dtype=torch.bfloat16)

    def update(self, rollouts):
        super().update(rollouts)
        self.average += 0.1

    def shared_tensors(self):
        return {**super().shared_tensors(), "average": self.average}


def test_bfloat16_is_restored(examples, tmp_path, monkeypatch):
    made = []

    class Kept(Averaging):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    train(tmp_path, monkeypatch, Kept)
    my_algorithm.train(0, RUN, resume=tmp_path / "run")
    assert made[1].average.dtype == torch.bfloat16
    assert made[1].average[0] == made[0].average[0] != 0.0


@pytest.mark.parametrize("value", [[1.0, 2.0], 3, np.ones(2)], ids=lambda v: type(v).__name__)
def test_shared_state_that_is_no_tensor_is_named(examples, tmp_path, monkeypatch, value):
    class Mistaken(A2C):
        def shared_tensors(self):
            return {**super().shared_tensors(), "x": value}

    with pytest.raises(ConfigError, match=r"^shared_tensors gives an? \w+ for x; give the tensor"):
        train(tmp_path, monkeypatch, Mistaken)


def test_a_learner_without_its_methods_is_named(examples, tmp_path, monkeypatch):
    class Bare:
        def __init__(self, run, policy, comm):
            pass

        def shard_state(self, k):
            return {}

    with pytest.raises(ConfigError, match=r"^learner=Bare has no shared_tensors\(\) and no restore_shard\(\)"):
        train(tmp_path, monkeypatch, Bare)


@pytest.mark.parametrize("setting", [{"precision": "bfloat16"}, {"non_finite": "skip"}], ids=str)
def test_a_setting_that_the_loop_does_not_follow_is_refused(examples, tmp_path, monkeypatch, setting):
    monkeypatch.setattr(my_algorithm, "A2C", A2C)
    run, name = replace(RUN, **setting), next(iter(setting))
    with pytest.raises(ConfigError, match=rf"^{name}=\w+: A2C does not name it in FOLLOWS, .*; leave {name} out$"):
        my_algorithm.train(0, run, run_dir=tmp_path / "refused")
    monkeypatch.setattr(A2C, "FOLLOWS", frozenset({name}), raising=False)
    my_algorithm.train(0, run, run_dir=tmp_path / "run")


def loop(session, mistake):
    """One iteration, with a mistake."""
    policy = Policy(session.spec, RUN.network, seed=stream_seed(0, "init"))
    a2c = A2C(RUN, policy, session.comm)
    if mistake == "no begin":
        with session.training(Progress(RUN.total_steps), None):
            return
    if mistake == "evaluation before begin":
        session.evaluate()
    session.begin(policy, a2c)
    if mistake == "log before training":
        session.log({})
    if mistake == "checkpoint before training":
        session.checkpoint_last(a2c.metrics.read)
    if mistake == "statistics before training":
        session.local_statistics()
    collector = session.make_collector(actor_of(policy, session.comm.device), policy.distribution)
    with session.training(Progress(RUN.total_steps), collector):
        a2c.update(collector.collect())
        statistics = session.local_statistics()
        totals = session.comm.sum_statistics(statistics, "statistics")
        if mistake != "no advance":
            steps = {"half a step": 0.5, "steps of a tensor": torch.tensor(float(STEPS))}.get(mistake, STEPS)
            session.advance(steps, statistics if mistake == "not summed" else totals)
        read = {"no function": a2c.metrics.read(), "returns nothing": lambda: None}.get(mistake, a2c.metrics.read)
        session.log_evaluate_checkpoint(4 * STEPS, read)
        assert session.progress.env_steps == STEPS


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("no begin", r"^session.training needs session.begin\(policy, learner\) before it"),
        ("statistics before training", r"^session.local_statistics\(\) needs session.training\(progress, source\)"),
        ("evaluation before begin", r"^session.evaluate\(\) needs session.training\(progress, source\) before it"),
        ("log before training", r"^session.log\(metrics\) needs session.training\(progress, source\) before it"),
        ("checkpoint before training", r"^session.checkpoint_last\(read\) needs session.training\(progress, source\)"),
        ("no advance", r"^session.log_evaluate_checkpoint\(...\) needs session.advance\(num_steps, totals\)"),
        ("half a step", "^num_steps=0.5 must be a whole number"),
        ("not summed", r"^totals has shape \[2, \d+\], not \[\d+\]; sum the statistics over all shards first"),
        ("no function", "^read=.* must be a function that returns metrics by name"),
        ("returns nothing", "^read returned None; it must return metrics by name"),
        ("steps of a tensor", None),
    ],
)
def test_a_loop_in_another_order_is_told_what_is_missing(examples, tmp_path, mistake, words):
    run = replace(RUN, log_every=STEPS, checkpoint_every=None)
    with Session(run, run_dir=tmp_path / "run") as session:
        if words is None:
            loop(session, mistake)
            return
        with pytest.raises(ConfigError, match=words):
            loop(session, mistake)
