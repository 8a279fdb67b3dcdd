"""From the logs of a workflow file to prepared data: on one machine, and on several that are threads here."""

import io
import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from workflow_logs import rows, write

from lockstep.cli.workflow_files import files, preparing
from lockstep.cli.workflow_files.files import read
from lockstep.cli.workflow_files.preparing import prepare
from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import load_features
from lockstep.distributed import messages
from lockstep.errors import ConfigError
from lockstep.record.console import Console
from lockstep.world import World

DQN = {
    "training_data_path": "log.jsonl",
    "state_norm_data_path": "norms/state_features_norm.json",
    "norm_params": {"output_dir": "norms/", "cols_to_norm": ["state_features"]},
    "actions": ["0", "1"],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def workflow(here, **changes):
    (here / "w.json").write_text(json.dumps(DQN | changes))
    return read(here / "w.json")


def classic(mean):
    """A normalization file as the classic pipeline wrote it."""
    one = {"feature_type": "CONTINUOUS", "mean": mean, "stddev": 2.0, "min_value": -9.0, "max_value": 9.0}
    return json.dumps({key: json.dumps(one) for key in ("0", "1")})


def quietly(found, **more):
    said = io.StringIO()
    return prepare(found, console=Console(said), **more), said.getvalue().splitlines()


# -- one machine -------------------------------------------------------------------------------------------------------


def test_a_log_is_prepared_and_its_normalization_written(here):
    write(here / "log.jsonl", rows(range(20)))
    found = workflow(here)
    run, said = quietly(found)
    data = Dataset.open(run.data)
    assert (data.info.num_rows, data.info.num_trajectories, data.info.actions) == (200, 20, ("0", "1"))
    written = load_features(here / "norms" / "state_features_norm.json")
    assert written == data.state_features
    assert said[0] == "normalization of state_features: identified, and written to norms/state_features_norm.json"


def test_a_normalization_that_exists_is_used(here):
    write(here / "log.jsonl", rows(range(20)))
    (here / "norms").mkdir()
    (here / "norms" / "state_features_norm.json").write_text(classic(mean=3.0))
    run, said = quietly(workflow(here))
    known = Dataset.open(run.data).state_features
    assert [(known[key].mean, known[key].stddev) for key in known.ids] == [(3.0, 2.0)] * 2
    assert (here / "norms" / "state_features_norm.json").read_text() == classic(mean=3.0), "it stays as it was"
    words = "norms/state_features_norm.json; norm_params changes nothing while it is there"
    assert said[0] == f"normalization of state_features: {words}"


def test_nothing_is_prepared_twice_unless_the_log_or_the_normalization_changes(here):
    write(here / "log.jsonl", rows(range(20)))
    data = Path(quietly(workflow(here))[0].data)
    first = (data / "dataset.json").stat().st_mtime_ns
    assert Path(quietly(workflow(here))[0].data) == data
    assert (data / "dataset.json").stat().st_mtime_ns == first
    write(here / "log.jsonl", rows(range(30)))
    quietly(workflow(here))
    assert Dataset.open(data).info.num_rows == 300
    norm = here / "norms" / "state_features_norm.json"
    norm.write_text(classic(mean=1.0))
    quietly(workflow(here))
    assert Dataset.open(data).state_features["0"].mean == 1.0


def test_a_normalization_from_another_log(here):
    write(here / "log.jsonl", rows(range(20)))
    write(here / "other.json", rows(range(500, 540)))
    run, _ = quietly(workflow(here, state_norm_data_path="other.json"))
    mean = Dataset.open(run.data).state_features["0"].mean
    assert mean is not None
    assert mean > 400, "the other log has other values"
    assert (here / "norms" / "state_features_norm.json").exists()
    assert (here / "other.json").read_text().startswith('{"mdp_id"'), "nothing is written over a log"


def test_evaluation_data_gets_the_normalization_of_the_training_data(here):
    write(here / "log.jsonl", rows(range(20)))
    write(here / "eval.jsonl", rows(range(100, 130), scale=5.0))
    run, _ = quietly(workflow(here, eval_data_path="eval.jsonl"))
    data, other = Dataset.open(run.data), Dataset.open(run.eval_data)
    assert other.info.num_rows == 300
    assert other.state_features == data.state_features


def test_prepared_data_is_taken_as_it_is(here):
    write(here / "log.jsonl", rows(range(20)))
    data = quietly(workflow(here))[0].data
    alone = {"training_data_path": data, "actions": ["0", "1"]}
    (here / "p.json").write_text(json.dumps(alone))
    assert quietly(read("p.json"))[0].data == data
    (here / "p.json").write_text(json.dumps({"training_data_path": data}))
    assert read("p.json").notes[0] == f"learner: dqn ({data} has discrete actions)"
    (here / "p.json").write_text(json.dumps(alone | {"actions": ["4", "5"]}))
    with pytest.raises(ConfigError, match=r"actions=4, 5, but those of training_data_path=.* are 0, 1"):
        quietly(read("p.json"))
    (here / "p.json").write_text(json.dumps(alone | {"state_norm_data_path": "norms/state_features_norm.json"}))
    with pytest.raises(ConfigError, match=r"state_norm_data_path.*normalization of its own"):
        read("p.json")


def test_an_episode_that_a_limit_cut_does_not_end(here):
    write(here / "log.jsonl", rows(range(20)))
    ends = [
        Dataset.open(quietly(workflow(here, **more))[0].data).info.rules for more in ({}, {"max_episode_steps": 10})
    ]
    assert [rules["terminal"] for rules in ends] == [20, 0]


def test_what_is_missing_is_named(here):
    with pytest.raises(
        ConfigError, match=r"training_data_path: log\.jsonl does not exist; .* offline record TASK --out log\.jsonl"
    ):
        quietly(workflow(here))
    write(here / "log.jsonl", rows(range(20)))
    with pytest.raises(ConfigError, match=r"eval_data_path: eval\.jsonl does not exist"):
        quietly(workflow(here, eval_data_path="eval.jsonl"))
    nothing = {"norm_params": {"cols_to_norm": []}}
    with pytest.raises(ConfigError, match=r"nothing says how state_features is normalized.*state_features_norm"):
        quietly(workflow(here, **nothing))


def test_a_log_that_cannot_be_read_is_refused(here):
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind("log.jsonl")
        with pytest.raises(ConfigError, match=r"training_data_path: log\.jsonl cannot be read \(No such device"):
            quietly(workflow(here))


def test_a_place_that_others_can_write_to_is_refused_unless_it_is_named(here, monkeypatch):
    write(here / "log.jsonl", rows(range(20)))
    (here / "cache").mkdir()
    (here / "cache").chmod(0o777)
    quietly(workflow(here))
    monkeypatch.delenv("LOCKSTEP_CACHE")
    monkeypatch.setattr(preparing, "cache_root", lambda: here / "cache")
    with pytest.raises(ConfigError, match=r"others can write to .*cache; .*LOCKSTEP_CACHE"):
        quietly(workflow(here))


def test_actions_of_the_file_that_the_log_does_not_have(here):
    """`["4", "5"]` in a sample of the classic pipeline, whose data has 0 and 1."""
    write(here / "log.jsonl", rows(range(20)))
    with pytest.raises(ConfigError, match=r"log\.jsonl.*'?[01]'?.*4.*5"):
        quietly(workflow(here, actions=["4", "5"]))
    assert not list((here / "cache").glob("log-*/dataset.json")), "nothing half-written"


# -- several machines --------------------------------------------------------------------------------------------------


class Nodes:
    """Threads that stand for the first ranks of nodes, each with its own folder and cache."""

    def __init__(self, folders):
        self.folders = folders
        self._barrier, self._told = threading.Barrier(len(folders), timeout=20), [None] * len(folders)
        self._local = threading.local()

    def gather(self, node):
        def collect(value, tag):
            del tag
            self._told[node] = messages.encode(value)
            self._barrier.wait()
            found = [messages.decode(told) for told in self._told]
            self._barrier.wait()
            return found

        return collect

    def cache_root(self):
        return getattr(self._local, "folder", self.folders[0].parent) / "cache"

    def run(self, **changes):
        """What each node came to: (data, error)."""
        results = [(None, "it did not end")] * len(self.folders)

        def one(node):
            self._local.folder = folder = self.folders[node]
            (folder / "w.json").write_text(json.dumps(DQN | own(folder) | changes))
            world = World(rank=node, size=len(self.folders), local_rank=0, local_size=1, node_rank=node)
            try:
                run = prepare(read(folder / "w.json"), world, self.gather(node), Console(io.StringIO()))
                results[node] = (Dataset.open(run.data), "")
            except ConfigError as error:
                results[node] = (None, str(error))
            except threading.BrokenBarrierError:
                results[node] = (None, "it waits for a node that has gone")

        threads = [threading.Thread(target=one, args=(node,)) for node in range(len(self.folders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def own(folder):
    """Paths of one node: on real machines they are the same everywhere."""
    return {
        "training_data_path": str(folder / "log.jsonl"),
        "state_norm_data_path": str(folder / "norms" / "state_features_norm.json"),
        "norm_params": {"output_dir": str(folder / "norms"), "cols_to_norm": ["state_features"]},
    }


@pytest.fixture
def two(here, monkeypatch):
    for name in ("a", "b"):
        (here / name).mkdir()
    made = Nodes([here / "a", here / "b"])
    monkeypatch.setattr(files, "cache_root", made.cache_root)
    monkeypatch.setattr(preparing, "cache_root", made.cache_root)
    return made


def test_parts_of_a_log_are_normalized_as_the_whole(here, two):
    write(here / "a" / "log.jsonl", rows(range(30)))
    write(here / "b" / "log.jsonl", rows(range(30, 40), scale=9.0))
    write(here / "log.jsonl", rows(range(30)) + rows(range(30, 40), scale=9.0), shuffled=1)
    whole = Dataset.open(quietly(workflow(here))[0].data)
    (first, _), (second, _) = two.run()
    assert first.state_features == second.state_features == whole.state_features
    assert (first.info.num_rows, second.info.num_rows) == (300, 100)
    assert (here / "a" / "norms" / "state_features_norm.json").exists()
    assert not (here / "b" / "norms").exists(), "only node 0 writes outside of the cache"


def test_an_error_of_one_node_is_that_of_all(here, two):
    write(here / "a" / "log.jsonl", rows(range(30)))
    told = [error for _, error in two.run()]
    assert told[0] == told[1]
    assert "node 1 (" in told[0]
    assert "b/log.jsonl does not exist" in told[0]


def test_a_row_that_one_node_cannot_read_ends_all(here, two):
    write(here / "a" / "log.jsonl", rows(range(30)))
    made = rows(range(30, 60))
    made[17]["reward"] = "much"
    write(here / "b" / "log.jsonl", made)
    told = [error for _, error in two.run()]
    assert told[0] == told[1]
    assert "row 18" in told[0]


def test_one_normalization_file_serves_all_nodes(here, two):
    write(here / "a" / "log.jsonl", rows(range(30)))
    write(here / "b" / "log.jsonl", rows(range(30, 60)))
    two.run()
    norm = here / "a" / "norms" / "state_features_norm.json"
    (here / "b" / "norms").mkdir()
    norm.write_text(classic(mean=5.0))
    (first, _), (second, _) = two.run()
    assert first.state_features == second.state_features
    assert second.state_features["0"].mean == 5.0
    (here / "b" / "norms" / norm.name).write_text(classic(mean=6.0))
    told = [error for _, error in two.run()]
    assert told[0] == told[1]
    assert "different normalizations of state_features" in told[0]


def test_one_cache_for_different_logs_is_refused(here, two, monkeypatch):
    write(here / "a" / "log.jsonl", rows(range(30)))
    write(here / "b" / "log.jsonl", rows(range(30, 60)))
    monkeypatch.setattr(two, "cache_root", lambda: here / "cache")
    monkeypatch.setattr(files, "cache_root", two.cache_root)
    monkeypatch.setattr(preparing, "cache_root", two.cache_root)
    told = [error for _, error in two.run()]
    assert told[0] == told[1]
    assert "set LOCKSTEP_CACHE" in told[0]
    assert not list((here / "cache").iterdir()), "it leaves nothing"


def test_a_cache_that_one_node_cannot_make_leaves_no_marker_on_the_other(here, two):
    for name in ("a", "b"):
        write(here / name / "log.jsonl", rows(range(30)))
    (here / "b" / "cache").write_text("a file in its place")
    told = [error for _, error in two.run()]
    assert told[0] == told[1]
    assert "cannot prepare data in" in told[0]
    assert not list((here / "a" / "cache").iterdir())


def test_one_cache_for_the_same_log_is_fine(here, two, monkeypatch):
    write(here / "a" / "log.jsonl", rows(range(30)))
    (here / "b" / "log.jsonl").hardlink_to(here / "a" / "log.jsonl")
    monkeypatch.setattr(files, "cache_root", lambda: here / "cache")
    monkeypatch.setattr(preparing, "cache_root", lambda: here / "cache")
    (first, _), (second, _) = two.run()
    assert first.info.digest == second.info.digest
    assert np.array_equal(first.column("state")[:], second.column("state")[:])
