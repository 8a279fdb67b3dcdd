"""How a training with a library of others ends."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from lockstep.workflows import library_command
from lockstep.world import World


class Run:
    """A run that only notes why it failed."""

    def __init__(self, *_):
        self.finished, self.failures = False, []
        self.request = SimpleNamespace(library="rsl_rl")

    def fail(self, message, status, code=1):
        self.failures.append((message, status, code))

    def close(self):
        pass


class EndedError(Exception):
    """Instead of the end of the process."""


@pytest.mark.parametrize(("finished", "raised"), [(False, EndedError), (True, SystemExit)])
def test_an_environment_that_ends_the_process_with_code_0_is_a_failure(monkeypatch, capsys, finished, raised):
    """It passed for success, without a summary. Simulators may end the process after the training."""

    def end(code):
        raise EndedError(code)

    def train(run):
        run.finished = finished
        sys.exit(0)

    runs = []
    monkeypatch.setattr(library_command, "LibraryRun", lambda *args: runs.append(Run(*args)) or runs[-1])
    connected = contextlib.nullcontext((lambda value, _: [value], "cpu"))
    monkeypatch.setattr(library_command, "_connected", lambda *_: connected)
    monkeypatch.setattr("lockstep.launch.child.exit_process", end)
    with pytest.raises(raised) as ended:
        library_command._train(SimpleNamespace(library="rsl_rl"), World(), train)
    if not finished:
        assert ended.value.args == (1,)
        assert "sys.exit(0) was called during training" in runs[0].failures[0][0]
        assert "sys.exit(0) was called during training" in capsys.readouterr().err
