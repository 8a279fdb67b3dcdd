"""The log of a rank, where it cannot be written."""

import sys

import pytest

from lockstep.errors import ConfigError
from lockstep.record.rank_log import RankLog


def test_a_log_that_cannot_be_opened_is_named_with_the_way_out(tmp_path):
    path = tmp_path / "logs" / "rank_0.log"
    path.mkdir(parents=True)
    before = sys.stdout
    with pytest.raises(ConfigError, match=f"{path} cannot be written .*; make it writable, or resume a copy"):
        RankLog(tmp_path, 0)
    assert sys.stdout is before


def test_a_log_has_what_the_terminal_has(tmp_path, capsys):
    log = RankLog(tmp_path, 0)
    print("one")
    sys.stdout.writelines(["two\n", "three\n"])
    log.close()
    assert capsys.readouterr().out == (tmp_path / "logs" / "rank_0.log").read_text() == "one\ntwo\nthree\n"


def test_a_log_on_a_full_disk_keeps_the_terminal(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").symlink_to("/dev/full")
    log = RankLog(tmp_path, 0, ["before there was a log"])
    print("after it")
    log.close()
    assert capsys.readouterr().out == "after it\n"
