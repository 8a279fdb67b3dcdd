"""Learners from logged data, one gradient step after another on made data, in a world of one."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import made_data
from lockstep import World
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.columns import Ragged
from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.non_finite import NonFiniteError, save_batches
from lockstep.session.offline.rows import check_rows
from lockstep.torch.comm import Comm
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.optimizer import MAX_CALLER_SUMS
from offline_policies import SMALL, draws, part, policy_for

ROWS, SHARDS = 16, 2
CONFIG = OfflineDQNConfig(batch_size=ROWS * SHARDS, max_grad_norm=0.05)
CLONING = CloningConfig(batch_size=ROWS * SHARDS)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return Dataset.open(made_data.discrete(tmp_path_factory.mktemp("made") / "named", 300))


@pytest.fixture(scope="module")
def candidates(tmp_path_factory):
    return Dataset.open(made_data.parametric(tmp_path_factory.mktemp("made") / "candidates", 300))


@pytest.fixture(params=["named", "candidates"])
def dataset(request, named, candidates):
    return named if request.param == "named" else candidates


def algo_of(dataset, config):
    if isinstance(config, CloningConfig):
        return "bc"
    return "dqn" if dataset.info.kind == "discrete" else "parametric_dqn"


def learner(dataset, config=CONFIG, **run):
    algo = algo_of(dataset, config)
    run = OfflineRun(data="any", algo=algo, algorithm=config, network=SMALL, num_shards=SHARDS, **run)
    comm = Comm(World().with_shards(SHARDS), device="cpu")
    policy = policy_for(run, dataset)
    return Cloning(run, policy, comm) if algo == "bc" else OfflineDQN(run, policy, comm, dataset.rows)


def learn(learner, dataset, steps=5):
    progress, n_step = Progress(1000), getattr(learner.config, "n_step", 1)
    for step in range(steps):
        index = draws(300, [ROWS] * SHARDS, seed=step)
        parts = [part(dataset, rows, n_step=n_step, gamma=learner.config.gamma) for rows in index]
        learner.update(parts, np.zeros((SHARDS, 0)), progress)
        progress.env_steps += ROWS * SHARDS
    return {name: value.clone() for name, value in learner.policy.state_dict().items()}


def test_estimates_do_not_change_policy(dataset):
    """Their networks learn in the same message, but are neither clipped with the scores nor added to their gradient."""
    with_models = learn(learner(dataset), dataset)
    without = learn(learner(dataset, replace(CONFIG, estimate=False)), dataset)
    assert len(with_models) > len(without)
    for name, value in without.items():
        assert torch.equal(value, with_models[name]), name


def test_behaviour_model_changes_only_choice_of_actions(named):
    plain = learn(learner(named, replace(CONFIG, estimate=False)), named)
    constrained = learn(learner(named, replace(CONFIG, estimate=False, bcq_threshold=0.0)), named)
    for name, value in plain.items():
        assert torch.equal(value, constrained[name.replace("network.", "network.scores.")]), name


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
def test_extra_sums_are_summed_over_shards(dataset, config):
    one = learner(dataset, config)
    parts = [part(dataset, rows) for rows in draws(300, [ROWS] * SHARDS, seed=0)]
    assert one.update(parts, np.array([[1.0, 2.0, 0.0], [10.0, 20.0, 1.0]]), Progress(10)).tolist() == [11, 22, 1]
    assert one.update(parts, np.zeros((SHARDS, 0)), Progress(10)).tolist() == []
    with pytest.raises(AssertionError, match="do not fit"):
        one.update(parts, np.zeros((SHARDS, MAX_CALLER_SUMS + 1)), Progress(10))


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
@pytest.mark.parametrize("bad", ["reward", "metrics", "state", "possible_next_actions"])
def test_non_finite_row_stops_run_and_is_named(dataset, config, bad, tmp_path):
    one = learner(dataset, config)
    before = {name: value.clone() for name, value in one.policy.state_dict().items()}
    continued = np.flatnonzero(dataset.column("continues")[0:300])
    parts = [part(dataset, rows) for rows in (continued[:ROWS], continued[50 : 50 + ROWS])]
    column = getattr(parts[1], bad)
    if isinstance(column, Ragged):
        column.values[column.offsets[5]] = np.inf
    elif bad == "possible_next_actions":
        pytest.skip("a mask has no numbers")
    else:
        column[5] = 1e30
    with pytest.raises(NonFiniteError) as caught:
        one.update(parts, np.zeros((SHARDS, 0)), Progress(1000, env_steps=64, updates=2))
    words = f"the loss or gradient of row {continued[55]} of the data is not finite, in update 3"
    assert f"{words} (64 rows learned from, rank 0, shard 1)" in str(caught.value)
    assert caught.value.rank == 0
    for name, value in before.items():
        assert torch.equal(value, one.policy.state_dict()[name]), f"{name} moved"
    save_batches(caught.value, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_1.safetensors", "np") as file:
        assert file.get_tensor("batch.index").tolist() == continued[50 : 50 + ROWS].tolist()
        if isinstance(column := parts[1].possible_actions, Ragged):
            assert np.array_equal(file.get_tensor("batch.possible_actions"), column.values)
            assert np.array_equal(file.get_tensor("batch.possible_actions_offsets"), column.offsets)


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
def test_skipped_step_changes_no_state(dataset, config):
    one, other = (learner(dataset, config, non_finite="skip") for _ in range(2))
    good = [part(dataset, rows) for rows in draws(300, [ROWS] * SHARDS, seed=0)]
    bad = [part(dataset, rows) for rows in draws(300, [ROWS] * SHARDS, seed=1)]
    bad[0].reward[3] = 1e30
    bad[0].state[3] = 1e30
    statistics = np.ones((SHARDS, 2))
    for learner_, batches in ((one, [good, bad, good]), (other, [good, good])):
        for batch in batches:
            assert learner_.update(batch, statistics, Progress(1000)).tolist() == [2, 2]
    for name, value in other.policy.state_dict().items():
        assert torch.equal(value, one.policy.state_dict()[name]), name
    told, plain = one.metrics.read(), other.metrics.read()
    assert told.pop("optim/skipped") == pytest.approx(1 / 3) and plain.pop("optim/skipped") == 0
    assert told == pytest.approx(plain), "what was skipped is told"


def test_models_learn_from_single_steps_with_n_step(dataset):
    """Rewards of several decisions would be those of the logged policy, not of the one that is estimated."""
    one, three = learner(dataset), learner(dataset, replace(CONFIG, n_step=3))
    learn(one, dataset, steps=1), learn(three, dataset, steps=1)  # from then on the policies differ
    for name, value in one.heads.state_dict().items():
        assert torch.equal(value, three.heads.state_dict()[name]), name
    assert not all(map(torch.equal, one.scores.parameters(), three.scores.parameters()))


def test_reward_model_does_not_depend_on_n_step(dataset):
    one, three = learner(dataset), learner(dataset, replace(CONFIG, n_step=3))
    learn(one, dataset), learn(three, dataset)
    for name, value in one.heads.reward.state_dict().items():
        assert torch.equal(value, three.heads.reward.state_dict()[name]), name


VARIANTS = {
    "dqn": CONFIG,
    "n-step": replace(CONFIG, n_step=2),
    "cql": replace(CONFIG, cql_alpha=0.5, dueling=True, policy="softmax"),
    "bcq": replace(CONFIG, bcq_threshold=0.3),
    "bc": CLONING,
}


@pytest.fixture(params=VARIANTS)
def config(request, dataset):
    """A config that fits the data."""
    if request.param == "bcq" and dataset.info.kind == "parametric":
        pytest.skip("bcq is for named actions")
    return VARIANTS[request.param]


def test_bfloat16_is_near_and_keeps_float32_parameters(dataset, config):
    exact, low = (learn(learner(dataset, config, precision=of), dataset) for of in ("float32", "bfloat16"))
    assert all(value.dtype == torch.float32 for value in low.values())
    begun = policy_for(OfflineRun(data="any", algo=algo_of(dataset, config), algorithm=config, network=SMALL), dataset)
    for name, value in begun.named_parameters():
        assert not torch.equal(value, low[name]), f"{name} is not learned"
    assert any(not torch.equal(value, exact[name]) for name, value in low.items())
    for name, value in low.items():
        torch.testing.assert_close(value, exact[name], rtol=0, atol=0.012, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own, as the next
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_learner_equals_eager(dataset, config):
    compiled = learner(dataset, config, compile=True)
    before = {name: value.clone() for name, value in compiled.shared_tensors().items()}
    rows = part(dataset, np.zeros(ROWS, np.int64))
    compiled.warmup_step(rows)()
    for name, value in compiled.shared_tensors().items():
        assert torch.equal(value, before[name]), f"the warmup changed {name}"
    found, plain = learn(compiled, dataset), learn(learner(dataset, config), dataset)
    for name, value in plain.items():
        if config is CLONING and value.numel() == 1:
            continue  # softmax ignores a shift of all scores: the gradient of this bias is rounding error alone
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_learner_resumes_from_shared_tensors(dataset, config):
    whole = learner(dataset, config)
    learn(whole, dataset, 3)
    other = learner(dataset, config)
    for tensor, saved in zip(other.shared_tensors().values(), whole.shared_tensors().values(), strict=True):
        tensor.copy_(saved.clone())
    learn(whole, dataset, 3), learn(other, dataset, 3)
    for name, value in whole.shared_tensors().items():
        assert torch.equal(value, other.shared_tensors()[name]), name


def test_columns_of_a_batch_keep_their_rows(dataset):
    rows = part(dataset, np.flatnonzero(dataset.column("continues")[0:300])[:3])
    batch = LoggedBatch.of(rows, torch.device("cpu"))
    alone = batch.rows(1, 1)
    assert alone.index.tolist() == [rows.index[1]]
    for name, column in batch.columns().items():
        given = getattr(rows, name.removesuffix("_offsets"))
        if not isinstance(given, Ragged):
            assert torch.equal(alone.columns()[name], column[1:2]), name
        elif not name.endswith("_offsets"):
            begin, end = given.offsets[1:3]
            assert torch.equal(alone.columns()[name], column[begin:end]) and end > begin, name
    assert {field.name for field in fields(batch)} <= batch.columns().keys()


def test_part_without_next_candidates(candidates):
    """Not one next candidate in a whole part of a minibatch: no index goes astray, and rewards are all there is."""
    ends = np.flatnonzero(candidates.column("terminal")[0:300])[: 12 * SHARDS]
    parts = [part(candidates, rows) for rows in ends.reshape(SHARDS, -1)]
    assert all(len(rows.possible_next_actions.values) == 0 for rows in parts)
    for config in (CONFIG, replace(CONFIG, policy="softmax", double=False), replace(CONFIG, maxq=False)):
        one = learner(candidates, replace(config, cql_alpha=0.5))
        one.update(parts, np.zeros((SHARDS, 0)), Progress(10))
        told = one.metrics.read()
        rewards = np.concatenate([rows.reward for rows in parts])
        assert told["value/target"] == pytest.approx(rewards.mean(), rel=1e-6)
        assert told["optim/skipped"] == 0


def test_padding_has_no_weight(candidates):
    """What fills up a part changes neither gradient nor what is told."""
    index, found = draws(300, [ROWS] * SHARDS, seed=0), []
    for filled_with in (0, 200):
        rows = [np.where(np.arange(ROWS) < 11, of, filled_with) for of in index]
        one = learner(candidates, replace(CONFIG, cql_alpha=0.5))
        one.update([part(candidates, of, padding=5) for of in rows], np.zeros((SHARDS, 0)), Progress(10))
        found.append((one.optimizer.flat.gradient.clone(), one.metrics.read()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)


def test_cost_grows_with_number_of_candidates_only(tmp_path, monkeypatch):
    """Not its length for every row of the batch."""
    columns, long = made_data.parametric_columns(100), 5000
    end = columns["possible_actions_offsets"][1]
    more = np.random.default_rng(0).normal(size=(long, 2)).astype(np.float32)
    columns["possible_actions"] = np.insert(columns["possible_actions"], [end], more, 0)
    columns["possible_actions_offsets"][1:] += long
    candidates = Dataset.open(made_data.write(tmp_path / "long", columns))
    linear, seen = torch.nn.functional.linear, []

    def counted(x, *args):
        seen.append(len(x))
        return linear(x, *args)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    parts = [part(candidates, np.arange(k * 50, (k + 1) * 50)) for k in range(SHARDS)]
    learner(candidates, replace(CONFIG, cql_alpha=0.5)).update(parts, np.zeros((SHARDS, 0)), Progress(10))
    assert max(seen) == len(parts[0].possible_actions.values)
    assert long < max(seen) <= long + 50 * 4


class Warnings:
    """A journal that keeps its warnings."""

    def __init__(self):
        self.lines = []

    def warn(self, line):
        self.lines.append(line)


def checked(dataset, **config):
    journal, config = Warnings(), OfflineDQNConfig(**config)
    run = OfflineRun(data="any", algo=algo_of(dataset, config), algorithm=config)
    check_rows(run, dataset, Comm(World(), device="cpu"), journal)
    return journal.lines


def test_rows_without_a_next_action_are_counted_for_sarsa(dataset):
    assert checked(dataset) == []
    if dataset.info.kind == "discrete":
        unknown = dataset.column("next_action")[0:300] < 0
    else:
        unknown = dataset.column("has_next_action")[0:300] == 0
    unknown &= dataset.column("terminal")[0:300] == 0
    assert 0 < unknown.sum() < 300
    words = f"{unknown.sum()} of 300 rows have no next action in the log: maxq=false leaves them out"
    assert checked(dataset, maxq=False)[0].startswith(words)


def test_data_that_does_not_fit_settings_is_rejected(named, tmp_path):
    with pytest.raises(ConfigError, match=r"reward_boost names the action jump, .* its actions are left, right, up"):
        checked(named, reward_boost={"jump": 1.0})
    columns = made_data.discrete_columns(50)
    columns["reward"] = columns["reward"].clip(0, 1)
    columns["next_action"][:] = -1
    columns["terminal"][:], columns["continues"][:] = 0, 0
    bare = Dataset.open(made_data.write(tmp_path / "bare", columns))
    with pytest.raises(ConfigError, match="maxq=false values the next state by the next action in the log"):
        checked(bare, maxq=False)
    assert checked(bare, loss="bce", gamma=0.0) == []
    first = int(np.flatnonzero(columns["action"] == 1)[0])
    with pytest.raises(ConfigError, match=rf"needs rewards in \[0, 1\], but that of row {first} of .*bare is [23]"):
        checked(bare, loss="bce", gamma=0.0, reward_boost={"right": 2.0})


def test_rows_without_possible_next_actions_are_rejected(tmp_path):
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
