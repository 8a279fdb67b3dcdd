"""TensorBoard files are read back by TensorBoard's own reader."""

import importlib
import sys

import pytest

from lockstep.record import sinks
from lockstep.record.sinks import TensorBoard


def read(directory):
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    scalars = []
    for file in sorted(directory.iterdir()):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return scalars


@pytest.mark.filterwarnings("ignore")  # the reader's, not ours
def test_scalars_arrive_at_their_step_without_what_is_not_finite(tmp_path):
    board = TensorBoard(tmp_path / "tb")
    board.write(5, {"a/b": 1.5, "bad": float("nan")})
    board.write(9, {"a/b": 2.5, "worse": float("inf")})
    board.close()
    assert read(tmp_path / "tb") == [(5, "a/b", 1.5), (9, "a/b", 2.5)]


@pytest.mark.filterwarnings("ignore")
def test_scalars_leave_when_they_are_old_enough(tmp_path):
    board = TensorBoard(tmp_path / "tb", flush_every_s=0.0)
    board.write(1, {"a": 1.0})
    assert read(tmp_path / "tb") == [(1, "a", 1.0)]  # not closed yet
    patient = TensorBoard(tmp_path / "patient", flush_every_s=1000.0)
    patient.write(1, {"a": 1.0})
    assert not (tmp_path / "patient").exists()
    board.close()


def test_nothing_written_makes_no_file(tmp_path):
    TensorBoard(tmp_path / "tb").close()
    assert not (tmp_path / "tb").exists()


def test_a_missing_package_costs_one_line(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(sinks, "import_module", missing)
    board = TensorBoard(tmp_path / "tb", flush_every_s=0.0)
    for step in range(3):
        board.write(step, {"a": 1.0})
    board.close()
    said = capsys.readouterr().err
    assert said.count("\n") <= 2
    assert "pip install tensorboard" in said
    assert not (tmp_path / "tb").exists()
    assert "tensorflow" not in sys.modules
