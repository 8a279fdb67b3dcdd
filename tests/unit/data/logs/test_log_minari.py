"""Minari datasets as logs, from episodes collected without network access."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import made_logs
from lockstep.data.dataset import Dataset
from lockstep.data.logs import minari as minari_log
from lockstep.data.logs.format import read_log
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.errors import ConfigError

minari = pytest.importorskip("minari")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def episodes(count, action, shape=(3,)):
    from minari.data_collector import EpisodeBuffer

    draws = np.random.default_rng(0)
    made = []
    for i in range(count):
        length = 2 + i
        ended = np.arange(length) == length - 1
        made.append(
            EpisodeBuffer(
                id=i,
                observations=draws.normal(size=(length + 1, *shape)).astype(np.float32),
                actions=np.stack([action(draws) for _ in range(length)]),
                rewards=draws.normal(size=length),
                terminations=ended & (i % 2 == 0),
                truncations=ended & (i % 2 == 1),
            )
        )
    return made


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that makes a data set; its folder and the episodes come back."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def make(action_space, action, shape=(3,), name="made/test-v0", data_format="arrow"):
        buffer = episodes(4, action, shape)
        minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=buffer,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, shape),
            action_space=action_space,
            data_format=data_format,
            algorithm_name="test",
            author="test",
            author_email="test@example.org",
            code_permalink="https://example.org",
        )
        return tmp_path / name, buffer

    return make


@pytest.mark.parametrize(("by_name", "data_format"), [(True, "arrow"), (False, "arrow"), (True, "hdf5")])
def test_discrete_episodes_are_read(made, by_name, data_format):
    space = gymnasium.spaces.Discrete(2, start=5)
    folder, buffer = made(space, lambda draws: 5 + draws.integers(2), data_format=data_format)
    log = read_log(["minari:made/test-v0" if by_name else folder], actions=["l", "r"])
    rows = made_logs.whole(log)
    lengths = [len(episode.rewards) for episode in buffer]
    assert log.kind == "discrete" and log.done_bytes == log.total_bytes > 0
    assert rows["mdp_id"].to_list() == [str(i) for i, length in enumerate(lengths) for _ in range(length)]
    assert rows["sequence_number"].to_list() == [t for length in lengths for t in range(length)]
    assert rows["action"].to_list() == ["lr"[a - 5] for episode in buffer for a in episode.actions]
    for k in range(3):
        for column, part in ((f"state:{k}", slice(None, -1)), (f"next_state:{k}", slice(1, None))):
            assert rows[column].to_list() == [x for e in buffer for x in e.observations[part, k].tolist()]
    assert rows["reward"].to_list() == [r for episode in buffer for r in episode.rewards]
    assert rows["terminated"].to_list() == [t for episode in buffer for t in episode.terminations.tolist()]
    assert rows["truncated"].to_list() == [t for episode in buffer for t in episode.truncations.tolist()]
    assert rows["_row"].to_list() == list(range(1, sum(lengths) + 1))


@pytest.mark.parametrize("data_format", ["arrow", "hdf5"])
def test_data_sets_below_a_folder_are_read_like_those_that_are_named(made, tmp_path, data_format):
    folders = [
        made(gymnasium.spaces.Discrete(2), lambda d: d.integers(2), name=name, data_format=data_format)[0]
        for name in ("made/one-v0", "made/two-v0")
    ]
    below, named = read_log([tmp_path]), read_log(folders)
    assert below.paths == named.paths == folders
    assert made_logs.whole(below).equals(made_logs.whole(named))


def test_continuous_episodes_are_read_in_batches(made, monkeypatch):
    monkeypatch.setattr(minari_log, "_MOST_ROWS", 4)
    folder, buffer = made(gymnasium.spaces.Box(-1, 1, (2,)), lambda d: d.uniform(-1, 1, 2).astype(np.float32), (2, 2))
    log = read_log([folder])
    assert log.kind == "parametric" and len(list(log.frames())) > 2
    rows = made_logs.whole(log)
    for d in range(2):
        assert rows[f"action:{4 + d}"].to_list() == [a for e in buffer for a in e.actions[:, d].tolist()]
    assert rows["state:3"].to_list() == [x for e in buffer for x in e.observations[:-1, 1, 1].tolist()]


def test_unsupported_dataset_is_rejected(made):
    with pytest.raises(
        ConfigError, match=r"minari:made/nothing-v0 is not there \(.*\); download it: minari download made/nothing-v0"
    ):
        read_log(["minari:made/nothing-v0"])
    folder, _ = made(gymnasium.spaces.Discrete(2), lambda draws: draws.integers(2))
    with pytest.raises(ConfigError, match="has 2 actions, and actions=a,b,c are 3"):
        read_log([folder], actions=["a", "b", "c"])
    with pytest.raises(ConfigError, match="is a Minari dataset, which has none"):
        read_log([folder], columns={"mdp_id": "x"})
    spaces, action = gymnasium.spaces.MultiDiscrete([2, 2]), lambda draws: draws.integers(0, 2, 2)
    folder, _ = made(spaces, action, name="made/several-v0")
    with pytest.raises(ConfigError, match="a log takes one choice"):
        read_log([folder])


def test_non_finite_observation_is_rejected(made):
    folder, _ = made(gymnasium.spaces.Discrete(2), lambda draws: draws.integers(2))
    dataset = minari.MinariDataset(folder / "data")
    good = list(dataset.iterate_episodes())
    good[1].observations[1, 2] = np.nan
    found = minari_log._found
    from lockstep.data.logs.maps import SourceRows
    from lockstep.data.logs.schema import LogSchema

    where = SourceRows(folder, np.arange(1, 15))
    with pytest.raises(ConfigError, match="row 4: state, number 2, is nan"):
        found(good, where, 0, (dataset.action_space, LogSchema(), ""))


@pytest.mark.parametrize("order", [1, -1])
def test_several_data_sets_are_read_as_one_log(made, tmp_path, order):
    space = gymnasium.spaces.Box(-1, 1, (1,))
    names = ["made/one-v0", "made/two-v0"]
    for name in names:
        made(space, lambda d: d.uniform(-1, 1, 1).astype(np.float32), name=name)
    paths = [tmp_path / names[0], f"minari:{names[1]}"]
    rows = made_logs.whole(read_log(paths[::order]))
    assert sorted(set(rows["mdp_id"])) == [f"{name}/{i}" for name in names for i in range(4)]
    printed = []
    data = prepare_dataset(
        [Path(path) for path in paths[::order]], tmp_path / "out", PrepareOptions(), show=printed.append
    )
    assert Dataset.open(data).info.num_trajectories == 8 and printed[0].startswith("28 decisions in 8 trajectories")


def test_actions_of_another_data_set_are_those_with_the_same_numbers(made):
    folder, _ = made(gymnasium.spaces.Discrete(3), lambda draws: 1 + draws.integers(2))
    for name in (("1", "2"), ("0", "1", "2")):
        rows = made_logs.whole(read_log([folder], actions=name, indexed=False))
        assert set(rows["action"]) == {"1", "2"}
    with pytest.raises(ConfigError, match='action "1" is not one of the actions 0, 2'):
        made_logs.whole(read_log([folder], actions=("0", "2"), indexed=False))


def test_a_named_data_set_that_was_made_again_is_prepared_again(made, tmp_path):
    """The new one has as many bytes."""
    space, out, said = gymnasium.spaces.Discrete(2), tmp_path / "out", []
    means = []
    for first in (0, 1, 1):
        if len(means) < 2:
            if means:
                minari.delete_dataset("made/test-v0")
            taken = iter([first] * 100)
            made(space, lambda _, taken=taken: next(taken), data_format="hdf5")
        prepare_dataset([Path("minari:made/test-v0")], out, PrepareOptions(actions=("0", "1")), show=said.append)
        means.append(Dataset.open(out).column("action")[:].mean())
    assert means == [0, 1, 1]
    assert said[-1] == f"{out} is prepared already"
