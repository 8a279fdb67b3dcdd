"""The run that a restart continues: start records of nodes, agreement and conflicts."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lockstep.errors import ConfigError
from lockstep.launch import train
from lockstep.launch.restarts import (
    START_RECORD_VARIABLE,
    StartRecord,
    TrainedRun,
    find_restart,
    find_start_record,
    may_restart_ranks,
    new_start_record,
    only_run,
    record_start,
)
from lockstep.record import checkpoint
from lockstep.record.checkpoint import FORMAT, write_state
from lockstep.record.run_dir import RunDir
from lockstep.run import Run, override, to_dict
from lockstep.system.processes import identity
from lockstep.world import World

RUN = Run(task="CartPole-v1", num_shards=4)
WORLD = World(size=2, launcher="torchrun")


@pytest.fixture(autouse=True)
def _private(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in (START_RECORD_VARIABLE, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_dir(tmp_path):
    return RunDir.create(tmp_path / "run", RUN).path


def add(run_dir, step):
    beside = checkpoint.partial(run_dir, step)
    beside.mkdir(parents=True)
    files = {"learner.safetensors": write_state(beside / "learner.safetensors", {})}
    manifest = {"format": FORMAT, "step": step, "num_shards": 4, "world_size": 3, "run": to_dict(RUN), "files": files}
    checkpoint.commit(run_dir, json.loads(json.dumps(manifest)), 3)
    return run_dir / "checkpoints" / f"step_{step}"


def ranks(*records, run=RUN, world=WORLD):
    """Call `find_restart` on every rank; each has its own start record, or None."""
    broadcast: list[dict] = []
    found = []
    for rank, record in enumerate(records):
        others = [m.read() if m else None for m in records]
        calls = iter(range(9))

        def gather(value, tag, rank=rank, others=others, calls=calls):
            call = next(calls)
            if call == 0:
                shown = [
                    {"where": f"node {r}", "trained": None if o is None else {n: getattr(o, n) for n in o.__slots__}}
                    for r, o in enumerate(others)
                ]
                assert shown[rank]["trained"] == value["trained"]
                return shown
            if call == 2:
                broadcast.append(value)
                assert broadcast[0], "rank 0 takes this for a first start"
                return [broadcast[0], *[{}] * (len(records) - 1)]
            return [value] * len(records)

        place = World(rank=rank, size=len(records), launcher="torchrun") if world is WORLD else world
        found.append(find_restart(record, run, place, gather))
    return found


def test_a_first_start_has_no_earlier_one(tmp_path):
    assert ranks(StartRecord(tmp_path / "a"), StartRecord(tmp_path / "b")) == [None, None]
    assert ranks(None, StartRecord(tmp_path / "b")) == [None, None]


def test_all_ranks_go_on_with_the_run_of_any_record(run_dir, tmp_path):
    add(run_dir, 512)
    old, new = StartRecord(tmp_path / "old"), StartRecord(tmp_path / "new")
    record_start(old, run_dir, None, None)
    first, second = ranks(new, old)
    assert first == second
    assert (first.restarts, first.resumption.run_dir, first.resumption.step) == (1, run_dir, 512)
    assert (first.resumption.num_shards, first.resumption.world_size, first.resumption.exact) == (4, 3, None)
    record_start(new, run_dir, first, None)
    assert [found.restarts for found in ranks(new, old)] == [2, 2]  # the node that knows most counts


def test_nodes_that_trained_different_runs_raise_config_error():
    with pytest.raises(ConfigError, match=r"node 0 \(a\) /runs/x, node 1 \(b\) /runs/y.*--resume"):
        only_run(
            {
                "node 0 (a)": TrainedRun(run_dir="/runs/x", starts=1),
                "node 1 (b)": TrainedRun(run_dir="/runs/y", starts=2),
            }
        )
    assert only_run({}) is None


def test_a_node_that_does_not_see_the_run_is_named(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.launch.restarts._SEEN_S", 0.2)
    record = StartRecord(tmp_path / "memo")
    record_start(record, run_dir, None, None)
    (run_dir / "run.yaml").unlink()
    with pytest.raises(ConfigError, match=rf"node 0 \(.*\) cannot see {run_dir}/run.yaml.*--run-dir on a disk"):
        ranks(record)


def test_another_config_is_refused_as_by_resume(run_dir, tmp_path):
    add(run_dir, 512)
    record = StartRecord(tmp_path / "memo")
    record_start(record, run_dir, None, None)
    with pytest.raises(ConfigError, match="seed=7 differs from the 0"):
        ranks(record, run=override(RUN, {"seed": 7}))
    (found,) = ranks(record, run=override(RUN, {"log_every": 77}))
    assert found.resumption.run.log_every == 77
    assert found.resumption.notes[0].startswith("log_every is 77 from here on")


def test_more_ranks_than_shards_are_refused(run_dir, tmp_path):
    add(run_dir, 512)
    record = StartRecord(tmp_path / "memo")
    record_start(record, run_dir, None, None)
    with pytest.raises(ConfigError, match=r"num_shards=4 of the run in .* fewer than the 5 ranks.*num_shards=5"):
        ranks(record, world=World(size=5, launcher="torchrun"))


def test_a_checkpoint_that_the_user_named_counts_until_the_run_wrote_one(run_dir, tmp_path):
    older = add(run_dir, 512)
    add(run_dir, 1024)
    record = StartRecord(tmp_path / "memo")
    record_start(record, run_dir, None, older)
    (found,) = ranks(record)
    assert (found.resumption.step, found.resumption.exact) == (512, older)
    record_start(record, run_dir, found, older)
    assert ranks(record)[0].resumption.exact == older
    checkpoint.set_latest(run_dir, "step_512")  # what a start does once it has read the checkpoint
    (found,) = ranks(record)
    assert (found.resumption.step, found.resumption.exact, found.restarts) == (512, None, 2)


def test_a_run_without_checkpoint_begins_again(run_dir, tmp_path):
    record = StartRecord(tmp_path / "memo")
    record_start(record, run_dir, None, None)
    (found,) = ranks(record)
    assert (found.resumption.step, found.resumption.run_dir) == (None, run_dir)
    assert "begins from its start" in found.resumption.notes[0]


def test_each_run_of_a_process_has_its_own_place(tmp_path):
    first, second, third = (StartRecord(tmp_path / "memo", number) for number in range(3))
    third.write(TrainedRun(run_dir="/c", starts=1))  # of a node that came late
    assert (first.read(), second.read(), third.read().run_dir) == (None, None, "/c")
    first.write(TrainedRun(run_dir="/a", starts=1))
    first.write(TrainedRun(run_dir="/a", starts=2))
    assert (first.read().starts, second.read(), third.read().run_dir) == (2, None, "/c")


def test_a_second_training_of_a_shell_script_is_no_restart_of_the_first(tmp_path):
    """It has a process of its own, and trained the run of the first further. After a restart the script is another."""
    ended = subprocess.Popen(["sleep", "100"])
    before = identity(ended.pid)
    ended.kill()
    ended.wait()
    for started, number in ((identity(os.getpid()), 1), (before, 0), ("", 0)):
        path = tmp_path / f"record{started}"
        StartRecord(path).write(TrainedRun(run_dir="/a", starts=1, started=started))
        record = find_start_record(0, {START_RECORD_VARIABLE: str(path)})
        assert record.number == number
        assert (record.read() is None) == (number == 1)
        assert find_start_record(1, {START_RECORD_VARIABLE: str(path)}).number == number + 1


@pytest.mark.parametrize("shell", ["exec {python} -c {code}", "{python} -c {code}; true"])
def test_the_process_that_a_launcher_started_is_the_topmost_with_its_variables(shell):
    code = "import os; from lockstep.system.processes import started_process as s; print(s('LAUNCHED'), os.getpid())"
    command = shell.format(python=shlex.quote(sys.executable), code=shlex.quote(code))
    shells = subprocess.Popen(["sh", "-c", command], env=os.environ | {"LAUNCHED": "1"}, stdout=subprocess.PIPE)
    topmost, own = map(int, shells.communicate()[0].split())
    assert topmost == shells.pid and (own == topmost) == shell.startswith("exec")


def test_a_disk_that_is_full_costs_a_warning(tmp_path, capsys):
    record_start(StartRecord(tmp_path / "missing" / "memo"), tmp_path, None, None)
    assert "warning" in capsys.readouterr().err


def test_only_launchers_that_restart_have_records():
    world = World(size=2, launcher="torchrun")
    assert not may_restart_ranks(world, {})
    assert may_restart_ranks(world, {"TORCHELASTIC_RUN_ID": "123"})
    assert not may_restart_ranks(World(size=2), {"TORCHELASTIC_RUN_ID": "123"})  # a world that the caller made
    path = new_start_record()
    assert may_restart_ranks(World(launcher="lockstep"), {START_RECORD_VARIABLE: str(path)})
    assert find_start_record(3, {START_RECORD_VARIABLE: str(path)}) == StartRecord(path, 3)
    assert new_start_record() != path  # one process may launch more than once
    with pytest.raises(ConfigError, match="cannot be found"):
        find_start_record(0, {})


def test_a_memo_belongs_to_the_process_and_to_no_name(monkeypatch):
    agents = iter([os.getpid(), os.getpid(), os.getppid()])
    monkeypatch.setattr("lockstep.launch.restarts.torchrun_agent", lambda _: next(agents))
    first = find_start_record(0, {"TORCHELASTIC_RUN_ID": "123", "TORCHELASTIC_RESTART_COUNT": "0"})
    second = find_start_record(0, {"TORCHELASTIC_RUN_ID": "123", "TORCHELASTIC_RESTART_COUNT": "1"})
    other = find_start_record(0, {"TORCHELASTIC_RUN_ID": "123", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert first == second, "two starts by one launcher"
    assert first != other, "two launchers"


@pytest.mark.parametrize(("received", "waits"), [(None, True), ((0.0, signal.SIGTERM), False)])
def test_a_rank_that_stops_for_others_waits_for_its_own_signal(received, waits, monkeypatch):
    monkeypatch.setattr(train, "_OWN_SIGNAL_S", 0.3)
    launch = object.__new__(train._RestartableLaunch)
    began = time.monotonic()
    launch.end(SimpleNamespace(stopped_by=signal.SIGTERM, signals=SimpleNamespace(received=received)))
    assert (time.monotonic() - began >= 0.3) == waits
