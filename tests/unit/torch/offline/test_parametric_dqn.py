"""One gradient step after another on candidates, in a world of one."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import made_data
from lockstep import World
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.columns import Ragged
from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.non_finite import NonFiniteError, save
from lockstep.torch.comm import Comm
from lockstep.torch.offline.batch import check_rows
from lockstep.torch.offline.parametric_batch import ParametricBatch
from lockstep.torch.offline.parametric_dqn import ParametricDQN
from lockstep.torch.scoring.ragged import Candidates
from logged_policies import SMALL, draws, part, policy_for

ROWS, SHARDS = 16, 2
CONFIG = OfflineDQNConfig(batch_size=ROWS * SHARDS, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset.open(made_data.parametric(tmp_path_factory.mktemp("made") / "data", 300))


def learner(dataset, config=CONFIG, **run):
    run = OfflineRun(data="any", algo="parametric_dqn", algorithm=config, network=SMALL, num_shards=SHARDS, **run)
    return ParametricDQN(run, policy_for(run, dataset), Comm(World().with_shards(SHARDS), device="cpu"))


def learn(learner, dataset, steps=5, **window):
    progress, single = Progress(1000), bool(window)
    for step in range(steps):
        index = draws(300, [ROWS] * SHARDS, seed=step)
        parts = [part(dataset, rows, **window) for rows in index]
        extra = [[part(dataset, rows) for rows in index]] if single else []
        learner.update(parts, np.zeros((SHARDS, 0)), progress, *extra)
        progress.env_steps += ROWS * SHARDS
    return {name: value.clone() for name, value in learner.policy.state_dict().items()}


def test_estimates_change_nothing_of_the_policy(dataset):
    with_models = learn(learner(dataset), dataset)
    without = learn(learner(dataset, replace(CONFIG, estimate=False)), dataset)
    assert len(with_models) > len(without)
    for name, value in without.items():
        assert torch.equal(value, with_models[name]), name


def test_rows_that_nothing_follows_for_all_of_a_part(dataset):
    """Not one next candidate in a whole part of a minibatch: no index goes astray, and rewards are all there is."""
    ends = np.flatnonzero(dataset.column("terminal")[0:300])[: 12 * SHARDS]
    parts = [part(dataset, rows) for rows in ends.reshape(SHARDS, -1)]
    assert all(len(rows.possible_next_actions.values) == 0 for rows in parts)
    for config in (CONFIG, replace(CONFIG, policy="softmax", double=False), replace(CONFIG, maxq=False)):
        one = learner(dataset, replace(config, cql_alpha=0.5))
        one.update(parts, np.zeros((SHARDS, 0)), Progress(10))
        told = one.metrics.read()
        rewards = np.concatenate([rows.reward for rows in parts])
        assert told["value/target"] == pytest.approx(rewards.mean(), rel=1e-6)
        assert told["optim/skipped"] == 0


def test_padding_weighs_nothing(dataset):
    """What fills up a part changes neither gradient nor what is told."""
    index, found = draws(300, [ROWS] * SHARDS, seed=0), []
    for filled_with in (0, 200):
        rows = [np.where(np.arange(ROWS) < 11, of, filled_with) for of in index]
        one = learner(dataset, replace(CONFIG, cql_alpha=0.5))
        one.update([part(dataset, of, padding=5) for of in rows], np.zeros((SHARDS, 0)), Progress(10))
        found.append((one.descent.flat.gradient.clone(), one.metrics.read()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)


def test_one_long_list_costs_what_it_holds(tmp_path, monkeypatch):
    """Not its length for every row of the batch."""
    columns, long = made_data.parametric_columns(100), 5000
    end = columns["possible_actions_offsets"][1]
    more = np.random.default_rng(0).normal(size=(long, 2)).astype(np.float32)
    columns["possible_actions"] = np.insert(columns["possible_actions"], [end], more, 0)
    columns["possible_actions_offsets"][1:] += long
    dataset = Dataset.open(made_data.write(tmp_path / "long", columns))
    linear, seen = torch.nn.functional.linear, []

    def counted(x, *args):
        seen.append(len(x))
        return linear(x, *args)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    parts = [part(dataset, np.arange(k * 50, (k + 1) * 50)) for k in range(SHARDS)]
    learner(dataset, replace(CONFIG, cql_alpha=0.5)).update(parts, np.zeros((SHARDS, 0)), Progress(10))
    assert max(seen) == len(parts[0].possible_actions.values)
    assert long < max(seen) <= long + 50 * 4


@pytest.mark.parametrize("bad", ["reward", "metrics", "state", "possible_next_actions"])
def test_a_number_that_is_too_large_stops_the_run_and_is_named(dataset, bad, tmp_path):
    one = learner(dataset)
    before = {name: value.clone() for name, value in one.policy.state_dict().items()}
    goes_on = np.flatnonzero(dataset.column("continues")[0:300])
    parts = [part(dataset, rows) for rows in (goes_on[:ROWS], goes_on[50 : 50 + ROWS])]
    column = getattr(parts[1], bad)
    if isinstance(column, Ragged):
        column.values[column.offsets[5]] = np.inf
    else:
        column[5] = 1e30
    with pytest.raises(NonFiniteError) as caught:
        one.update(parts, np.zeros((SHARDS, 0)), Progress(1000, env_steps=64, updates=2))
    assert f"of row {goes_on[55]} of the data is not finite, in update 3" in str(caught.value)
    for name, value in before.items():
        assert torch.equal(value, one.policy.state_dict()[name]), f"{name} moved"
    save(caught.value, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_1.safetensors", "np") as file:
        assert file.get_tensor("batch.index").tolist() == goes_on[50 : 50 + ROWS].tolist()
        saved = [file.get_tensor(f"batch.possible_actions{end}") for end in ("", "_offsets")]
    assert np.array_equal(saved[0], parts[1].possible_actions.values)
    assert np.array_equal(saved[1], parts[1].possible_actions.offsets)


def test_models_learn_one_step_whatever_the_window(dataset):
    several = replace(CONFIG, n_step=3)
    one, three = learner(dataset), learner(dataset, several)
    learn(one, dataset, 1), learn(three, dataset, 1, n_step=3, gamma=several.gamma)
    for name, value in one.heads.state_dict().items():
        assert torch.equal(value, three.heads.state_dict()[name]), name
    assert not torch.equal(one.scores.body.layers[1].weight, three.scores.body.layers[1].weight)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, cql_alpha=0.5, dueling=True)], ids=["plain", "cql"])
def test_bfloat16_is_near_and_keeps_float32_parameters(dataset, config):
    exact, low = (learn(learner(dataset, config, **of), dataset) for of in ({}, {"precision": "bfloat16"}))
    assert all(value.dtype == torch.float32 for value in low.values())
    assert any(not torch.equal(value, exact[name]) for name, value in low.items())
    for name, value in low.items():
        torch.testing.assert_close(value, exact[name], rtol=0, atol=0.012, msg=lambda said, n=name: f"{n}: {said}")


@pytest.mark.slow
def test_compiled_it_learns_the_same(dataset):
    config = replace(CONFIG, cql_alpha=0.5, policy="softmax")
    compiled = learner(dataset, config, compile=True)
    before = {name: value.clone() for name, value in compiled.shared_tensors().items()}
    compiled.warmup(part(dataset, np.zeros(ROWS, np.int64)), None)()
    for name, value in compiled.shared_tensors().items():
        assert torch.equal(value, before[name]), f"the rehearsal changed {name}"
    found, plain = learn(compiled, dataset), learn(learner(dataset, config), dataset)
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_a_learner_goes_on_from_its_shared_tensors(dataset):
    config = replace(CONFIG, cql_alpha=0.5)
    whole, other = learner(dataset, config), learner(dataset, config)
    learn(whole, dataset, 3)
    for tensor, saved in zip(other.shared_tensors().values(), whole.shared_tensors().values(), strict=True):
        tensor.copy_(saved.clone())
    learn(whole, dataset, 3), learn(other, dataset, 3)
    for name, value in whole.shared_tensors().items():
        assert torch.equal(value, other.shared_tensors()[name]), name


def test_columns_of_a_batch_keep_their_rows(dataset):
    rows = part(dataset, np.flatnonzero(dataset.column("continues")[0:300])[:3])
    batch = ParametricBatch.of(rows, torch.device("cpu"))
    alone = batch.row(1)
    for field in fields(ParametricBatch):
        column, one = getattr(batch, field.name), getattr(alone, field.name)
        if isinstance(column, Candidates):
            begin, end = getattr(rows, field.name).offsets[1:3]
            assert torch.equal(one.values, column.values[begin:end]) and len(one.values) == int(one.lengths[0]) > 0
        else:
            assert torch.equal(one, column[1:2]), field.name


class Said:
    def __init__(self):
        self.words = []

    def warn(self, words):
        self.words.append(words)


def checked(dataset, **config):
    said = Said()
    run = OfflineRun(data="any", algo="parametric_dqn", algorithm=OfflineDQNConfig(**config))
    check_rows(run, dataset, Comm(World(), device="cpu"), said)
    return said.words


def test_rows_without_a_next_action_are_counted_for_sarsa(dataset):
    assert checked(dataset) == []
    unknown = (dataset.column("has_next_action")[0:300] == 0) & (dataset.column("terminal")[0:300] == 0)
    assert 0 < unknown.sum() < 300
    words = f"{unknown.sum()} of 300 rows have no next action in the log: maxq=false leaves them out"
    assert checked(dataset, maxq=False)[0].startswith(words)


def test_rows_that_do_not_say_what_could_be_done_are_refused(tmp_path):
    columns = made_data.parametric_columns(50)
    way_out = "--set maxq=false --set estimate=false"
    offsets = columns["possible_next_actions_offsets"]
    row = int(np.flatnonzero(columns["continues"])[4])
    begin, end = offsets[row : row + 2]
    columns["possible_next_actions"] = np.delete(columns["possible_next_actions"], np.arange(begin, end), 0)
    offsets[row + 1 :] -= end - begin
    holed = Dataset.open(made_data.write(tmp_path / "holed", columns, part_rows=16))
    with pytest.raises(ConfigError, match=rf"row {row} of .*holed is followed by another, but .*{way_out}"):
        checked(holed)
    checked(holed, maxq=False, estimate=False)
