"""One gradient step after another on made data, in a world of one."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import made_data
from lockstep import World
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.non_finite import NonFiniteError, save
from lockstep.torch.comm import Comm
from lockstep.torch.offline.batch import LoggedBatch, check_rows
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.optimizer import MAX_FACTS
from logged_policies import SMALL, draws, part, policy_for

ROWS, SHARDS = 16, 2
CONFIG = OfflineDQNConfig(batch_size=ROWS * SHARDS, max_grad_norm=0.05)
CLONING = CloningConfig(batch_size=ROWS * SHARDS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset.open(made_data.discrete(tmp_path_factory.mktemp("made") / "data", 300))


def learner(dataset, config=CONFIG, shards=SHARDS, **run):
    algo = "bc" if isinstance(config, CloningConfig) else "dqn"
    run = OfflineRun(data="any", algo=algo, algorithm=config, network=SMALL, num_shards=shards, **run)
    comm = Comm(World().with_shards(shards), device="cpu")
    return (Cloning if algo == "bc" else OfflineDQN)(run, policy_for(run, dataset), comm)


def learn(learner, dataset, steps=5, *, single=False, **window):
    progress = Progress(1000)
    for step in range(steps):
        index = draws(300, [ROWS] * SHARDS, seed=step)
        parts = [part(dataset, rows, **window) for rows in index]
        extra = [[part(dataset, rows) for rows in index]] if single else []
        learner.update(parts, np.zeros((SHARDS, 0)), progress, *extra)
        progress.env_steps += ROWS * SHARDS
    return {name: value.clone() for name, value in learner.policy.state_dict().items()}


def test_estimates_change_nothing_of_the_policy(dataset):
    """Their networks learn in the same message, but are neither clipped with the scores nor added to their gradient."""
    with_models = learn(learner(dataset), dataset)
    without = learn(learner(dataset, replace(CONFIG, estimate=False)), dataset)
    assert len(with_models) > len(without)
    for name, value in without.items():
        assert torch.equal(value, with_models[name]), name


def test_the_behaviour_model_changes_nothing_but_the_choice(dataset):
    plain = learn(learner(dataset, replace(CONFIG, estimate=False)), dataset)
    constrained = learn(learner(dataset, replace(CONFIG, estimate=False, bcq_threshold=0.0)), dataset)
    for name, value in plain.items():
        assert torch.equal(value, constrained[name.replace("network.", "network.scores.")]), name


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
def test_what_callers_send_along_comes_back_summed(dataset, config):
    one = learner(dataset, config)
    parts = [part(dataset, rows) for rows in draws(300, [ROWS] * SHARDS, seed=0)]
    assert one.update(parts, np.array([[1.0, 2.0, 0.0], [10.0, 20.0, 1.0]]), Progress(10)).tolist() == [11, 22, 1]
    assert one.update(parts, np.zeros((SHARDS, 0)), Progress(10)).tolist() == []
    with pytest.raises(AssertionError, match="do not fit"):
        one.update(parts, np.zeros((SHARDS, MAX_FACTS + 1)), Progress(10))


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
@pytest.mark.parametrize("bad", ["reward", "metrics", "state"])
def test_a_number_that_is_too_large_stops_the_run_and_is_named(dataset, config, bad, tmp_path):
    one = learner(dataset, config)
    before = {name: value.clone() for name, value in one.policy.state_dict().items()}
    parts = [part(dataset, rows) for rows in (np.arange(0, ROWS), np.arange(100, 100 + ROWS))]
    getattr(parts[1], bad)[5] = 1e30
    with pytest.raises(NonFiniteError) as caught:
        one.update(parts, np.zeros((SHARDS, 0)), Progress(1000, env_steps=64, updates=2))
    words = "the loss or gradient of row 105 of the data is not finite, in update 3"
    assert f"{words} (64 rows learned from, rank 0, shard 1)" in str(caught.value)
    assert caught.value.rank == 0
    for name, value in before.items():
        assert torch.equal(value, one.policy.state_dict()[name]), f"{name} moved"
    save(caught.value, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_1.safetensors", "np") as file:
        assert file.get_tensor("batch.index").tolist() == list(range(100, 100 + ROWS))


@pytest.mark.parametrize("config", [CONFIG, CLONING], ids=["dqn", "bc"])
def test_a_step_that_is_skipped_never_was(dataset, config):
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


def test_models_learn_one_step_whatever_the_window(dataset):
    """Rewards of several decisions would be those of the logged policy, not of the one that is estimated."""
    several = replace(CONFIG, n_step=3, policy="softmax")
    one, three = learner(dataset, replace(several, n_step=1)), learner(dataset, several)
    for step in range(5):
        index = draws(300, [ROWS] * SHARDS, seed=step)
        single = [part(dataset, rows) for rows in index]
        one.update(single, np.zeros((SHARDS, 0)), Progress(10))
        window = [part(dataset, rows, n_step=3, gamma=several.gamma) for rows in index]
        three.update(window, np.zeros((SHARDS, 0)), Progress(10), single)
        if step == 0:  # from then on the policies differ
            for name, value in one.heads.state_dict().items():
                assert torch.equal(value, three.heads.state_dict()[name]), name
    assert not torch.equal(one.scores.advantage.layers[1].weight, three.scores.advantage.layers[1].weight)
    for name, value in one.heads.reward.state_dict().items():
        assert torch.equal(value, three.heads.reward.state_dict()[name]), name


IN_BFLOAT16 = [CONFIG, replace(CONFIG, n_step=2), replace(CONFIG, bcq_threshold=0.3), CLONING]


@pytest.mark.parametrize("config", IN_BFLOAT16, ids=["dqn", "n-step", "bcq", "bc"])
def test_bfloat16_is_near_and_keeps_float32_parameters(dataset, config):
    several = getattr(config, "n_step", 1) > 1
    window = {"n_step": config.n_step, "gamma": 0.99} if several else {}
    exact = learn(learner(dataset, config), dataset, single=several, **window)
    low = learn(learner(dataset, config, precision="bfloat16"), dataset, single=several, **window)
    assert all(value.dtype == torch.float32 for value in low.values())
    begun = policy_for(
        OfflineRun(data="any", algo="bc" if config is CLONING else "dqn", algorithm=config, network=SMALL), dataset
    )
    for name, value in begun.named_parameters():
        assert not torch.equal(value, low[name]), f"{name} is not learned"
    assert any(not torch.equal(value, exact[name]) for name, value in low.items())
    for name, value in low.items():
        torch.testing.assert_close(value, exact[name], rtol=0, atol=0.012, msg=lambda said, n=name: f"{n}: {said}")


COMPILED = [replace(CONFIG, n_step=2, cql_alpha=0.3), replace(CONFIG, bcq_threshold=0.3), CLONING]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("config", COMPILED, ids=["n-step", "bcq", "bc"])
def test_compiled_it_learns_the_same(dataset, config):
    several = getattr(config, "n_step", 1) > 1
    window = {"n_step": config.n_step, "gamma": 0.99} if several else {}
    compiled = learner(dataset, config, compile=True)
    before = {name: value.clone() for name, value in compiled.shared_tensors().items()}
    rows = part(dataset, np.zeros(ROWS, np.int64))
    given = (rows, rows if several else None) if isinstance(config, OfflineDQNConfig) else (rows,)
    compiled.warmup(*given)()
    for name, value in compiled.shared_tensors().items():
        assert torch.equal(value, before[name]), f"the rehearsal changed {name}"
    found = learn(compiled, dataset, single=several, **window)
    plain = learn(learner(dataset, config), dataset, single=several, **window)
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, bcq_threshold=0.3), CLONING], ids=["dqn", "bcq", "bc"])
def test_a_learner_goes_on_from_its_shared_tensors(dataset, config):
    whole = learner(dataset, config)
    learn(whole, dataset, 3)
    other = learner(dataset, config)
    for tensor, saved in zip(other.shared_tensors().values(), whole.shared_tensors().values(), strict=True):
        tensor.copy_(saved.clone())
    learn(whole, dataset, 3), learn(other, dataset, 3)
    for name, value in whole.shared_tensors().items():
        assert torch.equal(value, other.shared_tensors()[name]), name


def test_columns_of_a_batch_keep_their_rows(dataset):
    rows = part(dataset, np.array([7, 3]))
    batch = LoggedBatch.of(rows, torch.device("cpu"))
    for field in dataclasses.fields(LoggedBatch):
        assert torch.equal(getattr(batch.row(1), field.name), getattr(batch, field.name)[1:]), field.name
    assert batch.row(1).index.tolist() == [3]


class Said:
    def __init__(self):
        self.words = []

    def warn(self, words):
        self.words.append(words)


def checked(dataset, **config):
    said = Said()
    run = OfflineRun(data="any", algorithm=OfflineDQNConfig(**config))
    check_rows(run, dataset, Comm(World(), device="cpu"), said)
    return said.words


def test_rows_without_a_next_action_are_counted_for_sarsa(dataset):
    assert checked(dataset) == []
    unknown = (dataset.column("next_action")[0:300] < 0) & (dataset.column("terminal")[0:300] == 0)
    assert 0 < unknown.sum() < 300
    words = f"{unknown.sum()} of 300 rows have no next action in the log: maxq=false leaves them out"
    assert checked(dataset, maxq=False)[0].startswith(words)


def test_data_that_the_settings_cannot_learn_from_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"reward_boost names the action jump, .* its actions are left, right, up"):
        checked(dataset, reward_boost={"jump": 1.0})
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
