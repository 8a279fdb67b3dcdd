"""Where a workflow file runs: its words become the launcher's flags, unless the command line says otherwise."""

import collections
import json
from dataclasses import replace

import pytest

from lockstep.cli.main import main as lockstep
from lockstep.cli.workflow_files import nodes
from lockstep.cli.workflow_files.files import read
from lockstep.errors import ConfigError
from lockstep.run import override
from lockstep.workflows import command
from lockstep.world import World

DQN = {"training_data_path": "log.json", "actions": ["0", "1"]}
TWO = DQN | {"num_nodes": 2, "init_method": "file:///shared/x.lock"}


@pytest.fixture
def flags(here, monkeypatch):
    """`flags(file, *words, **settings)`: the arguments after the file has filled them in, and what was said."""
    from lockstep.cli.parser import parser

    def fill(file, *words, world=None, **settings):
        (here / "w.json").write_text(json.dumps(file))
        said = []
        args = parser(collections.defaultdict(lambda: print)).parse_args(["offline", "train", "w.json", *words])
        workflow = read("w.json")
        workflow = replace(workflow, run=override(workflow.run, settings))
        nodes.node_arguments(args, workflow, world or World(), said.append)
        return args, said

    return fill


def test_one_machine_one_rank(flags):
    args, said = flags(DQN)
    assert (args.ranks, args.nnodes, said) == ("1", None, [])
    assert flags(DQN, "--ranks", "3")[0].ranks == "3"


@pytest.mark.parametrize(
    ("gpus", "ranks", "words"), [(0, "1", "no GPU: 1 rank on"), (1, "1", "1 GPU: 1 rank"), (4, "4", "4 GPUs: 4 ranks")]
)
def test_all_gpus_are_used_and_their_number_said(flags, monkeypatch, gpus, ranks, words):
    monkeypatch.setattr(nodes, "visible_gpus", lambda framework: {"torch": gpus, "jax": 3}[framework])
    args, (said,) = flags(DQN | {"use_all_avail_gpus": True})
    assert args.ranks == ranks
    assert words in said
    assert ("--ranks N" in said) == (gpus == 0), "how to use more cores where there is no GPU"
    assert flags(DQN | {"use_all_avail_gpus": True}, "--ranks", "2")[0].ranks == "2"
    assert flags(DQN | {"use_all_avail_gpus": True}, ml_framework="jax")[0].ranks == "3"


def test_several_machines(flags, monkeypatch):
    args, _ = flags(TWO, "--node_index=1")
    assert (args.nnodes, args.node_rank, args.init_file, args.rdzv_endpoint) == ("2", "1", "/shared/x.lock", None)
    assert (args.nproc_per_node, args.ranks) == ("1", None)
    monkeypatch.setattr(nodes, "visible_gpus", lambda framework: 8)
    assert flags(TWO | {"use_all_avail_gpus": True, "node_index": 0})[0].nproc_per_node == "8"
    tcp, _ = flags(DQN | {"num_nodes": 2, "init_method": "tcp://alpha:5555"})
    assert (tcp.rdzv_endpoint, tcp.node_rank, tcp.init_file) == ("alpha:5555", None, None), (
        "ranks of nodes are assigned"
    )


def test_the_command_line_wins(flags):
    args, _ = flags(TWO | {"node_index": 1}, "--node-index", "0", "--init-file", "other", "--nproc-per-node", "3")
    assert (args.node_rank, args.init_file, args.nproc_per_node) == ("0", "other", "3")
    alone, _ = flags(TWO, "--nnodes", "1")
    assert (alone.nnodes, alone.init_file, alone.node_rank) == ("1", None, None)


def test_a_node_that_does_not_say_which_it_is(flags):
    with pytest.raises(
        ConfigError, match=r"2 nodes, and nothing says which of them this is.*--node-index, from 0 to 1"
    ):
        flags(TWO)
    with pytest.raises(ConfigError, match=r"--node-index 1, but w\.json has num_nodes=1"):
        flags(DQN, "--node-index", "1")
    assert flags(DQN, "--node-index", "0")[0].node_rank is None, "the classic default"


def test_node_fields_are_ignored_under_a_launcher(flags):
    args, said = flags(TWO, world=World(rank=1, size=2, launcher="torchrun"))
    assert (args.nnodes, args.ranks, args.node_rank, said) == (None, None, None, [])


# -- the classic command lines ----------------------------------------------------------------------------------------


@pytest.fixture
def called(here, monkeypatch):
    """What the command line is called with."""
    calls = []
    monkeypatch.setattr("lockstep.cli.main.main", lambda words: calls.append(words) or 0)
    (here / "dqn.json").write_text(json.dumps(DQN))
    return calls


@pytest.mark.parametrize("spelling", [["-ni", "1"], ["--node_index=1"], ["--node-index", "1"]])
def test_classic_command_line(called, spelling):
    assert command.main("dqn", ["-p", "dqn.json", *spelling, "--set", "epochs=2"]) == 0
    assert called == [["offline", "train", "dqn.json", "--node-index", "1", "--set", "epochs=2"]]
    assert command.main("dqn", ["--parameters", "dqn.json"]) == 0
    assert called[1] == ["offline", "train", "dqn.json"]


def test_workflow_of_another_algorithm_is_refused(called, capsys):
    assert command.main("parametric_dqn", ["-p", "dqn.json"]) == 2
    assert "dqn.json is a workflow of dqn; use python -m lockstep.workflows.dqn -p dqn.json" in capsys.readouterr().err
    assert command.main("dqn", ["-p", "missing.json"]) == 2
    assert "cannot read missing.json" in capsys.readouterr().err
    assert command.main("dqn", []) == 2
    assert "-p" in capsys.readouterr().err
    assert called == []


def test_wrong_field_is_one_error_line_with_code_2(here, capsys):
    (here / "w.json").write_text(json.dumps(DQN | {"epoch": 3}))
    assert lockstep(["offline", "train", "w.json"]) == 2
    assert capsys.readouterr().err == "lockstep: error: w.json: unknown field epoch; did you mean epochs?\n"
