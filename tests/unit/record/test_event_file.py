"""TensorBoard's event files on a full disk."""

import errno
import threading

import pytest

from lockstep.record.event_file import EventFile


@pytest.fixture
def full_disk(monkeypatch):
    """Every record of the package's writer fails, in its thread."""
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.RecordWriter, "write", write)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_is_one_line(tmp_path, capfd):
    file = EventFile(tmp_path)
    file.open()
    for step in range(3):
        file.add(step, {"loss": 1.0})
        file.flush()
    file.close()
    assert not file.is_open
    assert capfd.readouterr().err == "lockstep: warning: no more TensorBoard files (No space left on device)\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_errors_of_other_threads_are_still_printed(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda error: told.append(str(error.exc_value)))
    from lockstep.record import event_file

    event_file._hide_errors_of_writer_threads.__wrapped__()

    def fail():
        raise OSError("of a user's thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert told == ["of a user's thread"]
