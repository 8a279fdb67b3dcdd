"""The shared file in which a run says where it is met: whole or not there, never of a run that is gone."""

import json
import multiprocessing
import os
import threading
import time

import pytest

from lockstep.distributed.network import init_file
from lockstep.distributed.network.init_file import PublishedEndpoint, find, keep, publish, read, withdraw
from lockstep.errors import ConfigError


def dead(_):
    return False


def living(*nonces):
    return lambda place: place.nonce in nonces


def soon(seconds=0.3):
    return time.monotonic() + seconds


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run7"


@pytest.mark.parametrize("before", [None, b"", b"\0" * 40, b'{"lockstep_in', b'{"lockstep_init_file": 1, "addr'])
def test_publish_replaces_a_missing_empty_or_torn_file(file, before):
    if before is not None:
        file.write_bytes(before)
    assert read(file) is None
    place = publish(file, ["10.0.0.1", "fd00::1"], 4321, "n1", alive=dead)
    assert find(file, soon()) == read(file) == place
    assert (place.addresses, place.port, place.nonce) == (("10.0.0.1", "fd00::1"), 4321, "n1")
    assert place.pid == os.getpid()
    assert abs(place.started - time.time()) < 60
    assert os.listdir(file.parent) == [file.name], "the temporary file stays"


def test_a_stale_file_is_replaced_and_a_living_run_keeps_its_file(file):
    old = publish(file, ["10.0.0.1"], 1, "old", alive=dead)
    with pytest.raises(ConfigError, match=r"run7 belongs to another run, met at 10\.0\.0\.1:1 of host .+ started 20"):
        publish(file, ["10.0.0.2"], 2, "new", alive=living("old"))
    assert read(file) == old
    publish(file, ["10.0.0.2"], 2, "new", alive=dead)
    assert read(file).nonce == "new"


def test_of_two_writers_at_once_one_keeps_the_file(file):
    """Each saw a stale file; the other one's rename came last."""
    first = publish(file, ["10.0.0.1"], 1, "first", alive=dead)
    second = publish(file, ["10.0.0.2"], 2, "second", alive=dead)
    with pytest.raises(ConfigError, match=r"met at 10\.0\.0\.2:2"):
        keep(file, first, alive=living("first", "second"))
    keep(file, second, alive=living("first", "second"))
    assert read(file) == second


def test_a_removed_or_overwritten_file_is_written_again(file):
    place = publish(file, ["10.0.0.1"], 1, "mine", alive=dead)
    file.unlink()
    keep(file, place, alive=living("mine"))
    assert read(file) == place
    publish(file, ["10.0.0.2"], 2, "gone", alive=dead)
    keep(file, place, alive=living("mine"))
    assert read(file) == place


def test_find_waits_and_skips_stale_files(file):
    publish(file, ["10.0.0.1"], 1, "stale", alive=dead)
    said = []
    later = threading.Timer(0.5, publish, (file, ["10.0.0.2"], 2, "fresh"), {"alive": dead})
    later.start()
    place = find(file, soon(30), alive=living("fresh"), waiting=said.append, writer="node 0")
    later.join()
    assert place.nonce == "fresh"
    assert said[0].startswith(f"node 0 to write {file} (it holds the address of a run that is gone")
    assert "10.0.0.1:1" in said[0]


def test_a_refused_nonce_is_skipped_without_connecting(file):
    publish(file, ["10.0.0.1"], 1, "theirs", alive=dead)
    with pytest.raises(ConfigError):
        find(file, soon(), {"theirs"}, alive=lambda _: pytest.fail("asked"))


def test_waiting_ends_at_the_deadline_with_the_reason(file):
    began = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"gave up after waiting 0 s for rank 0 to write .*run7; check .* all nodes share"
    ):
        find(file, soon())
    publish(file, ["10.0.0.1"], 1, "stale", alive=dead)
    with pytest.raises(ConfigError, match=r"waiting \d+ s for rank 0 .* a run that is gone .*: 10\.0\.0\.1:1 of host"):
        find(file, soon(), alive=dead)
    assert time.monotonic() - began < 10


def test_waiting_can_be_cancelled(file):
    def waiting(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find(file, soon(30), waiting=waiting)


def test_a_missing_directory_is_reported_before_the_deadline(file, monkeypatch):
    monkeypatch.setattr(init_file, "_NO_DIRECTORY_S", 0.2)
    with pytest.raises(ConfigError, match=r"directory .*nowhere does not exist on host"):
        find(file.parent / "nowhere" / "run7", soon(60))
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory; make its directory first"):
        publish(file.parent / "nowhere" / "run7", ["10.0.0.1"], 1, "n", alive=dead)


@pytest.mark.parametrize("content", ["my notes", '{"lockstep_init_file": 1, "port": 5}', '{"lockstep_init_file": 1}'])
def test_a_foreign_file_is_not_overwritten(file, content):
    file.write_text(content)
    for attempt in (
        lambda: publish(file, ["10.0.0.1"], 1, "n", alive=dead),
        lambda: find(file, soon(30)),
    ):
        with pytest.raises(ConfigError, match="holds something else; name a file that is empty"):
            attempt()
    withdraw(file, "n")
    assert file.read_text() == content


def test_a_file_of_another_version_is_refused(file):
    file.write_text(json.dumps({"lockstep_init_file": 2, "anything": []}))
    with pytest.raises(ConfigError, match="another version of Lockstep"):
        read(file)


def test_a_path_that_is_no_file_is_refused(file):
    file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(file)


def test_only_the_writer_withdraws_the_file(file):
    publish(file, ["10.0.0.1"], 1, "mine", alive=dead)
    withdraw(file, "other")
    assert read(file) is not None
    withdraw(file, "mine")
    assert not file.exists()
    withdraw(file, "mine")


def _write_often(path, ready, until):
    place = [PublishedEndpoint((f"10.0.0.{i}",) * 40, i, f"nonce{i}") for i in range(20)]
    ready.set()
    while not until.is_set():
        for one in place:
            init_file._write(path, one)


def test_a_reader_never_sees_a_partial_write(file):
    """The file is complete at any time, also while it is overwritten."""
    context = multiprocessing.get_context("spawn")
    ready, until = context.Event(), context.Event()
    writer = context.Process(target=_write_often, args=(file, ready, until))
    writer.start()
    try:
        assert ready.wait(60)
        find(file, soon(60))
        for _ in range(3000):
            place = read(file)
            assert place is not None
            assert place == PublishedEndpoint((f"10.0.0.{place.port}",) * 40, place.port, f"nonce{place.port}")
    finally:
        until.set()
        writer.join(60)
    assert writer.exitcode == 0
